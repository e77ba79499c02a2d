"""Rewards shaped by the oracle's values: what they are, and that they keep the order of all policies."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.shaping import budget_rewards, shaped
from ragen_gym.envs.policies import reply_for

REGRET = Training(algo="ppo", credit="regret", gamma_turn=1.0)


@given(
    turns=st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6),
    gamma=st.floats(0, 1),
)
def test_the_discounted_return_changes_by_the_first_potential_alone(
    turns: list[tuple[float, float]], gamma: float
) -> None:
    rewards, potentials = zip(*turns, strict=True)
    found = algo.shaped_rewards(rewards, potentials, gamma)
    plain, changed = (sum(gamma**i * reward for i, reward in enumerate(each)) for each in (rewards, found))
    assert changed == pytest.approx(plain - potentials[0], abs=1e-9)
    with pytest.raises(ValueError, match="1 potentials do not fit"):
        algo.shaped_rewards((*rewards, 0.0), (1.0,))


def episode(rewards: tuple[float, ...], values: tuple[float | None, ...], failure: str | None = None) -> Trajectory:
    ends = tuple(range(len(rewards)))
    return Trajectory(
        ids=np.zeros(len(ends), np.int64),
        sampled=np.ones(len(ends), np.bool_),
        log_probs=np.zeros(len(ends), np.float32),
        turn_ends=ends,
        turn_rewards=rewards,
        terminated=True,
        failure=failure,
        turn_infos=tuple(TurnInfo("", 1, 1, True, value=value) for value in values),
    )


def test_an_episodes_turns_are_paid_what_chance_added_less_what_they_gave_away() -> None:
    """Played, not made up: the turn environment's own values, through the record of a trajectory."""
    config = with_settings(Config(), {"game": "FrozenLake", "training": {"algo": "ppo", "credit": "regret"}})
    env = make_game_env(config, "train")
    env.reset(options={"level": "P___\n____\n____\n___G"})
    rewards, infos, expected = [], [], []
    while not env.over:
        before = env.board
        _, reward, terminated, _, info = env.step(reply_for(env, [1]))
        turn = TurnInfo.of(info, before, env.board, terminated)
        assert turn
        rewards.append(reward)
        infos.append(turn)
        value = info["turn_value"]
        expected.append(value.chance.total - value.regret.total)
    made = replace(episode(tuple(rewards), (0.0,) * len(rewards)), turn_infos=tuple(infos))
    [found] = shaped([Trajectory.from_dict(made.to_dict())], REGRET)
    assert len(rewards) > 1
    assert found.turn_rewards == pytest.approx(expected, abs=1e-9)


def test_what_is_unknown_has_no_potential_and_a_failure_none_at_all() -> None:
    unknown, failed = episode((0.0, 1.0), (0.5, nan)), episode((1.0,), (None,), failure="engine_error: gone")
    assert [t.turn_rewards for t in shaped([unknown, failed], REGRET)] == [(-0.5, 1.0), (1.0,)]
    plain = [unknown, failed]
    assert shaped(plain, Training()) == plain


def test_values_are_recorded_only_where_they_are_asked_for() -> None:
    assert "value" not in episode((1.0,), (None,)).to_dict()["turn_infos"][0]
    assert episode((1.0,), (0.5,)).to_dict()["turn_infos"][0]["value"] == 0.5


def test_an_environment_that_does_not_say_what_its_states_are_worth() -> None:
    with pytest.raises(ValueError, match=r"training\.credit is 'regret', but the environment does not report"):
        shaped([episode((1.0,), (None,))], REGRET)


@pytest.mark.parametrize(("rule", "earned"), [("score", [1 - 2 / 4, 1 - 20 / 3]), ("bagen", [1.8 * (1 - 2 / 2), 0])])
def test_stated_budgets_earn_by_the_moves_that_followed(rule: str, earned: list[float]) -> None:
    """Two moves to a success: [1, 3] of 3 moves left, then impossible of 2. The return also holds their mean."""
    turns = TurnInfo("", 1, 1, True, budget=(1, 3, 3)), TurnInfo("", 1, 1, True, budget=(3, 3, 2))
    won = replace(episode((0.0, 1.0), (0.0, 0.0)), turn_infos=turns, success=True)
    won = Trajectory.from_dict(json.loads(json.dumps(won.to_dict())))
    assert won.turn_infos == turns
    lost, broken = replace(won, success=False), replace(won, failure="environment_error: x")
    settings = Training(budget_reward=rule, budget_weight=3.0, group_size=3, groups=1, filter="none")
    of_won, of_lost, _ = budget_rewards([won, lost, broken], settings)
    assert of_won == pytest.approx([1.5 * each for each in earned])
    hopeless = {"score": [1 - 12 / 4, 1.0], "bagen": [0.0, 0.2]}[rule]
    assert of_lost == pytest.approx([1.5 * each for each in hopeless])
    iteration = Iteration.score_and_filter(0, [won, lost, broken], ["FrozenLake"], settings, 0)
    returns = [each.total_reward for each in iteration.learned]
    assert returns[:2] == pytest.approx([1 + sum(of_won), 1 + sum(of_lost)])
    assert [each.total_reward for each in iteration.played] == [1, 1, 1], "the game's own rewards are recorded"
    assert iteration.figures(None)["budget_reward"] == pytest.approx((sum(of_won) + sum(of_lost)) / 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "replies state no budget"), ({"turns": {"budget": True}, "program": {"command": "x"}}, "own choice")],
)
def test_a_reward_of_budgets_needs_turns_that_state_them(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_settings(Config(), {"training": {"budget_reward": "score"}, **settings})
