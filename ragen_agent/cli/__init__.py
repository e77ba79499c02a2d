"""`ragen-agent`: train an agent on a game of the suite, and measure any model on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import gymnasium

__all__ = ["main"]

#: Modules of this package that add a command to the parser; each imports what it needs when it runs.
COMMANDS = ("train", "eval", "settings", "experiment", "data", "doctor", "sft", "report", "watch")

DESCRIPTION = "Train a language-model agent on a game by StarPO-S, or measure one."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for a mistake in what was asked, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    parser = _parser()
    options, unknown = parser.parse_known_args(words[:end])
    try:
        _check_known(parser, unknown)
        if end < len(words) and getattr(options, "backend", None) != "openrlhf":
            raise ValueError("flags after -- go to OpenRLHF: give --backend openrlhf, or leave them out.")
        options.extra = words[end + 1 :]
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, say `head`, has read enough
        sys.stderr.close()
        return 0
    except _refusals() as error:
        if isinstance(error, ImportError) and error.name:  # not one of ours, which say what to install: a defect
            raise
        print(f"ragen-agent: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nragen-agent: stopped.", file=sys.stderr)
        return 130


def _check_known(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Ends the program where flags are unknown, with the nearest setting where one looks like a setting's."""
    for word in unknown:
        if word.startswith("--") and "." in word:
            from ragen_agent.config.catalog import check_name

            check_name(word.removeprefix("--").partition("=")[0])
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")


def _refusals() -> tuple[type[Exception], ...]:
    """What is said to the person in one line; a solver's limit too, where a solver was imported."""
    solver = sys.modules.get("ragen_gym.games.sokoban.solve")
    limits = (solver.NotSolvedError,) if solver else ()
    return ValueError, OSError, ImportError, gymnasium.error.Error, *limits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ragen-agent", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        import_module(f"ragen_agent.cli.{module}").add(commands)
    return parser
