"""The batch as a ``VecEnv`` of Stable-Baselines3: what ``make_vec_env`` returns, and what the library does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    VecEnv,
    VecMonitor,
)

from ragen_gym import make_turn
from ragen_gym.integrations.sb3 import BatchVecEnv
from ragen_gym.wrappers import BatchFlatSymbols, BatchOneHotPlanes, FlatSymbols, OneHotPlanes

N = 5
SINGLE: dict[str, Callable[[Any], Any]] = {"": lambda env: env, "flat": FlatSymbols, "planes": OneHotPlanes}
BATCH: dict[str, Callable[[Any], Any]] = {"": lambda env: env, "flat": BatchFlatSymbols, "planes": BatchOneHotPlanes}
#: id, view, arguments
GAMES: list[tuple[str, str, dict[str, Any]]] = [
    ("FrozenLake", "flat", {"observation": "grid", "split": "train"}),
    ("Sokoban", "planes", {"observation": "grid", "preset": "easy"}),
    ("Bandit", "", {"observation": "grid"}),
    ("FrozenLake", "", {"observation": "rgb", "tile_size": 9}),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def loop(name: str, view: str, arguments: dict[str, Any], seed: int | None = 3) -> VecEnv:
    """The library's own way: single environments, one after another."""
    return make_vec_env(lambda: SINGLE[view](gymnasium.make(f"ragen/{name}-v0", **arguments)), N, seed=seed)


def batch(name: str, view: str, arguments: dict[str, Any], seed: int | None = 3, n: int = N) -> BatchVecEnv:
    made = gymnasium.make_vec(f"ragen/{name}-v0", n, autoreset_mode="SameStep", **arguments)
    env = BatchVecEnv(BATCH[view](made))
    if seed is not None:
        env.seed(seed)
    return env


def assert_same(mine: Any, other: Any) -> None:
    """Equal in value and type; the seconds of an episode differ, and ``is_success`` is the batch's own."""
    if isinstance(other, dict):
        assert mine.keys() - {"is_success"} == other.keys()
        for key in other.keys() - {"t"}:
            assert_same(mine[key], other[key])
    elif isinstance(other, list | tuple):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            assert_same(one, two)
    else:
        assert type(mine) is type(other)
        if isinstance(other, np.ndarray):
            assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


def assert_plays_the_same(mine: VecEnv, other: VecEnv, steps: int = 150) -> int:
    """The same episodes from the next reset on; how many of them end."""
    assert (mine.observation_space, mine.action_space) == (other.observation_space, other.action_space)
    assert_same(mine.reset(), other.reset())
    rng, ended = np.random.default_rng(0), 0
    for _ in range(steps):
        assert_same(mine.reset_infos, other.reset_infos)
        assert_same(mine.env_method("action_masks"), other.env_method("action_masks"))
        actions = rng.integers(other.action_space.n, size=N)  # type: ignore[attr-defined]
        one, two = mine.step(actions), other.step(actions)
        assert_same(one, two)
        ended += int(two[2].sum())
    return ended


@pytest.mark.parametrize(("name", "view", "arguments"), GAMES)
def test_it_is_make_vec_env_s(name: str, view: str, arguments: dict[str, Any]) -> None:
    mine, other = batch(name, view, arguments), loop(name, view, arguments)
    assert assert_plays_the_same(mine, other) > 2 * N
    assert_plays_the_same(mine, other, 5)  # a reset without a seed goes on
    for env in (mine, other):
        env.seed(9)
        env.set_options({"noise_seed": 4})
    assert_plays_the_same(mine, other, 20)
    assert_plays_the_same(mine, other, 5)  # the options count once


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (PPO, {"n_steps": 32, "batch_size": 80, "n_epochs": 1}),
        (MaskablePPO, {"n_steps": 32, "batch_size": 80, "n_epochs": 1}),
        (A2C, {}),
        (DQN, {"learning_starts": 50}),
    ],
)
def test_training_is_the_same_and_shows_returns(algorithm: Any, settings: dict[str, Any]) -> None:
    weights, returns, logged = [], [], {}
    for make in (batch, loop):
        model = algorithm("MlpPolicy", make(*GAMES[0]), seed=0, device="cpu", **settings)
        model.learn(320)
        weights.append(torch.nn.utils.parameters_to_vector(model.policy.parameters()))
        returns.append([(episode["r"], episode["l"]) for episode in model.ep_info_buffer])
        logged[make] = list(model.ep_success_buffer)
    assert torch.equal(*weights)
    assert returns[0] == returns[1] != []
    assert len(logged[batch]) == len(returns[0])  # which becomes rollout/success_rate
    assert 0 < sum(logged[batch]) < len(logged[batch])


def test_it_counts_as_monitored() -> None:
    env = batch(*GAMES[0])
    assert env.env_is_wrapped(Monitor) == [True] * N
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False] * N
    model = PPO("MlpPolicy", env, device="cpu", seed=0)
    rewards = [evaluate_policy(model, make(*GAMES[0]), 20, return_episode_rewards=True) for make in (batch, loop)]
    assert_same(rewards[0], rewards[1])
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(env)


def test_what_is_asked_of_each_environment() -> None:
    env = batch(*GAMES[0])
    with pytest.raises(ResetNeeded, match="call reset"):
        env.env_method("action_masks")
    env.reset()
    masks = env.env_method("action_masks", indices=[1, 3])
    assert [(mask.shape, mask.dtype) for mask in masks] == [((4,), np.bool_)] * 2
    np.testing.assert_array_equal(masks, get_action_masks(env)[[1, 3]])
    np.testing.assert_array_equal(env.get_attr("action_masks", 2)[0](), get_action_masks(env)[2])
    assert env.get_attr("text_format", [0, 1]) == ["grid"] * 2
    assert env.get_attr("observation_space") == [env.observation_space] * N
    assert not env.has_attr("lives")
    for ask in (lambda: env.env_method("reset"), env.get_attr("reset")[0], lambda: env.get_attr("lives")):
        with pytest.raises(AttributeError):
            ask()
    with pytest.raises(AttributeError, match="make it again with other arguments"):
        env.set_attr("split", "test")


# Masks


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban", "LargeSokoban", "Bandit"])
def test_masks_are_found_through_wrappers(name: str) -> None:
    env = FlatSymbols(gymnasium.make(f"ragen/{name}-v0", observation="grid"))
    assert is_masking_supported(env)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.get_wrapper_attr("action_masks")()
    _, info = env.reset(seed=1)
    over = False
    while not over:
        mask = get_action_masks(env)
        assert (mask.dtype, mask.shape) == (np.bool_, (env.action_space.n,))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(mask, info["action_mask"])
        _, _, terminated, truncated, info = env.step(int(mask.argmax()))
        over = terminated or truncated
    MaskablePPO("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(16)


# Refusals


@pytest.mark.parametrize("wrap", [lambda env: env, BatchFlatSymbols])
@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO, DQN])
def test_a_batch_is_refused_with_what_to_give_instead(algorithm: Any, wrap: Callable[[Any], Any]) -> None:
    env = wrap(gymnasium.make_vec("ragen/FrozenLake-v0", 2, observation="grid"))
    with pytest.raises(ValueError, match=r"for Stable-Baselines3: ragen_gym.integrations.sb3.BatchVecEnv\(env\)"):
        algorithm("MlpPolicy", env)


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO, A2C, DQN])
def test_text_is_refused_with_what_to_do(algorithm: Any) -> None:
    for env in ("ragen/FrozenLake-v0", gymnasium.make("ragen/Bandit-v0"), make_turn("Sokoban")):
        with pytest.raises(ValueError, match=r"observations are text.*observation='grid'.*FlatSymbols"):
            algorithm("MlpPolicy", env)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make_vec("ragen/FrozenLake-v0", 2, observation="grid"),
        lambda: gymnasium.make_vec("ragen/FrozenLake-v0", 2, autoreset_mode="SameStep"),
        lambda: gymnasium.make("ragen/FrozenLake-v0", observation="grid"),
    ],
)
def test_what_is_no_batch_of_numbers_says_how_to_make_one(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r'SameStep that shows numbers: gymnasium.make_vec.*observation="grid"'):
        BatchVecEnv(make())
