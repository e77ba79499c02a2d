"""The options of a turn: bounds, combinations that make no sense, and how options travel."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ragen_gym.core.settings import declared
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config


def test_every_option_is_declared_with_a_meaning() -> None:
    assert set(declared(TurnConfig)) == {each.name for each in fields(TurnConfig)}
    assert all(each.doc for each in declared(TurnConfig).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns is 0; it must be at least 1"),
        ({"max_actions_per_turn": 1.5}, "max_actions_per_turn is 1.5; it must be an integer, such as 5"),
        ({"think": "no"}, "think is 'no'; it must be true or false"),
        ({"format_penalty": float("inf")}, "format_penalty is inf; it must be finite"),
        ({"world_modelling": True, "think": False}, "they need think=True"),
        ({"grounding": True, "think": False}, "parts of the thinking"),
        ({"prompt": "ragen"}, "prompt is 'ragen'; choose one of default, ragen-v1"),
        ({"prompt": "ragen-v1", "grounding": True}, "prompt='ragen-v1' has no board in the thinking"),
        ({"state_reward": 0.5}, "state_reward=0.5 has no effect without grounding=True or world_modelling=True"),
        ({"state_score": "f1"}, "state_score='f1' has no effect .* or leave it at 'exact'"),
        ({"observation": "rgb"}, "observation is 'rgb'; choose one of text, image, both"),
        ({"image_tile_size": 4}, "image_tile_size is 4; it must be from 8 to 128"),
        ({"image_tile_size": 14}, "image_tile_size=14 has no effect without observation='image' or 'both'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TurnConfig(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    config = TurnConfig(max_turns=np.int64(3), format_penalty=np.float32(-0.5), think=np.bool_(False))  # type: ignore[arg-type]
    assert config == TurnConfig(max_turns=3, format_penalty=-0.5, think=False)
    assert (type(config.max_turns), type(config.format_penalty), type(config.think)) == (int, float, bool)


def test_what_begins_a_reply() -> None:
    assert TurnConfig().reply_opening == ""
    assert TurnConfig(prompt="ragen-v1").reply_opening == "<think>"
    assert TurnConfig(prompt="ragen-v1", think=False).reply_opening == "<answer>"


def test_options_replace_those_of_a_config() -> None:
    config = TurnConfig(max_turns=3, think=False)
    assert turn_config(config, {"max_turns": 4}) == TurnConfig(max_turns=4, think=False)
    assert turn_config(None, {}) == TurnConfig()
    with pytest.raises(ValueError, match=r"unknown option 'max_turn' of a turn. Did you mean max_turns\?"):
        turn_config(config, {"max_turn": 4})


def test_options_of_turns_and_of_environments_are_parted() -> None:
    turn, env = split_turn_options({"max_turns": 2, "size": 4, "think": False, "observation": "image", "split": "test"})
    assert (turn, env) == (
        {"max_turns": 2, "think": False, "observation": "image"},
        {"size": 4, "split": "test"},
    )
