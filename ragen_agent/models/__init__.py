"""Models: small ones, named ones, checkpoints, LoRA and parameters."""
