"""`ragen-agent`: train an agent on a game of the suite, and measure any model on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import gymnasium

__all__ = ["main"]

#: Modules that add their own commands to the parser; each imports what it needs when it runs.
COMMANDS = (
    "ragen_agent.cli.train",
    "ragen_agent.cli.eval",
    "benchmarks.experiments.command",
    "ragen_agent.cli.data",
    "ragen_agent.cli.doctor",
    "ragen_agent.cli.sft",
    "ragen_agent.cli.report",
)

DESCRIPTION = "Train a language-model agent on a game by StarPO-S, or measure one."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for a mistake in what was asked, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:end])
    try:
        if end < len(words) and getattr(options, "backend", None) != "openrlhf":
            raise ValueError("flags after -- go to OpenRLHF: give --backend openrlhf, or leave them out.")
        options.extra = words[end + 1 :]
        code: int = options.run(options)
        return code
    except _refusals() as error:
        if isinstance(error, ImportError) and error.name:  # not one of ours, which say what to install: a defect
            raise
        print(f"ragen-agent: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nragen-agent: stopped.", file=sys.stderr)
        return 130


def _refusals() -> tuple[type[Exception], ...]:
    """What is said to the person in one line; a solver's limit too, where a solver was imported."""
    solver = sys.modules.get("ragen_gym.games.sokoban.solve")
    limits = (solver.NotSolvedError,) if solver else ()
    return ValueError, OSError, ImportError, gymnasium.error.Error, *limits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ragen-agent", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        import_module(module).add(commands)
    return parser
