"""What is played on a server is what is played here: the same observations, rewards and infos."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ragen_gym import Level, make_turn
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import Problem
from ragen_gym.games.registry import TABLE
from ragen_gym.serve import RemoteEnv, RemoteTurnEnv
from tests.ragen_gym.envs.test_vector import assert_same

ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TABLE),
    ("Sokoban", {"split": "test", "preset": "hard", "text_format": "coord"}),
    ("Sokoban", {"size": 8, "boxes": 2, "generator": "reverse_walk"}),
    ("FrozenLake", {"observation": "grid", "size": 9, "success_rate": 0.5, "text_format": "grid"}),
    ("FrozenLake", {"levels": ["P__\n___\n__G", "G__\n_O_\n__P"], "size": 3}),
    ("Bandit", {"pulls": 3, "names": (("Baker", "Pirate"), ("Nurse", "Gambler")), "max_episode_steps": 2}),
]
IDS = [f"{name}-{'-'.join(arguments)}" for name, arguments in ARGUMENTS]


@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS, ids=IDS)
def test_single_moves(server: str, name: str, arguments: dict[str, Any]) -> None:
    remote = RemoteEnv(server, name, **arguments)
    local = gymnasium.make(TABLE[name].id, **arguments)
    assert remote.observation_space == local.observation_space
    assert remote.action_space == local.action_space
    assert local.spec is not None
    assert remote.about["max_episode_steps"] == local.spec.max_episode_steps
    rng = np.random.default_rng(0)
    for reset in ({"seed": 5}, {}, {"seed": 5, "options": {"noise_seed": 8}}, {"options": {"noise_seed": 9}}):
        assert_same(remote.reset(**reset), local.reset(**reset))
        over = False
        while not over:
            action = rng.integers(local.action_space.n)  # type: ignore[attr-defined]
            mine, other = remote.step(action), local.step(action)
            assert_same(mine, other)
            assert_same(remote.action_masks(), local.get_wrapper_attr("action_masks")())
            over = mine[2] or mine[3]
    remote.close()


@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS, ids=IDS)
def test_whole_replies(server: str, name: str, arguments: dict[str, Any]) -> None:
    arguments = {k: v for k, v in arguments.items() if k not in ("max_episode_steps", "observation")}
    arguments |= {"max_turns": 4, "max_actions": 7, "format_penalty": -0.25}
    remote, local = RemoteTurnEnv(server, name, **arguments), make_turn(name, **arguments)
    assert remote.instructions == local.instructions
    assert remote.observation_space == local.observation_space
    rng = np.random.default_rng(1)
    for reset in ({"seed": 5}, {}, {"seed": 5, "options": {"noise_seed": 8}}):
        assert_same(remote.reset(**reset), local.reset(**reset))
        assert remote.action_names == local.action_names
        while not local.over:
            names = [local.action_names[i] for i in rng.integers(len(local.action_names), size=2)]
            replies = (f"<think>√ é</think><answer>{' || '.join(names)}</answer>", "nonsense", "<answer>Fly</answer>")
            reply = replies[rng.choice(3, p=[0.8, 0.1, 0.1])]
            assert_same(remote.step(reply), local.step(reply))
            assert remote.over == local.over
            assert remote.board == local.board
    remote.close()


def test_every_option_of_a_turn(server: str) -> None:
    options: dict[str, Any] = {"grounding": True, "world_modelling": True, "state_reward": 0.5, "format_penalty": -0.25}
    remote = RemoteTurnEnv(server, "FrozenLake", TurnConfig(max_turns=4), success_rate=1, **options)
    local = make_turn("FrozenLake", TurnConfig(max_turns=4), success_rate=1, **options)
    assert remote.instructions == local.instructions
    assert remote.config == local.config
    assert set(remote.about["budgets"]) == {each.name for each in fields(TurnConfig)}
    lake = {"level": "P___\n____\n____\n___G"}
    assert_same(remote.reset(seed=3, options=lake), local.reset(seed=3, options=lake))
    rewards = []
    for prediction in ("____", local.board):
        boards = f"<observation>{local.board}</observation><prediction>{prediction}</prediction>"
        for thinking in (boards, "without boards"):
            mine = remote.step(f"<think>{thinking}</think><answer>Left</answer>")
            assert_same(mine, local.step(f"<think>{thinking}</think><answer>Left</answer>"))
            rewards.append((mine[1], mine[-1]["reply"].problem))
    assert rewards == [(0.25, None), (-0.25, Problem.NO_STATE), (0.5, None), (-0.25, Problem.NO_STATE)]
    remote.close()
    with pytest.raises(ValueError, match="they need think=True"):
        RemoteTurnEnv(server, "FrozenLake", think=False, grounding=True)


def test_summaries_and_budgets(server: str) -> None:
    options: dict[str, Any] = {"summary": 2, "budget": True, "think": False}
    remote, local = RemoteTurnEnv(server, "FrozenLake", **options), make_turn("FrozenLake", **options)
    assert remote.observation_space == local.observation_space
    assert_same(remote.reset(seed=3), local.reset(seed=3))
    while not local.over:
        reply = "<budget>[1, 4]</budget><answer>Left</answer>"
        assert_same(remote.step(reply), local.step(reply))
    remote.close()


def test_seeds_that_numpy_drew(server: str) -> None:
    seed, noise_seed = np.random.default_rng(0).integers(9, size=2)
    reset: dict[str, Any] = {"seed": seed, "options": {"noise_seed": noise_seed}}
    for remote, local in (
        (RemoteEnv(server, "FrozenLake"), gymnasium.make("ragen/FrozenLake-v0")),
        (RemoteTurnEnv(server, "FrozenLake"), make_turn("FrozenLake")),
    ):
        assert_same(remote.reset(**reset), local.reset(**reset))
        remote.close()
    remote = RemoteEnv(server, "Sokoban")
    with pytest.raises(TypeError, match="cannot be sent to a server: it is not JSON"):
        remote.reset(options={"noise_seed": {4, 5}})
    remote.close()


def test_levels_of_ones_own(server: str) -> None:
    level = Level("FrozenLake", "P___\n____\n____\n___G")
    for given in (level, level.text):
        env = RemoteEnv(server, "FrozenLake")
        observation, info = env.reset(options={"level": given})
        assert (observation, info["level_id"]) == (level.text, level.id)
        assert env.level == level
        env.close()


@pytest.mark.parametrize("name", ["FrozenLake", "Bandit"])
def test_pictures(server: str, name: str) -> None:
    remote = RemoteEnv(server, name, render_mode="rgb_array", tile_size=16)
    local = gymnasium.make(TABLE[name].id, render_mode="rgb_array", tile_size=16)
    remote.reset(seed=1)
    local.reset(seed=1)
    np.testing.assert_array_equal(remote.render(), local.render())
    remote.step(1)
    local.step(1)
    np.testing.assert_array_equal(remote.render(), local.render())
    remote.close()


def test_gymnasium_accepts_the_clients(server: str) -> None:
    for env in (RemoteEnv(server, "Sokoban"), RemoteTurnEnv(server, "FrozenLake"), RemoteEnv(server, "Bandit")):
        check_env(env, skip_render_check=True)
        env.close()
        env.close()


def test_files_stay_here(server: str) -> None:
    given: tuple[Any, ...] = ("levels.txt", Path("levels.txt"), [], 3)
    for levels in given:
        with pytest.raises(ValueError, match="a server reads no files"):
            RemoteEnv(server, "Sokoban", levels=levels)


def test_what_is_no_option_is_refused(server: str) -> None:
    """Such as a field of the request, which took the place of an argument."""
    env = RemoteEnv(server, "FrozenLake")
    for call, words in (
        (lambda: env.reset(seed=0, options={"seed": 5}), "option='seed' is not known: choose one of 'level'"),
        (lambda: env.reset(seed=1.5), "seed.*valid integer"),  # type: ignore[arg-type]
        (lambda: RemoteTurnEnv(server, "FrozenLake", 3), "3 is not a TurnConfig"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=words):
            call()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("observation", ["image", "both"])
@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban", "Bandit"])
def test_turns_with_pictures(server: str, name: str, observation: str) -> None:
    options: dict[str, Any] = {"observation": observation, "image_palette": "photographic", "image_tile_size": 14}
    remote, local = RemoteTurnEnv(server, name, **options), make_turn(name, **options)
    assert remote.observation_space == local.observation_space
    rng = np.random.default_rng(1)
    for seed in (5, None):
        assert_same(remote.reset(seed=seed), local.reset(seed=seed))
        while not local.over:
            names = [local.action_names[i] for i in rng.integers(len(local.action_names), size=2)]
            reply = f"<think>√</think><answer>{' || '.join(names)}</answer>"
            mine = remote.step(reply)
            assert_same(mine, local.step(reply))
            assert mine[0] in remote.observation_space
            assert len(remote.images) == len(local.images)
    remote.close()
