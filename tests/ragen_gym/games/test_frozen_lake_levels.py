"""The generator of FrozenLake against the law that its page states."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.testing import games
from tests.ragen_gym.games.slow_lake import bfs


def lakes(game: FrozenLake, count: int, split: str | None = None, key: int = 0) -> list[str]:
    return [game.own_text(bytes(board)) for board in game.generate(episode_keys(key, 0, count), split)]


@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize("min_path", [1, 3])
def test_the_generators_law_exactly(random_start: bool, min_path: int) -> None:
    """Small lakes come as often as they should: every start, goal and ice, given that the path is long enough."""
    p, count = 0.6, 20_000
    game = FrozenLake(height=2, width=3, frozen_prob=p, min_path=min_path, random_start=random_start)
    law: dict[str, float] = {}
    for start, goal in product(range(6), repeat=2):
        if start == goal or (not random_start and (start, goal) != (0, 5)):
            continue
        for ice in product("_O", repeat=4):
            cells = list(ice)
            for place, symbol in sorted([(start, "P"), (goal, "G")]):
                cells.insert(place, symbol)
            text = "".join(cells[:3]) + "\n" + "".join(cells[3:])
            if bfs(text) >= min_path:
                law[text] = p ** ice.count("_") * (1 - p) ** ice.count("O")
            assert game.likelihood(game.parse(text), None) == pytest.approx(law.get(text, 0))
    counts = Counter(lakes(game, count))
    assert set(counts) <= set(law)
    expected = {text: count * weight / sum(law.values()) for text, weight in law.items()}
    assert min(expected.values()) > 5
    chi_square = sum((counts[text] - mean) ** 2 / mean for text, mean in expected.items())
    freedom = len(law) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 5


@given(games(FrozenLake), st.sampled_from(["train", "validation", "test", None]), st.integers(0, 2**64 - 1))
@settings(max_examples=30)
def test_generated_lakes_meet_their_options(game: FrozenLake, split: str | None, key: int) -> None:
    try:
        texts = lakes(game, 8, split, key)
    except ValueError:
        assume(False)
    for text in texts:
        assert bfs(text) >= game.min_path
        rows = text.split("\n")
        assert (len(rows), {len(row) for row in rows}) == (game.height, {game.width})
        if not game.random_start:
            assert (text[0], text[-1]) == ("P", "G")
        if game.frozen_prob == 1:
            assert "O" not in text


def test_options_that_no_lake_meets() -> None:
    """Within a bounded number of draws, an error with every option that has a part in it."""
    game = FrozenLake(frozen_prob=0.1, min_path=12, random_start=False)
    with pytest.raises(ValueError, match="FrozenLake: no level in") as error:
        game.generate(episode_keys(0, 0, 1), "test")
    for option in ("min_path=12", "height=4", "width=4", "frozen_prob=0.1", "random_start=False", "split='test'"):
        assert option in str(error.value)
