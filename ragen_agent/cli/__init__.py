"""``ragen-agent``: train an agent on a game of the suite, and measure any model on it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import gymnasium

from ragen_agent.inference import torchvision_ops
from ragen_gym import __version__
from ragen_gym.core.command_line import Parser, run_program
from ragen_gym.games.game import NotSolvedError

__all__ = ["build_parser", "main"]

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

DESCRIPTION = "Train a language-model agent on a game by StarPO-S, or measure one."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 1 where a check failed, 2 for bad input, 130 after Ctrl-C."""
    torchvision_ops.prepare()
    return run_program("ragen-agent", build_parser, arguments, (gymnasium.error.Error, NotSolvedError))


class SettingsParser(Parser):
    """A parser that names the setting behind an unknown flag."""

    def error(self, message: str) -> NoReturn:
        """Exits as argparse does; raises a ValueError for a setting that is given as a flag."""
        from ragen_agent.cli.settings import catalog, check_name

        start = "unrecognized arguments: "
        for word in message.removeprefix(start).split() if message.startswith(start) else ():
            name = word.removeprefix("--").partition("=")[0]
            if word.startswith("--") and ("." in name or name in catalog()):
                check_name(name)
                raise ValueError(f"{word} is not a flag: give --set {name}=VALUE.")
        super().error(message)


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = SettingsParser(prog="ragen-agent", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"ragen-agent {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        import_module(f"ragen_agent.cli.{module}").add(commands)
    return parser
