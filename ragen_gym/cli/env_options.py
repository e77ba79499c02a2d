"""Options of games: their names and meanings, and how to read them from the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter, getdoc, signature
from typing import Any

from ragen_gym.core.levels import SPLITS
from ragen_gym.core.text import TEXT_FORMATS
from ragen_gym.core.validation import json_or_text, named_values
from ragen_gym.games.game import Game
from ragen_gym.games.registry import GameSpec, build_game, load


@dataclass(frozen=True)
class EnvOption:
    """One option of a game: an argument of its class."""

    name: str
    type: str  # as the game's class declares it
    default: Any  # in this environment
    doc: str  # what it means


def sections(game_class: type[Game]) -> dict[str, str]:
    """The text under each ``## Heading`` of a game's docstring; what stands before the first is under ``""``."""
    found: dict[str, str] = {}
    heading = ""
    lines: list[str] = []
    for line in [*(getdoc(game_class) or "").splitlines(), "## "]:
        if line.startswith("## "):
            found[heading] = "\n".join(lines).strip()
            heading, lines = line.removeprefix("## ").strip(), []
        else:
            lines.append(line)
    return found


def options_of(spec: GameSpec) -> list[EnvOption]:
    """The options of an environment's game, in the order of its signature."""
    docs: dict[str, str] = {}
    for base in reversed(spec.game_class.__mro__):
        if issubclass(base, Game):
            docs.update(_argument_docs(sections(base).get("Arguments", "")))
    defaults = spec.game_class.options()
    return [
        EnvOption(name, _declared(parameter), spec.options.get(name, defaults[name]), docs.get(name, ""))
        for name, parameter in signature(spec.game_class).parameters.items()
    ]


def read_options(spec: GameSpec, pairs: Sequence[str]) -> dict[str, Any]:
    """The options given as ``name=value``; the game checks the values."""
    types = {option.name: option.type for option in options_of(spec)}
    read = named_values("--option", pairs, lambda name, text: _read(types.get(name, ""), text))
    for name, value in read.items():
        if name not in types and spec.game_class.foreign_levels({name: value}) is None:
            build_game(spec, {name: None})  # an error that says which options there are
    return read


def _read(declared: str, text: str) -> Any:
    """An option's value: a text as it stands, a number also as 1/3, all else as JSON if it is that."""
    if declared == "str":
        return text
    if declared == "float":
        with suppress(ValueError, ArithmeticError):
            return float(Fraction(text) if "/" in text else text)
    return None if text.lower() == "none" else json_or_text(text)


def add_option_flag(parser: argparse.ArgumentParser, which: str) -> None:
    """The flag ``--option NAME=VALUE``, as ``options``; the help says ``which`` they are."""
    parser.add_argument(
        "--option",
        dest="options",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"set an option {which}; repeatable, each option once",
    )


def add_environment_options(
    parser: argparse.ArgumentParser, *, rules_only: bool = False, board_text: bool = True
) -> None:
    """The flags that choose an environment.

    With ``rules_only`` these are the game, its options and preset; without ``board_text`` all but its form as text.
    """
    parser.add_argument(
        "id", metavar="ID", help="a game's name or id; `ragen-gym list` shows them; MODULE:NAME is a game of your own"
    )
    add_option_flag(parser, "of the game, such as size=6; `info` lists them")
    parser.add_argument("--preset", help="a difficulty of the game, such as easy; `info` lists them (default: none)")
    parser.set_defaults(split=None, levels=None, vocabulary=None, text_format=None)
    if rules_only:
        return
    parser.add_argument("--split", help=f"levels of one split only: {', '.join(SPLITS)} (default: all levels)")
    parser.add_argument(
        "--levels",
        metavar="FILE",
        help="draw the levels from a file, as `levels export` writes it, in any vocabulary of the game and any size "
        "(default: generate them)",
    )
    if board_text:
        parser.add_argument(
            "--vocabulary", metavar="NAME", help="the symbols of the board; `info` shows them (default: the game's own)"
        )
        parser.add_argument("--text-format", help=f"the board as {', '.join(TEXT_FORMATS)} (default: grid)")


def chosen_environment(arguments: argparse.Namespace) -> tuple[GameSpec, dict[str, Any]]:
    """The entry of the table, and the arguments of ``ragen_gym.StepEnv``, that the flags choose."""
    spec = load(arguments.id)
    return spec, environment_flags(arguments) | read_options(spec, arguments.options)


def environment_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Values of the flags that only games have."""
    names = ("preset", "split", "levels", "vocabulary", "text_format")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def describe(value: Any) -> str:
    """An option's value as a person would write it: 1/3 rather than 0.3333333333333333."""
    if isinstance(value, float):
        near = Fraction(value).limit_denominator(100)
        if float(near) == value and len(repr(value)) > 6:
            return str(near)
    return str(value)


def _declared(parameter: Parameter) -> str:
    declared = str(parameter.annotation)
    inner = re.fullmatch(r"InitVar\[(.*)\]", declared)
    return inner[1] if inner else declared


def _argument_docs(text: str) -> dict[str, str]:
    """``name, other: what they mean`` lines; a line without such a start goes on with the one before."""
    docs: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        start = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start[1].split(", ")
            docs.update(dict.fromkeys(names, start[2].strip()))
            for quoted in re.findall(r"``(\w+)``", start[2]):
                docs.setdefault(quoted, start[2].strip())
        else:
            docs.update({name: f"{docs[name]} {line.strip()}".strip() for name in names})
    return docs
