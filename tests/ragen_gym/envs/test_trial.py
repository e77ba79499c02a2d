"""Trials: several attempts at one level with hidden rules, as an environment and as a text task."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from ragen_gym import TaskEnv, TrialEnv
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.policies import play_turns
from ragen_gym.testing import check_task

ONE_MOVE = TurnConfig(think=False, max_turns=4, max_actions=4, max_actions_per_turn=1)
LAKE: dict[str, Any] = {"game": "FrozenLake", "size": 3, "min_path": 2, "success_rate": 1.0}
NAME = "ragen_gym.tasks:TrialEnv"


def lake(turns: TurnConfig = ONE_MOVE, **options: Any) -> TrialEnv:
    return TrialEnv(turn_config=turns, **{**LAKE, **options})


def played(env: TrialEnv, write: Callable[[], str]) -> tuple[list[str], list[float], dict[str, Any]]:
    """Messages, rewards and the last information of a trial from here."""
    messages, rewards, over, info = [], [], False, dict[str, Any]()
    while not over:
        message, reward, over, _, info = env.step(write())
        messages.append(message)
        rewards.append(reward)
    return messages, rewards, info


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffled": True}, {"hidden_symbols": True}, {"reflect": True}, {"unknown": {"success_rate": [0.4, 1]}}],
)
def test_gymnasium_and_the_suite_accept_it(options: dict[str, Any]) -> None:
    check_env(lake(**options), skip_render_check=True)
    check_task(NAME, levels=40, **LAKE, **options)


def test_attempts_share_the_level_and_the_world() -> None:
    env = lake(shuffled=True)
    first, info = env.reset(seed=5)
    messages, _, last = played(env, lambda: "<answer>Up</answer>")
    begun = [message for message in [first, *messages] if "Attempt " in message]
    assert [f"Attempt {n} of 3." in message for n, message in enumerate(begun, start=1)] == [True] * 3
    assert first.replace("Attempt 1", "Attempt 2") in begun[1], "the second attempt begins as the first did"
    boards = [message.split("\n")[2:5] for message in messages if "Attempt" not in message]
    assert boards[:3] == boards[3:6], "without slip the same name does the same in every attempt"
    assert last["successes"] == (last["success"],) * 3
    assert last["level_id"] == info["level_id"]
    with pytest.raises(ResetNeeded, match="the trial is over"):
        env.step("x")


def test_the_seed_draws_every_world_and_the_noise_seed_none() -> None:
    env = lake(shuffled=True)
    orders: dict[tuple[int, ...], int] = {}
    for seed in range(300):
        _, info = env.reset(seed=seed, options={"noise_seed": 9})
        orders.setdefault(env.env.world.meanings, 0)
        orders[env.env.world.meanings] += 1
        assert env.reset(seed=seed, options={"noise_seed": 8})[1]["level_id"] == info["level_id"]
    assert len(orders) == 24
    assert max(orders.values()) < 30


def test_a_name_does_what_the_world_says() -> None:
    env = lake(shuffled=True)
    for seed in range(20):
        env.reset(seed=seed)
        before, names = env.env.env.state, env.env.env.action_names
        env.step("<answer>Left</answer>")
        meant = env.env.world.meanings[names.index("Left")]
        game = env.env.game
        board, numbers = bytearray(before[0]), list(before[1])
        outcome = game.rule(board, numbers, meant, 0.0, game.params)[1]
        assert outcome or env.env.env.state == (bytes(board), tuple(numbers))


def test_a_tile_looks_as_the_world_says() -> None:
    env, plain = lake(hidden_symbols=True, split="test"), lake(split="test")
    looks = set()
    for seed in range(60):
        hidden, true = env.reset(seed=seed)[0].split("\n")[2:5], plain.reset(seed=seed)[0].split("\n")[2:5]
        looks.add(env.env.world.symbols)
        meant = {shown: tile for a, b in zip(hidden, true, strict=True) for shown, tile in zip(a, b, strict=True)}
        assert [[meant[shown] for shown in row] for row in hidden] == [list(row) for row in true]
        posterior = dict(env.values().prior.posterior())
        assert posterior[env.values().worlds.index(env.env.world)] > 0
        assert len(posterior) < 24, "a board of one player and one goal rules most worlds out"
    assert len(looks) > 15


def test_the_belief_of_a_first_board_is_by_the_game_that_draws_it() -> None:
    env = lake(hidden_symbols=True, beyond_blind=True, unknown={"success_rate": [1.0, 0.2]})
    for seed in range(60):  # with slip the blind script wins some of these lakes, which no such game would draw
        env.reset(seed=seed)
        chances = dict(env.values().prior.posterior())
        assert chances[env.values().worlds.index(env.env.world)] > 0


def test_values_of_an_earlier_trial_are_let_go() -> None:
    env = lake(shuffled=True)
    env.reset(seed=0)
    earlier = weakref.ref(env.values())
    assert env.values().informed.rewards.sum() > 0
    env.reset(seed=1)
    gc.collect()
    assert earlier() is None


def test_noise_differs_between_attempts_and_repeats_with_its_seed() -> None:
    env = lake(success_rate=0.4, attempts=8)
    runs = []
    for noise in (1, 1, 2):
        env.reset(seed=3, options={"noise_seed": noise})
        runs.append(played(env, lambda: "<answer>Up</answer>")[0])
    assert runs[0] == runs[1] != runs[2]
    attempts = "\n".join(runs[0]).split("Attempt ")
    assert len({attempt.partition("\n")[2] for attempt in attempts[1:]}) > 1


def test_before_the_first_trial_there_is_nothing_to_ask() -> None:
    env = lake()
    for ask in (env.values, env.belief, env.optimal_reply, lambda: env.random_reply(np.random.default_rng(0))):
        with pytest.raises(ResetNeeded, match="no trial was started"):
            ask()


def test_a_reflection_takes_a_turn_and_plays_nothing() -> None:
    env, plain = lake(reflect=True), lake()
    for each in (env, plain):
        each.reset(seed=1)
    replies = iter(["<answer>Up</answer>"] * 4 + ["I learned nothing."] + ["<answer>Up</answer>"] * 20)
    messages, rewards, _ = played(env, lambda: next(replies))
    _, without, _ = played(plain, lambda: "<answer>Up</answer>")
    assert len(messages) <= env.max_turns == 3 * 4 + 2
    asked = [place for place, message in enumerate(messages) if "write what you have learned" in message]
    assert len(asked) == 2
    assert all(messages[place + 1].startswith("Attempt ") and rewards[place + 1] == 0 for place in asked)
    assert sum(rewards) == sum(without)


def test_rewards_of_later_attempts_are_discounted() -> None:
    env = lake(discount=0.5)
    env.reset(seed=0)
    _, rewards, info = played(env, env.optimal_reply)
    assert info["successes"] == (True,) * 3, "nothing is hidden here"
    assert [reward for reward in rewards if reward] == [1, 0.5, 0.25]
    assert "count 0.5 times" in env.instructions


@pytest.mark.parametrize(
    "options",
    [
        LAKE | {"shuffled": True},
        {"game": "Bandit", "low": 0.25, "attempts": 5, "shuffled": True, "unknown": {"high_prob": [0.05, 0.45]}},
        LAKE | {"hidden_symbols": True, "frozen_prob": 0.4, "success_rate": 0.8, "split": "test"},
    ],
    ids=["lake", "bandit", "symbols"],
)
def test_optimal_replies_earn_the_exact_optimum(options: dict[str, Any]) -> None:
    env, trials = TrialEnv(turn_config=ONE_MOVE, **options), 120
    earned, exact = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        env.reset(seed=trial, options={"noise_seed": trial})
        exact[trial] = env.values().value
        earned[trial] = sum(played(env, env.optimal_reply)[1])
    standard_error = (earned - exact).std() / trials**0.5
    assert abs((earned - exact).mean()) < 4 * standard_error


def test_malformed_replies_cost_a_turn_and_the_belief_goes_on() -> None:
    env = lake(shuffled=True)
    env.reset(seed=2)
    faulty = iter([False, True, False, True] + [False] * 9)
    _, rewards, _ = played(env, lambda: "?" if next(faulty) else env.optimal_reply())
    assert sum(reward == pytest.approx(-0.1) for reward in rewards) == 2
    assert len(env.belief().possible) < 24


def test_without_single_moves_there_is_no_oracle() -> None:
    task = TaskEnv(NAME, TurnConfig(), **LAKE, shuffled=True)
    assert not task.has_oracle
    assert task.max_turns == 15
    assert not TaskEnv(NAME, ONE_MOVE, **LAKE, oracle=False).has_oracle
    task.reset(seed=0)
    rng = np.random.default_rng(0)
    assert play_turns(task, lambda env: env.random_reply(rng))["turn"] <= 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "attempts=0 must be an integer from 1 to 100"),
        ({"discount": 1.5}, "discount=1.5 must be a number from 0 to 1"),
        ({"shuffled": "no"}, "shuffled='no' must be True or False"),
        ({"hidden_symbols": 1}, "hidden_symbols=1 must be True or False"),
        ({"hidden_symbols": True, "game": "Bandit"}, "needs chances of levels, which Bandit does not give"),
        ({"hidden_symbols": True, "text_format": "coord"}, "names the tiles in words"),
        ({"hidden_symbols": True, "levels": ["PG_\n___\n___"]}, "levels of the generator"),
        ({"unknown": 3}, "unknown=3 is not a table; give such as"),
        ({"unknown": {"success_rate": 0.5}}, "success_rate needs a list of two values or more"),
        ({"unknown": {"success_rate": [0.5, 0.5]}}, "two play alike"),
        ({"unknown": {"min_path": [1, 2]}}, "two play alike"),
        ({"unknown": {"size": [3, 4]}}, "changes the size of the boards"),
        ({"game": "Bandit", "unknown": {"low": [0.1, 0.2]}}, "the instructions tell it"),
        ({"unknown": {"slip": [0.1, 0.2]}}, "no option 'slip'"),
        ({"game": "Chess"}, "not a game of this suite"),
        ({"regret": True}, "regret is of one episode"),
        ({"turn_config": {"max_turns": 4}}, "{'max_turns': 4} is not a TurnConfig: give"),
        ({"turn_config": TurnConfig(observation="image")}, "a trial is text alone"),
        ({"turn_config": TurnConfig(budget=True)}, "budget=True asks what only known rules tell"),
        ({"turn_config": TurnConfig(world_modelling=True)}, "world_modelling=True asks what only known rules tell"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    own = {} if options.get("game") == "Bandit" else LAKE
    with pytest.raises(ValueError, match=message):
        TrialEnv(**{"turn_config": ONE_MOVE, **own, **options})
    env = lake()
    with pytest.raises(ValueError, match="option"):
        env.reset(seed=0, options={"level": "G"})
