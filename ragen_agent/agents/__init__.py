"""Benchmark agents that run a model in this process."""
