"""The example reply of the system message: in the form that is asked for, and of no help with any board."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ragen_gym import make_turn
from ragen_gym.core.stats import wilson
from ragen_gym.core.turn_config import STATE_FORMATS
from ragen_gym.envs.policies import play_turns, random_reply
from ragen_gym.envs.reply import Problem
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import TABLE

LEVELS = 400


def example_of(env: TurnEnv) -> str:
    """The example reply, the last line of the system message and what of it stands in further lines."""
    return env.instructions[env.instructions.index("<", env.instructions.index("Example of a reply")) :]


def wordings(name: str) -> list[dict[str, Any]]:
    game = make_turn(name).game
    formats = STATE_FORMATS if game.layout == "grid" else ["text"]
    return [
        {},
        {"think": False},
        {"max_actions_per_turn": 1},
        {"max_actions_per_turn": 1, "think": False},
        {"observation": "image"},
        *({"vocabulary": vocabulary} for vocabulary in game.vocabularies),
        *({"grounding": True, "world_modelling": True, "state_format": each} for each in formats),
        {"world_modelling": True},
    ]


@pytest.mark.parametrize("name", TABLE)
def test_the_example_is_a_reply_without_fault_in_every_wording(name: str) -> None:
    for wording in wordings(name):
        env = make_turn(name, example=True, **wording)
        env.reset(seed=0)
        reply = env.parse(example_of(env))
        if env.game.layout == "arms":  # it names an arm of another bandit
            assert reply.problem is Problem.UNKNOWN_ACTION, wording
        else:
            assert reply.problem is None, wording
            assert set(reply.names) <= set(env.action_names)
        assert len(reply.names) == min(2, env.max_actions_per_turn)


@pytest.mark.parametrize("wording", [{}, {"max_actions_per_turn": 1}], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_playing_the_example_does_not_beat_random_play(name: str, wording: dict[str, Any]) -> None:
    env, rng = make_turn(name, example=True, **wording), np.random.default_rng(0)
    example = example_of(env)
    players: dict[str, Callable[[TurnEnv], str]] = {
        "example": lambda env: example,
        "random": lambda env: random_reply(env, rng),
    }
    solved = dict.fromkeys(players, 0)
    for seed in range(LEVELS):
        for player, reply in players.items():
            env.reset(seed=seed)
            solved[player] += bool(play_turns(env, reply)["success"])
    assert wilson(solved["example"], LEVELS).low <= solved["random"] / LEVELS


@pytest.mark.parametrize("name", ["Bandit", "BanditRev"])
def test_no_arm_of_any_split_is_named_by_the_example(name: str) -> None:
    every: list[dict[str, Any]] = [{}, {"names": "ragen-v1"}]
    for options in every:
        env = make_turn(name, example=True, **options)
        arms = {arm.casefold() for seed in range(300) for arm in _arms(env, seed)}
        example = env.instructions[env.instructions.index("Example") :].casefold()
        assert not arms & set(re.findall(r"\w+", example))


def _arms(env: TurnEnv, seed: int) -> tuple[str, ...]:
    env.reset(seed=seed)
    return env.action_names
