"""Returns of random play, on games where they are known."""

from __future__ import annotations

import numpy as np

from ragen_agent.preflight.returns import random_returns, returns_in_words
from ragen_gym import make_turn


def test_one_move_on_a_lake_reaches_nothing_and_no_level_teaches() -> None:
    """The goal of these levels is further away than one move, so every episode earns 0."""
    env = make_turn("FrozenLake", size=6, max_turns=1, max_actions=1, max_actions_per_turn=1)
    for seed in range(8):
        env.reset(seed=seed)
        board = env.state_text.write(env.env.state[0]).split("\n")
        player, goal = (next((y, row.find(c)) for y, row in enumerate(board) if c in row) for c in "PG")
        assert abs(player[0] - goal[0]) + abs(player[1] - goal[1]) > 1
    returns = random_returns(env, 4)
    assert returns.shape == (8, 4)
    assert not returns.any()
    assert "differ on 0 of 8 levels, with 4 episodes on each" in returns_in_words(returns)
    assert "Returns and their episodes: 0 (32)." in returns_in_words(returns)


def test_both_arms_of_a_bandit_are_drawn_and_the_draw_repeats() -> None:
    returns = random_returns(make_turn("Bandit"), 16)
    assert (returns.max(1) > returns.min(1)).all()
    assert np.array_equal(returns, random_returns(make_turn("Bandit"), 16))


def test_many_returns_are_cut_to_the_commonest() -> None:
    text = returns_in_words(np.array([[1.0, 1.0], [0.5, 2.0], [3.0, 4.0], [5.0, -0.1], [7.0, 7.0]]))
    assert "differ on 3 of 5 levels" in text
    assert text.endswith("-0.1 (1), 0.5 (1), 1 (2), 2 (1), 3 (1), 7 (2), and 2 others.")
