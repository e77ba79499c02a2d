"""Runs ``python -m ragen_gym.cli``."""

from ragen_gym.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
