"""Stated budgets: their grammar, their score, and the exact distribution of the moves to go."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.budget import (
    IMPOSSIBLE,
    Budget,
    bagen_reward,
    covered,
    honest_budget,
    interval_score,
    read_budget,
    score_reward,
    within,
    written,
)
from ragen_gym.envs.policies import blind_value, moves_to_go, plan_moves, play_turns, random_value, reply_for
from ragen_gym.envs.reply import Problem, parse_reply
from ragen_gym.envs.turn import TurnEnv, make_turn

LAKE = "PGO\nOOO\nOOO"
CORRIDOR = "P__G\nOOOO\nOOOO\nOOOO"

distributions = st.lists(st.integers(0, 20), min_size=3, max_size=9).filter(any).map(lambda w: np.array(w) / sum(w))


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("[2, 4]", (2, 4)),
        (" [ 2,4 ]\n", (2, 4)),
        ("[0, 0]", (0, 0)),
        ("impossible", IMPOSSIBLE),
        ("Impossible", IMPOSSIBLE),
        ("[4, 2]", None),
        ("2, 4", None),
        ("[2]", None),
        ("[-1, 3]", None),
        ("[1.5, 3]", None),
        ("[1, 9999999999]", None),
        ("not impossible", None),
        ("", None),
    ],
)
def test_what_a_budget_says(text: str, budget: Budget | None) -> None:
    assert read_budget(text) == budget
    if budget:
        assert read_budget(written(budget)) == budget


@pytest.mark.parametrize("think", [False, True])
def test_a_reply_states_its_budget_before_its_answer(think: bool) -> None:
    thought = "<think>1 <budget>[9, 9]</budget></think>" if think else ""

    def read(stated: str) -> tuple[object, ...]:
        reply = parse_reply(f"{thought}{stated}<answer>Up</answer>", ("Up",), think=think, budget=True)
        return reply.budget, reply.actions, reply.problem

    assert read("<budget>[1, 3]</budget>") == ((1, 3), (0,), None)
    assert read("\n<budget>impossible</budget>\n") == (IMPOSSIBLE, (0,), None)
    assert read("<budget>soon</budget>") == (None, (), Problem.NO_BUDGET)
    assert read("<budget>[1, 2]</budget><budget>[3, 4]</budget>") == (None, (), Problem.NO_BUDGET)
    assert read("") == (None, (), Problem.NO_ANSWER)
    unasked = parse_reply(f"{thought}<budget>[1, 3]</budget><answer>Up</answer>", ("Up",), think=think)
    assert unasked.problem is Problem.NO_ANSWER


def test_the_interval_score_by_hand() -> None:
    certain = np.array([0, 0, 0, 1.0, 0, 0])  # 3 moves, of 4 left
    of = {(3, 3): 0, (2, 4): 2, (1, 20): 4, (4, 4): 10, (1, 2): 11, IMPOSSIBLE: 20}
    assert {budget: interval_score(budget, certain) for budget in of} == pytest.approx(of)
    hopeless = np.array([0, 0, 0, 0, 0, 1.0])
    assert interval_score(IMPOSSIBLE, hopeless) == interval_score((5, inf), hopeless) == 0
    assert interval_score((1, 20), hopeless) == 4
    assert (covered((1, 3), certain), covered((1, 20), hopeless), covered((1, 4), hopeless)) == (1, 1, 0)


@given(distributions)
def test_honesty_is_best(chances: np.ndarray) -> None:
    """The score is proper: no statement is better in expectation than the quantiles."""
    ends = range(len(chances))
    best = min(interval_score((low, high), chances) for low in ends for high in ends[low:])
    assert interval_score(honest_budget(chances), chances) == pytest.approx(best)


@given(distributions)
def test_honesty_earns_the_most_by_the_score(chances: np.ndarray) -> None:
    left = len(chances) - 2
    ends = range(len(chances))

    def expected(budget: Budget) -> float:
        return float(chances @ [score_reward(budget, left, to_go) for to_go in ends])

    best = max(expected((low, high)) for low in ends for high in ends[low:])
    assert expected(honest_budget(chances)) == pytest.approx(best)
    assert expected((0, inf)) == pytest.approx(0)
    assert all(score_reward((to_go, to_go), left, to_go) == 1 for to_go in ends)


@pytest.mark.parametrize(
    ("budget", "to_go", "reward"),
    [
        ((4, 4), 4, 1.8),
        ((3, 5), 4, 1.8 * (1 - 2 / 4)),
        ((1, 9), 4, 0),  # wider than the truth is long
        ((1, 3), 4, 0),
        (IMPOSSIBLE, 4, 0),
        (IMPOSSIBLE, 6, 0.2),
        ((6, 6), 6, 0.2),  # more than the moves left says the same
        ((1, 9), 6, 0),
    ],
)
def test_the_reward_of_bagen_by_hand(budget: Budget, to_go: int, reward: float) -> None:
    """As its ``compute_score`` returns them, with 5 moves left, so that 6 stands for no success."""
    assert bagen_reward(within(budget, 5), 5, to_go) == pytest.approx(reward)


def test_the_reward_of_bagen_is_not_proper() -> None:
    """Success takes 5 moves with a chance of 0.15: the truth is impossible in 80 of 100 cases, yet 5 earns more."""
    chances = np.array([0, 0, 0, 0, 0, 0.15, 0.85])
    of = {b: float(chances @ [bagen_reward(within(b, 5), 5, n) for n in range(7)]) for b in (IMPOSSIBLE, (5.0, 5.0))}
    assert of[5.0, 5.0] > of[IMPOSSIBLE]
    assert interval_score(IMPOSSIBLE, chances) < interval_score((5, 5), chances)


def test_a_turn_reports_what_its_reply_states_and_the_moves_left() -> None:
    env = begun(env_of("FrozenLake", 4, think=False, success_rate=1), CORRIDOR)
    found = [
        env.step(f"<budget>{stated}</budget><answer>Right</answer>")[-1]["budget"]
        for stated in ("[2, 3]", "impossible", "soon", "[1, 9]")
    ]
    assert found == [(2, 3, 4), (4, 4, 3), (0, 3, 2), (1, 2, 1)], "a malformed reply takes a turn too"


def env_of(name: str, left: int, **options: Any) -> TurnEnv:
    return make_turn(name, max_turns=left, max_actions=left, max_actions_per_turn=1, budget=True, **options)


def begun(env: TurnEnv, text: str) -> TurnEnv:
    env.reset(options={"level": env.game.level(env.game.parse(text))})
    return env


def test_moves_to_go_without_noise() -> None:
    env = begun(env_of("FrozenLake", 4, success_rate=1.0), CORRIDOR)
    assert moves_to_go(env.env, 4).tolist() == [0, 0, 0, 1, 0, 0]
    assert moves_to_go(env.env, 2).tolist() == [0, 0, 0, 1], "too few moves"
    assert moves_to_go(env.env, 3, "random")[3] == pytest.approx(1 / 64)
    assert "".join(map(str, plan_moves(env, 5))) == "222"


def test_moves_to_go_on_ice() -> None:
    """Up is best beside the goal: with a third it slips to the goal, else the player stays in the corner."""
    env = begun(env_of("FrozenLake", 3, size=3), LAKE)
    chances = moves_to_go(env.env, 3)
    assert chances == pytest.approx([0, 1 / 3, 2 / 9, 4 / 27, 8 / 27])


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban"])
@pytest.mark.parametrize("seed", range(4))
def test_moves_to_go_add_up_to_the_chance_of_success(name: str, seed: int) -> None:
    env = env_of(name, 6)
    env.reset(seed=seed)
    for policy, chance in (
        ("oracle", env.solution().success(*env.env.state, 6)),
        ("blind", blind_value(env.env, 6)[0]),
        ("random", random_value(env.env, 6)[0]),
    ):
        chances = moves_to_go(env.env, 6, policy)
        assert len(chances) == 8
        assert chances.sum() == pytest.approx(1)
        assert chances[:-1].sum() == pytest.approx(chance)


def test_replies_state_the_budget_of_optimal_play() -> None:
    env = begun(env_of("FrozenLake", 4, success_rate=1.0), CORRIDOR)
    said: list[object] = []

    def write(env: TurnEnv) -> str:
        text = reply_for(env, plan_moves(env, 1))
        said.append(env.parse(text).budget)
        return text

    assert play_turns(env, write)["success"]
    assert said == [(3, 3), (2, 2), (1, 1)]


def test_the_messages_ask_for_a_budget_only_where_it_is_wanted() -> None:
    env = begun(env_of("FrozenLake", 4, success_rate=1.0, example=True), CORRIDOR)
    reply = env.instructions.partition("Example of a reply: ")[2]
    assert env.parse(reply).problem is None
    assert "in 80 of 100 cases" in env.instructions
    plain = env_of("FrozenLake", 4, success_rate=1.0)
    plain.reset(seed=0)
    assert "<budget>[low, high] or impossible</budget><answer>action</answer>" in plain.message_text
    other = make_turn("FrozenLake")
    other.reset(seed=0)
    assert "budget" not in other.instructions + other.message_text


def test_a_budget_needs_a_form_that_has_one() -> None:
    with pytest.raises(
        ValueError, match="prompt='ragen-v1' has no budget in its replies; budget needs prompt='default'"
    ):
        TurnConfig(budget=True, prompt="ragen-v1")
    with pytest.raises(ValueError, match="budget"):
        TurnConfig(budget="yes")  # type: ignore[arg-type]
