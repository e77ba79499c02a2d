"""The page of replaced thoughts, made of its committed records."""

from __future__ import annotations

import shutil
from pathlib import Path

import benchmarks
from benchmarks.thoughts import MODELS, SEEDS, main
from ragen_gym.core.storage import read_json_lines

HERE = Path(benchmarks.__file__).parent


def test_the_page_is_made_of_its_records(tmp_path: Path) -> None:
    """A command that finds every record trains nothing."""
    shutil.copy(HERE / "thoughts.jsonl", tmp_path)
    assert main(["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "thoughts.md").read_text(encoding="utf-8") == (HERE / "thoughts.md").read_text(encoding="utf-8")
    assert (tmp_path / "thoughts.png").stat().st_size > 0
    assert not (tmp_path / "runs").exists()


def test_every_model_of_every_seed_is_measured_once() -> None:
    found = [(each["seed"], each["model"]) for each in read_json_lines(HERE / "thoughts.jsonl")]
    assert sorted(found) == sorted((seed, model) for seed in SEEDS for model in MODELS)
