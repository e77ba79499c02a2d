"""The tables behind exact values: as Python and compiled they are the same, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games import value_tables as tables
from ragen_gym.games._jit import compiled_params
from ragen_gym.games.game import OVER, Game
from ragen_gym.games.registry import build_game, find


def asked(game: Game, moves: int, limit: int = 50_000) -> tuple[Any, ...]:
    """The arguments of an explorer, from the start of a level."""
    boards = game.generate(episode_keys(3, 0, 1), None)
    draws = np.array([u for _, u in game.noise_intervals()])
    begin, numbers = np.frombuffer(bytes(boards[0]), np.uint8), game.starts(boards)[0].astype(np.int32)
    return begin, numbers, moves, compiled_params(game.params), draws, len(game.Action), limit


def equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("name", "moves"),
    [("FrozenLake", 10), ("FrozenLake", 0), ("Sokoban", 9), ("LargeSokoban", 30), ("Bandit", 3)],
)
def test_python_and_compiled_code_make_the_same_tables(name: str, moves: int) -> None:
    game = build_game(find(name), {})
    explore, question = tables.explorer(game.rule), asked(game, moves)
    plain = explore.plain(*question)
    assert equal(plain, explore.native(*question))
    reached = tables.Reached(*plain)
    assert reached.reach[0] == moves
    assert (np.diff(reached.reach) <= 0).all()
    assert (reached.outcomes[reached.reach == 0] == OVER).all()
    if name == "LargeSokoban":
        assert len(reached.reach) > 128, "more than there is room for at first"
    chances = np.array([chance for chance, _ in game.noise_intervals()])
    for may_stop in (False, True):
        steps = (reached.after, reached.rewards, reached.outcomes, chances, len(game.Action), moves, may_stop)
        assert equal(tables.backward.plain(*steps), tables.backward.native(*steps))
