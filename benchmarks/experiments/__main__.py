"""Runs ``python -m benchmarks.experiments``, which is ``ragen-agent experiment``, with its errors and exit codes."""

import sys

from ragen_agent.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["experiment", *sys.argv[1:]]))
