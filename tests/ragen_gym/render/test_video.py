"""Gymnasium's wrappers that keep pictures: what they keep is the episode, frame by frame."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordVideo, RenderCollection
from gymnasium.wrappers.vector import RecordVideo as RecordBatchVideo
from moviepy import VideoFileClip

from ragen_gym import make_turn
from ragen_gym.games.registry import TABLE, GameSpec

ROWS = list(TABLE.values())
every_id = pytest.mark.parametrize("spec", ROWS, ids=[spec.name for spec in ROWS])


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def play_out(env: Any) -> int:
    """Play an episode as the oracle does; its steps."""
    env.reset(seed=0)
    for step in range(1, 100):
        _, _, terminated, truncated, _ = env.step(env.unwrapped.oracle_action(11 - step))
        if terminated or truncated:
            return step
    raise AssertionError("an episode without an end")


@every_id
def test_an_episode_is_collected_picture_by_picture(spec: GameSpec) -> None:
    env = RenderCollection(gymnasium.make(spec.id, render_mode="rgb_array", tile_size=17))
    steps = play_out(env)
    pictures: Any = env.render()
    assert len(pictures) == steps + 1
    assert {(picture.shape, picture.dtype) for picture in pictures} == {(pictures[0].shape, np.dtype(np.uint8))}
    assert all((a != b).any() for a, b in pairwise(pictures))


@every_id
def test_a_video_of_an_episode(spec: GameSpec, tmp_path: Path) -> None:
    made = gymnasium.make(spec.id, render_mode="rgb_array", tile_size=17)
    env: Any = RecordVideo(made, str(tmp_path / "videos"), episode_trigger=lambda _: True)
    steps = play_out(env)
    first = made.render()
    env.close()
    (path,) = tmp_path.rglob("*.mp4")
    with VideoFileClip(str(path)) as clip:
        assert clip.fps == made.metadata["render_fps"]
        assert clip.duration == pytest.approx((steps + 1) / clip.fps, abs=0.1)
        assert clip.size == [first.shape[1], first.shape[0]]  # type: ignore[union-attr]


def test_videos_of_turns_and_of_batches(tmp_path: Path) -> None:
    turns: Any = RecordVideo(make_turn("FrozenLake", render_mode="rgb_array"), str(tmp_path / "turns"))
    turns.reset(seed=0)
    turns.step("<think>Up.</think><answer>Up</answer>")
    turns.close()
    batch = gymnasium.make_vec("ragen/FrozenLake-v0", 4, render_mode="rgb_array")
    envs: Any = RecordBatchVideo(batch, str(tmp_path / "batch"), step_trigger=lambda step: step == 0, video_length=3)
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.ones(4, int))
    envs.close()
    assert {path.parent.name for path in tmp_path.rglob("*.mp4")} == {"turns", "batch"}
