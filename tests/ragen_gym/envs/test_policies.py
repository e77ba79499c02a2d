"""The reference policies, and the replies that they write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen_gym import StepEnv, make_turn
from ragen_gym.envs.policies import (
    POLICIES,
    action_budget,
    expected_rewards,
    generator_draw,
    hashed_draw,
    plan_moves,
    play_episode,
    play_turns,
    random_reply,
    reply_for,
)
from ragen_gym.envs.reply import parse_reply
from ragen_gym.games.registry import TABLE


def successes(name: str, policy: str, episodes: int) -> int:
    env, rng = StepEnv(name), np.random.default_rng(0)
    chosen, count = POLICIES[policy](generator_draw(rng)), 0
    for episode in range(episodes):
        env.reset(seed=0 if episode == 0 else None)
        count += play_episode(env, chosen, action_budget(env)).success
    return count


@pytest.mark.parametrize("name", TABLE)
def test_optimal_play_is_no_worse_than_greedy_and_random_play(name: str) -> None:
    random, greedy, oracle = (successes(name, policy, 40) for policy in ("random", "greedy", "oracle"))
    assert oracle >= max(random, greedy, 10)


def test_hashed_draws_are_uniform_and_do_not_depend_on_order() -> None:
    draw = hashed_draw(7)
    drawn = [draw(4, left) for left in range(4000)]
    assert drawn == [hashed_draw(7)(4, left) for left in range(4000)]
    assert np.bincount(drawn, minlength=4) == pytest.approx([1000] * 4, abs=120)  # 4 standard deviations are 110


def test_expected_rewards_of_known_states() -> None:
    env = StepEnv("FrozenLake", success_rate=0.5, size=3)
    env.reset(seed=0, options={"level": "P_G\n___\n___"})
    assert expected_rewards(env) == [0.0] * 4
    env.reset(seed=0, options={"level": "_PG\n___\n___"})
    assert expected_rewards(env) == pytest.approx([0.0, 0.25, 0.5, 0.25])
    env = StepEnv("Bandit", low=0.15, high_prob=0.1525)
    env.reset(seed=0)
    assert sorted(expected_rewards(env)) == pytest.approx([0.15, 0.1525])


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(
    "options",
    [{}, {"think": False}, {"grounding": True}, {"grounding": True, "world_modelling": True, "state_reward": 1}],
)
def test_replies_without_fault(name: str, options: dict[str, Any]) -> None:
    env, rng = make_turn(name, **options), np.random.default_rng(0)
    for seed in range(5):
        env.reset(seed=seed)
        actions = plan_moves(env, env.max_actions_per_turn)
        text = reply_for(env, actions, "It is near.")
        reply = parse_reply(text, env.action_names, think=env.config.think, parts=env.config.state_parts)
        assert (reply.problem, list(reply.actions)) == (None, actions)
        info = env.step(text)[4]
        if env.config.grounding:
            assert info["observation_right"]
        if env.config.world_modelling and not env.game.stochastic:
            assert info["prediction_right"]
        env.reset(seed=seed)
        info = play_turns(env, lambda env: random_reply(env, rng))
        assert env.over
        assert info["reply"].problem is None


@pytest.mark.parametrize("moves", [1, 3, 5])
def test_plans_are_optimal_where_nothing_is_random(moves: int) -> None:
    env = make_turn("Sokoban", max_actions_per_turn=5)
    env.reset(seed=0)
    info = play_turns(env, lambda env: reply_for(env, plan_moves(env, moves)))
    assert info["success"] or info["turn"] == env.max_turns
    assert all(len(plan_moves(env, moves, 1.0, np.random.default_rng(0))) <= moves for _ in [env.reset(seed=0)])
