"""``ragen-agent``: train an agent on a game of the suite, and measure any model on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import gymnasium

from ragen_agent.inference import torchvision_ops
from ragen_gym import __version__
from ragen_gym.core.command_line import Parser, error_line
from ragen_gym.core.console import plain_output
from ragen_gym.core.threads import wait_passively
from ragen_gym.games.game import NotSolvedError

__all__ = ["build_parser", "main", "run_program"]

#: Modules of this package that add commands to the parser; each imports what it needs when it runs.
COMMANDS = (
    "train",
    "eval",
    "exact",
    "thoughts",
    "gradients",
    "model",
    "tokens",
    "settings",
    "conform",
    "doctor",
    "sft",
    "report",
)

#: The extras of libraries that are not in ``agent``.
EXTRAS = {"peft": "sft", "tensorboard": "tracking", "wandb": "tracking", "deepspeed": "openrlhf", "ray": "openrlhf"}

DESCRIPTION = "Train a language-model agent on a game by StarPO-S, or measure one."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for a mistake in what was asked, 130 after Ctrl-C."""
    return run_program("ragen-agent", build_parser, arguments)


def run_program(name: str, build: Callable[[], Parser], arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and call ``options.run``; the exit codes are those of ``main``."""
    wait_passively()
    torchvision_ops.prepare()
    with plain_output():
        return _run(name, build, list(sys.argv[1:] if arguments is None else arguments))


def _run(name: str, build: Callable[[], Parser], words: list[str]) -> int:
    try:
        parser = build()
        options, unknown = parser.parse_known_args(words)
        _check_known(parser, unknown)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, say `head`, has read enough
        sys.stderr.close()
        return 0
    except (ValueError, OSError, ImportError, MemoryError, gymnasium.error.Error, NotSolvedError) as error:
        if isinstance(error, ImportError) and error.name:  # a library that is not installed; ours say what to install
            library = error.name.partition(".")[0]
            if library in ("ragen_agent", "ragen_gym"):  # a defect
                raise
            extra = EXTRAS.get(library, "agent")
            error = ImportError(f"the library {library} is missing: run pip install 'ragen-gym[{extra}]'.")
        print(f"{name}: {error_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{name}: stopped.", file=sys.stderr)
        return 130


def _check_known(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Ends the program where flags are unknown, with the nearest setting where one looks like a setting's."""
    from ragen_agent.cli.settings import catalog, check_name

    for word in unknown:
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and ("." in name or name in catalog()):
            check_name(name)
            raise ValueError(f"{word} is not a flag: give --set {name}=VALUE.")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(prog="ragen-agent", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"ragen-agent {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        import_module(f"ragen_agent.cli.{module}").add(commands)
    return parser
