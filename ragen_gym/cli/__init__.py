"""The command line ``ragen-gym``: look at the games, play them, measure them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import gymnasium

from ragen_gym import __version__
from ragen_gym.cli import audit, bench, export_env, levels, new_game, play, serve
from ragen_gym.cli import list as list_command
from ragen_gym.cli import render as render_command
from ragen_gym.core.command_line import Parser, run_program
from ragen_gym.games.game import NotSolvedError

__all__ = ["build_parser", "main"]

_EXAMPLES = """\
examples:
  ragen-gym list                                   every game
  ragen-gym info FrozenLake                        rules, options, random play
  ragen-gym play FrozenLake --option size=6        play it
  ragen-gym play Bandit --turn                     play as a model does
  ragen-gym render Sokoban --gif --out box.gif     the oracle's episode
  ragen-gym levels export Sokoban -n 100 --out levels.jsonl
  ragen-gym solve Sokoban board.txt                optimal play of your boards
  ragen-gym check FrozenLake                       test a game's contract
  ragen-gym audit FrozenLake-v1                    test anyone's environment
  ragen-gym bench run --suite smoke --agent random --out runs/random
  ragen-gym export-env verifiers DIR               for a hub
  ragen-gym new-game TreasureHunt                  a game to begin with

A game goes by its name (FrozenLake) or by its id (ragen/FrozenLake-v0); one of your own by its module and name
(my_game:MyGame).
"""

#: Each module adds its own commands to the parser.
_COMMANDS = (list_command, play, render_command, levels, audit, bench, serve, export_env, new_game)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="ragen-gym",
        description="Games for language-model agents: list them, play them, measure them.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"ragen-gym {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in _COMMANDS:
        module.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 where a check failed, 2 for bad input, 130 after Ctrl-C."""
    return run_program("ragen-gym", build_parser, argv, (gymnasium.error.Error, NotSolvedError))
