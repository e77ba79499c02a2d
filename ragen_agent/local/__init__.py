"""The local trainer: one process, one CPU core or one GPU, from nothing to a trained policy in minutes."""
