"""Pages are made of the records beside them, by commands that measure nothing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import (
    budget,
    credit_page,
    exact,
    exact_episodes,
    hacking,
    ice,
    leaderboard,
    learnable,
    paper_model,
    real_model,
    recipes,
    rollout,
    speed,
    thoughts,
    tokenizers,
    trials,
    vision,
    widening,
    wordings,
)
from ragen_gym.core.storage import read_json_lines

HERE = Path(benchmarks.__file__).parent


def name_of(measurement: Any) -> str:
    return str(measurement.__name__.rpartition(".")[2])


RESULTS = (
    *(budget, exact, exact_episodes, leaderboard, learnable, paper_model, real_model, recipes),
    *(rollout, speed, tokenizers, trials, vision, wordings),
)


@pytest.mark.parametrize("measurement", RESULTS, ids=name_of)
def test_a_page_is_made_of_its_results(measurement: Any) -> None:
    name = name_of(measurement)
    results = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert measurement._page(results) == (HERE / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "measurement"), [("credit", credit_page), ("hacking", hacking), ("ice", ice), ("widening", widening)]
)
def test_a_page_is_made_of_its_records(name: str, measurement: Any, tmp_path: Path) -> None:
    measurement.write_page(tmp_path, read_json_lines(HERE / f"{name}.jsonl"))
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == (HERE / f"{name}.md").read_text(encoding="utf-8")
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_nothing_that_is_recorded_is_trained_again(tmp_path: Path) -> None:
    shutil.copy(HERE / "thoughts.jsonl", tmp_path)
    assert thoughts.main(["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "thoughts.md").read_text(encoding="utf-8") == (HERE / "thoughts.md").read_text(encoding="utf-8")
    assert not (tmp_path / "runs").exists()
