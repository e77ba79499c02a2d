"""``ragen-agent experiment``: a pointer to the experiments, which are in the repository and not in the package."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

__all__ = ["add"]

HOME = "benchmarks.experiments.command"
ABSENT = (
    "the experiments are in the repository of ragen-gym, not in the installed package: clone it, and there run "
    "python -m benchmarks.experiments."
)


def add(commands: Any) -> None:
    """Adds the command to the parser: the repository's own where this is a checkout, or one that says where it is."""
    try:
        home = import_module(HOME)
    except ModuleNotFoundError as error:
        if not HOME.startswith(str(error.name)):  # something that the experiments need: say so, and not this
            raise
        parser = commands.add_parser("experiment", help="run an experiment (in a checkout of the repository)")
        parser.add_argument("anything", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        parser.set_defaults(run=_absent)
    else:
        home.add(commands)


def _absent(_: argparse.Namespace) -> int:
    raise ValueError(ABSENT)
