"""Agent programs of one's own, in any language: an OpenAI-compatible endpoint in front of the engine that trains."""
