"""Users' agent programs, in any language, behind an endpoint of the engine with OpenAI's and Anthropic's APIs."""
