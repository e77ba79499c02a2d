"""Runs ``python -m ragen_agent.cli``."""

from ragen_agent.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
