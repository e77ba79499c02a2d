"""``ragen-gym export-env``: the package of a game that a hub or a trainer asks for."""

from __future__ import annotations

import argparse
from pathlib import Path

from ragen_gym.cli.command import table_lines
from ragen_gym.cli.env_options import add_option_flag, read_options
from ragen_gym.core.command_line import add_command
from ragen_gym.core.turn_config import split_turn_options, turn_config
from ragen_gym.core.validation import named_values
from ragen_gym.games.registry import load, load_task, own_module
from ragen_gym.integrations.export import TARGETS, export_env

_EXAMPLES = """\
examples:
  ragen-gym export-env verifiers ragen-sokoban --game Sokoban --option max_turns=4
  ragen-gym export-env openenv lake --option success_rate=1 --requires 'ragen-gym @ git+https://HOST/REPOSITORY'
  ragen-gym export-env trl my-game --game my_game:MyGame

The README in the package says how to test it and how to publish it. Nothing is uploaded.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    listed = "\n".join(f"  {line}" for line in table_lines(list(TARGETS.items())))
    what = "write the package of a game for a hub or a trainer"
    parser = add_command(commands, "export-env", what, _export, f"targets:\n{listed}\n\n{_EXAMPLES}")
    parser.add_argument("target", metavar="TARGET", help="the hub or trainer; see below")
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to write, which may not exist yet")
    parser.add_argument(
        "--game", default="FrozenLake", metavar="ID", help="a game's name, or MODULE:NAME (default: FrozenLake)"
    )
    add_option_flag(parser, "of the game, as `info` lists them, or of a turn, such as max_turns=4")
    parser.add_argument("--preset", help="a difficulty of the game, such as easy (default: none)")
    parser.add_argument(
        "--requires",
        metavar="REQUIREMENT",
        help="how the package asks pip for ragen-gym (default: this version on)",
    )


def _export(arguments: argparse.Namespace) -> int:
    given = named_values("--option", arguments.options)
    options = given  # a task's arguments have no declared types
    if load_task(arguments.game) is None:
        turns, _ = split_turn_options(given)
        others = [pair for pair in arguments.options if not turns.keys() & named_values("--option", [pair])]
        options = read_options(load(arguments.game), others) | turns
    turn_config(None, split_turn_options(options)[0])
    if arguments.preset is not None:
        options["preset"] = arguments.preset
    if arguments.requires is not None:
        options["requirement"] = arguments.requires
    for path in export_env(arguments.target, arguments.folder, arguments.game, **options):
        print(path)
    if own_module(arguments.game):
        print("LICENSE puts your module under the MIT license: write your name there, or change it and pyproject.toml.")
    print(f"README.md in {arguments.folder} says how to test and publish it; nothing was uploaded.")
    return 0
