"""Gymnasium's wrappers that keep pictures: what they keep is the episode, frame by frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import RecordVideo
from moviepy import VideoFileClip

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
