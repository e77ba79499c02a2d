"""Runs ``python -m benchmarks.experiments``."""

from benchmarks.experiments.command import main

if __name__ == "__main__":
    raise SystemExit(main())
