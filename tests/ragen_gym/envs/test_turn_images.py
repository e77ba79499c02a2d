"""Turns whose messages hold pictures: the shape of messages, the spaces, and what does not change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from ragen_gym import make_turn
from ragen_gym.envs.messages import IMAGE, with_images
from ragen_gym.render.images import BoardImages
from ragen_gym.testing import check_env

LAKE = "P__O\n____\n_O__\n___G"
SEES = ("image", "both")


def image_parts(messages: Any) -> int:
    return sum(part["type"] == "image" for message in messages for part in message["content"])


@pytest.mark.parametrize("observation", SEES)
@pytest.mark.parametrize("prompt", ["default", "ragen-v1"])
def test_a_conversation_with_pictures_says_what_the_one_in_text_says(observation: str, prompt: str) -> None:
    env = make_turn("FrozenLake", observation=observation, prompt=prompt, success_rate=1)
    plain = make_turn("FrozenLake", prompt=prompt, success_rate=1)
    start: dict[str, Any] = {"seed": 3, "options": {"level": LAKE}}
    seen, info = env.reset(**start)
    text, plain_info = plain.reset(**start)
    reply = "<think>So.</think><answer>Right || Left</answer>"
    for turn in (1, 2, 3):
        assert seen in env.observation_space
        board = plain.board
        shown = IMAGE if observation == "image" else f"{board}\n{IMAGE}"
        assert seen["text"] == env.message_text == text.replace(board, shown)
        assert len(info["images"]) == 1
        np.testing.assert_array_equal(info["images"][0], seen["image"])
        np.testing.assert_array_equal(seen["image"], BoardImages(env.game).image(env.env.state[0]))
        assert image_parts(info["messages"]) == turn == len(env.images)
        assert [message["role"] for message in info["messages"]] == [m["role"] for m in plain_info["messages"]]
        assert "".join(part.get("text", IMAGE) for part in info["messages"][-1]["content"]) == seen["text"]
        assert all(part.get("text") != "" for message in info["messages"] for part in message["content"])
        assert plain.message_text == text
        seen, reward, *ends, info = env.step(reply)
        text, plain_reward, *plain_ends, plain_info = plain.step(reply)
        assert (reward, ends) == (plain_reward, plain_ends)
    assert plain.images == ()
    assert "images" not in plain_info


def test_a_reply_cannot_put_a_picture_into_the_conversation() -> None:
    env = make_turn("FrozenLake", observation="image")
    env.reset(seed=0)
    info = env.step("<think>\0 <image></think><answer>Up</answer>")[-1]
    assert image_parts(info["messages"]) == 2
    assert info["messages"][2]["content"] == [{"type": "text", "text": "<think>\0 <image></think><answer>Up</answer>"}]


def test_what_a_caller_changes_is_its_own() -> None:
    env = make_turn("FrozenLake", observation="image")
    seen, info = env.reset(seed=0)
    before = env.images[0].copy()
    seen["image"][:] = 0
    info["images"][0][:] = 0
    info["messages"][1]["content"].clear()
    assert (env.images[0] == before).all()
    assert image_parts(env.step("no")[-1]["messages"]) == 2


def test_pictures_go_into_the_image_parts_in_order() -> None:
    env = make_turn("Sokoban", observation="both")
    env.reset(seed=0)
    info = env.step("<think>a</think><answer>Up || Left</answer>")[-1]
    filled = with_images(info["messages"], env.images)
    pictures = [part["image"] for message in filled for part in message["content"] if part["type"] == "image"]
    assert all(a is b for a, b in zip(pictures, env.images, strict=True))
    assert image_parts(info["messages"]) == 2
    assert all("image" not in part for message in info["messages"] for part in message["content"])
    plain = make_turn("Sokoban").reset(seed=0)[1]["messages"]
    assert with_images(plain, ()) is plain


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_with_the_same_pictures(copied: Any) -> None:
    env = make_turn("FrozenLake", observation="image", image_palette="photographic", success_rate=1)
    env.reset(seed=1)
    twin = copied(env)
    reply = "<think>a</think><answer>Down</answer>"
    np.testing.assert_array_equal(env.step(reply)[0]["image"], twin.step(reply)[0]["image"])
    assert len(twin.images) == 2


def test_the_system_message_explains_what_is_seen() -> None:
    def instructions(name: str = "Sokoban", **options: Any) -> str:
        return make_turn(name, **options).instructions

    assert instructions(observation="both") == instructions()
    assert "Symbols:" not in instructions(observation="image")
    assert "Symbols: # wall" in instructions(observation="image", image_tiles="letters")
    assert "Symbols: # wall" in instructions(observation="image", grounding=True)
    assert "Symbols:" not in instructions(observation="image", grounding=True, state_format="sentences")
    assert "grey ground wall, white ground floor, blue ring target" in instructions(
        observation="image", image_tiles="shapes"
    )
    assert "a name in two lines is written as one word" in instructions("Bandit", observation="image")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban", "Bandit"])
def test_the_suites_own_checks(name: str) -> None:
    env = make_turn(name, observation="image", image_palette="photographic", image_tile_size=14)
    check_env(env, steps=20, processes=name == "FrozenLake")
