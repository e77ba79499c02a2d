"""``ragen-gym bench-speed``: runs ``python -m benchmarks.speed`` of the repository."""

from __future__ import annotations

import argparse
from importlib import import_module

__all__ = ["add", "run"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its options are those of ``python -m benchmarks.speed``."""
    parser = commands.add_parser(
        "bench-speed",
        help="how many steps a second this machine plays, next to Gymnasium's own FrozenLake (needs the repository)",
        add_help=False,
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure; what is usually asked for, unless the options in ``arguments.rest`` choose."""
    try:
        benchmark = import_module("benchmarks.speed.__main__")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.speed", "benchmarks.speed.__main__"):
            raise
        raise ValueError(
            "the speed benchmark is not part of the installed package: clone the repository, install it with "
            "pip install -e ., and run this command, or python -m benchmarks.speed, there."
        ) from None
    choices = ("--only", "--all", "--list", "--usual", "-h", "--help")
    chosen = any(word.partition("=")[0] in choices for word in arguments.rest)
    try:
        code: int = benchmark.main([*arguments.rest, *([] if chosen else ["--usual"])], prog="ragen-gym bench-speed")
    except SystemExit as stop:  # --help or a usage error, which argparse has explained
        return stop.code if isinstance(stop.code, int) else 2
    return code
