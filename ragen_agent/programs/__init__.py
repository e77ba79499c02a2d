"""Users' agent programs, in any language, behind an OpenAI-compatible endpoint of the training engine."""
