"""Whether a game's class declares what the interface asks for, before anything is played."""

from __future__ import annotations

from array import array
from dataclasses import is_dataclass
from enum import IntEnum
from inspect import get_annotations, getattr_static
from typing import Any

import numpy as np

from ragen_gym.games.game import Game
from ragen_gym.testing.episode import require

__all__ = ["check_declared"]

_NEEDED = {
    "name": "the name of its id, a string",
    "Action": "an IntEnum of the actions",
    "Tile": "an IntEnum of what a cell shows",
    "noise": "Stream.DYNAMICS or Stream.REWARD",
    "rule": "staticmethod(your_rule)",
    "vocabularies": "a dict of ragen_gym.core.text.Vocabulary by name",
    "description": "a paragraph for the player",
}


def check_declared(game: Game) -> None:
    """Check the members of a game's class.

    Raises:
        AssertionError: what is missing or of the wrong kind, and what it should be.
    """
    own = type(game).__name__
    for member, what in _NEEDED.items():
        require(hasattr(game, member), f"{own} has no `{member}`: give it {what}.")
    _check_dataclass(type(game))
    for function in ("rule", "legal"):
        kept = getattr_static(game, function)
        require(
            kept is None or isinstance(kept, staticmethod),
            f"{own}.{function} is a plain function, which would be handed the game as its first argument: write "
            f"`{function} = staticmethod(…)`.",
        )
    for what, codes in (("Action", game.Action), ("Tile", game.Tile)):
        require(
            isinstance(codes, type) and issubclass(codes, IntEnum) and [*map(int, codes)] == list(range(len(codes))),
            f"{own}.{what} must be an IntEnum that counts from 0, such as A, B = range(2); it is {list(codes)}.",
        )
    _check_vocabularies(game)
    require(game.layout in ("grid", "arms", "text"), f"{own}.layout is {game.layout!r}; it must be grid, arms or text.")
    for tiles in ("player_tiles", "goal_tiles", "box_tiles", "target_tiles"):
        unknown = sorted(set(getattr(game, tiles)) - set(game.Tile))
        require(not unknown, f"{own}.{tiles} holds {unknown}, which {own}.Tile does not have.")
    params: Any = game.params
    require(
        isinstance(params, tuple | list | array | np.ndarray),
        f"{own}.params is a {type(params).__name__}; it must be a tuple of numbers, or an array.array.",
    )


def _check_dataclass(cls: type[Game]) -> None:
    """A knob is an annotation of a dataclass; without the decorator it would silently be none."""
    declared = [
        name for name, kind in get_annotations(cls).items() if "ClassVar" not in str(kind) and name not in dir(Game)
    ]
    require(
        is_dataclass(cls) and (not declared or "__dataclass_fields__" in cls.__dict__),
        f"{cls.__name__} declares {', '.join(declared) or 'knobs'} and is not a dataclass of its own, so they are no "
        "knobs: put @dataclass(frozen=True) above the class.",
    )


def _check_vocabularies(game: Game) -> None:
    """A symbol for each tile, or none at all where the game writes its boards in its own way."""
    own, tiles = type(game).__name__, [tile.name for tile in game.Tile]
    require(game.vocabularies, f"{own}.vocabularies is empty: give it one in which levels are written.")
    for name, vocabulary in game.vocabularies.items():
        require(
            len(vocabulary.symbols) in (0, len(tiles)),
            f"{own}: vocabulary {name!r} has {len(vocabulary.symbols)} symbols for {len(tiles)} tiles; give each one "
            f"of {', '.join(tiles)} a symbol, in that order.",
        )
