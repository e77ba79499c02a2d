"""Rewards shaped by the oracle's values: what they are, and that they keep the order of all policies."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.iteration import shaped
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
