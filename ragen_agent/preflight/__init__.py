"""Checks before a run: the machine, the memory, the plan."""
