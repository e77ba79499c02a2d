"""Scripts that solve lakes without planning, on boards whose answer can be read off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import shortcuts as page
from benchmarks.shortcuts import applies, copied, differences, shortcuts, walked
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_gym.games.frozen_lake import FrozenLake

LAKE = FrozenLake(success_rate=1.0)


def board(*rows: str) -> bytes:
    return LAKE.parse("\n".join(rows))


def run(**settings: object) -> Config:
    options: Settings = {"env_options": {"beyond_blind": True}, "evaluation": {"levels": 12}}
    return with_settings(Config(), merged(merged(default_settings("FrozenLake"), options), settings))


@pytest.mark.parametrize(
    ("rows", "budget", "walker", "forward"),
    [
        (("P__G", "____", "____", "____"), 3, 1.0, 1.0),
        (("P__G", "____", "____", "____"), 2, 0.0, 0.0),
        (("P_OG", "_O__", "____", "____"), 9, 0.0, 1.0),  # a dead end nearer to the goal: the one is drawn back to it
        (("P_OG", "_O__", "____", "____"), 8, 0.0, 0.0),
        (("P_OO", "_O__", "_O__", "___G"), 6, 0.5, 0.5),  # of two cells as near as each other one is a dead end
        (("P_OO", "_O__", "_O__", "___G"), 8, 0.75, 1.0),  # back from it, the one may enter it again
    ],
)
def test_walkers(rows: tuple[str, ...], budget: int, walker: float, forward: float) -> None:
    lake = board(*rows)
    assert walked(LAKE, lake, budget, forward=False) == pytest.approx(walker)
    assert walked(LAKE, lake, budget, forward=True) == pytest.approx(forward)


def test_the_path_of_the_nearest_level_is_copied() -> None:
    lake = board("P_OG", "____", "____", "____")
    near = np.array([[[3, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]], np.uint8)
    far = np.array([[[3, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]]], np.uint8)
    assert copied(LAKE, lake, near, 10) == 1
    assert copied(LAKE, lake, far, 10) == 0, "straight into the hole"
    assert copied(LAKE, lake, np.concatenate([far, near]), 10) == 1
    assert copied(LAKE, lake, near, 4) == 0, "five moves are needed"
    assert differences(lake, np.concatenate([far, near])).tolist() == [4, 1]


def test_shortcuts_of_a_run() -> None:
    config = run(demonstrations={"episodes": 40})
    assert applies(config)
    rates = shortcuts(config)
    assert list(rates) == ["walker", "forward_walker", "nearest", "one_cell"]
    assert all(0 <= rate.rate <= 1 and rate.n == 12 for rate in rates.values())
    assert rates["forward_walker"].rate > rates["walker"].rate


def test_they_are_for_lakes_that_the_blind_script_loses() -> None:
    assert not applies(run(env_options={"beyond_blind": False}))
    assert not applies(run(env_options={"success_rate": 0.8}))
    assert not applies(with_settings(Config(), {"game": "Sokoban", "env_options": {"beyond_blind": True}}))


def test_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LAKES", page.LAKES[:1])
    assert page.main(["--levels", "8", "--episodes", "50", "--out", str(tmp_path)]) == 0
    written = (tmp_path / "shortcuts.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("| 4x4 | 80.0 % | 3 or more | 10 |") for line in written)
    kept = Path(page.__file__).with_suffix(".md").read_text(encoding="utf-8").splitlines()
    heads = [[line for line in lines if line.startswith("| lakes")] for lines in (kept, written)]
    assert heads[0] == heads[1]
    assert sum(line.startswith("| ") and "x" in line[:6] for line in kept) == 7
