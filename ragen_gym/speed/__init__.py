"""How fast the environments are on this machine: the timer, the table of measurements, and their running.

``ragen-gym bench-speed`` runs a few of them; ``python -m benchmarks.speed``, in the repository, runs all, and those of
other suites beside them.
"""
