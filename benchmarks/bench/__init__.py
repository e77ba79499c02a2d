"""What the benchmark's runner and the HTTP server cost: ``python -m benchmarks.bench``."""
