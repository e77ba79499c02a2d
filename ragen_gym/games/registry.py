"""The table of environments. Ids, documentation, tests and the command line derive from it.

Each row is one id: a game, the knobs that make it this environment, and its horizon. Adding a game is one folder in
``games/`` and one row here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from ragen_gym.games.game import Game

__all__ = ["TABLE", "Row", "add", "build_game", "find", "register_all"]


@dataclass(frozen=True)
class Row:
    """One environment of the suite.

    Attributes:
        name: name of the id, ``ragen/<name>-v0``.
        game: where its `Game` class is, ``"module:Class"``, imported when first needed.
        horizon: ``max_episode_steps`` of the id, the paper's budget of actions; None where the rules end the episode.
        summary: one line for lists.
        knobs: what differs from the defaults of the class.
        vocabulary: name of the vocabulary that texts use; None for the game's own.
    """

    name: str
    game: str
    horizon: int | None
    summary: str
    knobs: dict[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None

    @property
    def id(self) -> str:
        """The Gymnasium id."""
        return f"ragen/{self.name}-v0"

    @property
    def game_class(self) -> type[Game]:
        """The game's class."""
        module, _, name = self.game.partition(":")
        loaded: type[Game] = getattr(import_module(module), name)
        return loaded


TABLE: dict[str, Row] = {
    row.name: row
    for row in (
        Row("Bandit", "ragen_gym.games.bandit:Bandit", None, "two arms with telling names, one pull"),
        Row("BanditRev", "ragen_gym.games.bandit:BanditRev", None, "the same names, meaning the opposite"),
        Row(
            "FrozenLake",
            "ragen_gym.games.frozen_lake:FrozenLake",
            10,
            "cross slippery ice to the goal, around the holes",
        ),
        Row("Sokoban", "ragen_gym.games.sokoban:Sokoban", 10, "push one box onto its target"),
        Row(
            "LargeSokoban",
            "ragen_gym.games.sokoban:Sokoban",
            10,
            "push two boxes onto targets on a larger board",
            {"height": 8, "width": 8, "boxes": 2, "search_depth": 10},
        ),
        Row("NewVocab", "ragen_gym.games.sokoban:Sokoban", 10, "Sokoban in other symbols", vocabulary="new_vocab"),
    )
}


def find(name: str) -> Row:
    """The row of a name or id: ``FrozenLake``, ``ragen/FrozenLake-v0`` or ``ragen_gym:ragen/FrozenLake-v0``.

    Raises:
        ValueError: there is no such environment.
    """
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name: choose one of {', '.join(TABLE)}.")
    short = name.rpartition(":")[2].removeprefix("ragen/").removesuffix("-v0")
    if short in TABLE:
        return TABLE[short]
    by_case = {known.lower().replace("_", ""): known for known in TABLE}
    near = get_close_matches(short.lower().replace("_", "").replace("-", ""), by_case, n=1)
    hint = f" Did you mean {by_case[near[0]]}?" if near else ""
    raise ValueError(f"{name!r} is not a game of this suite: choose one of {', '.join(TABLE)}.{hint}")


def build_game(row: Row, knobs: dict[str, Any], preset: str | None = None) -> Game:
    """The row's game: these knobs over those of the preset, those over the row's own.

    Raises:
        ValueError: a knob or preset that the game does not have, or a value out of range.
    """
    known, presets = row.game_class.knobs(), row.game_class.presets
    if preset is not None and (not isinstance(preset, str) or preset not in presets):
        raise ValueError(f"{row.name} has no preset {preset!r}: it has {', '.join(presets) or 'none'}.")
    for knob in knobs:
        if knob not in known:
            near = get_close_matches(knob, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"{row.name} has no knob {knob!r}: it has {', '.join(known)}.{hint}")
    below = {**row.knobs, **(presets[preset] if preset else {})}
    if knobs.get("size") is not None:
        below = {knob: value for knob, value in below.items() if knob not in ("height", "width")}
    return row.game_class(**{**below, **knobs})


def add(row: Row) -> None:
    """Put a row into the table and register its id with Gymnasium.

    Raises:
        ValueError: the name is taken by another row.
    """
    if TABLE.setdefault(row.name, row) != row:
        raise ValueError(f"{row.id} is taken by {TABLE[row.name].game}: choose another name.")
    if row.id in gymnasium.registry:
        return
    gymnasium.register(
        id=row.id,
        entry_point="ragen_gym.envs.step:StepEnv",
        vector_entry_point="ragen_gym.envs.vector:BatchEnv",
        max_episode_steps=row.horizon,
        # StepEnv refuses a step before reset or after the end itself, and every id is held to Gymnasium's checks and
        # more by `ragen_gym.testing.check_env`: two wrappers fewer that every step would go through.
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"name": row.name},
    )


def register_all() -> None:
    """Register every row that Gymnasium does not know yet."""
    for row in TABLE.values():
        add(row)
