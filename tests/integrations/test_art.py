"""Rollouts in the real ART, with a model's stand-in behind its client."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS
from tests.integrations.library import export, needs, played, serving_replies

needs("art", "art")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8, "size": 5}  # a game's size is not a group's


def gathered(url: str, seeds: list[int], size: int) -> Any:
    import art

    from ragen_gym.integrations.art import groups

    async def gather() -> Any:
        model = art.Model(
            name="stand-in",
            project="test",
            inference_base_url=url,
            inference_api_key="none",
            inference_model_name="stand-in",
        )
        return await art.gather_trajectory_groups(groups(model, "FrozenLake", seeds, size, **OPTIONS))

    return asyncio.run(gather())


def test_groups_are_episodes_of_one_level_with_other_noise() -> None:
    from ragen_gym.integrations import noise_seed_of

    with serving_replies() as url:
        found = gathered(url, [3, 4], 8)
    assert [len(group.trajectories) for group in found] == [8, 8]
    assert not any(group.exceptions for group in found)
    expected = []
    for seed in (3, 4):
        for member in range(8):
            rollout = played(seed, noise_seed_of(f"0 {seed} {member}"), **OPTIONS)
            expected.append((seed, round(rollout.total, 6), len(rollout.messages) - 1))
    gained = [
        (trajectory.metadata["seed"], round(trajectory.reward, 6), len(trajectory.messages()))
        for group in found
        for trajectory in group.trajectories
    ]
    assert sorted(gained) == sorted(expected)
    for group in found:
        assert len({trajectory.metadata["level_id"] for trajectory in group.trajectories}) == 1
        for trajectory in group.trajectories:
            assert set(METRICS) <= set(trajectory.metrics)
            roles = [message["role"] for message in trajectory.messages()]
            assert roles[:3] == ["system", "user", "assistant"]
            assert roles[-1] == "assistant"


def test_the_exported_script_evaluates_a_served_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export(tmp_path / "package", "art", "--option", "max_turns=3")
    with serving_replies() as url:
        arguments = ["train.py", "--evaluate", url, "--model", "stand-in", "--levels", "4"]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    assert "success" in capsys.readouterr().out
