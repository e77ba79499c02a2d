"""A training run: its folder, console, alarm, diagnostics, evaluation and tracking."""
