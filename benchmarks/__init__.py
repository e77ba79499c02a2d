"""How fast the environments are: `python -m benchmarks.speed` measures, and writes the results and their page."""
