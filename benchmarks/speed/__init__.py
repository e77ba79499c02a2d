"""How fast the environments are, next to Gymnasium's and other suites': ``python -m benchmarks.speed``."""
