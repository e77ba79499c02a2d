"""The page on training signals shows the runs that its record holds."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.experiments.spec import read
from benchmarks.training_signals import PICTURE, RUNS, draw, table

PAGE = PICTURE.with_suffix(".md")
RECORD = Path(__file__).parents[2] / "benchmarks" / "training_signals.json"


def test_the_table_and_the_picture_are_drawn_from_the_record(tmp_path: Path) -> None:
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    assert table(runs) in PAGE.read_text(encoding="utf-8")
    draw(runs, tmp_path / "drawn.png")
    with Image.open(PICTURE) as kept, Image.open(tmp_path / "drawn.png") as drawn:
        assert kept.size == drawn.size
        difference = abs(np.asarray(kept.convert("RGB"), float) - np.asarray(drawn.convert("RGB"), float))
    assert difference.mean() < 3  # another version of matplotlib places a label otherwise


def test_the_runs_are_of_experiments_and_are_what_the_page_calls_them() -> None:
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    assert runs.keys() == RUNS.keys()
    for name, (experiment, arm, seed) in RUNS.items():
        assert arm in [each.name for each in read(experiment).arms]
        assert runs[name]["run"] == f"{experiment}, {arm}, seed {seed}"
    ends = {name: np.mean(run["signals"]["success"][-5:]) for name, run in runs.items()}
    assert ends["learning"] > 3 * runs["learning"]["random"]
    assert max(ends["stuck"], ends["collapsing"]) < runs["stuck"]["random"] / 2
    assert runs["stuck"]["signals"]["return"][-1] > runs["stuck"]["signals"]["return"][0]
    assert max(runs["collapsing"]["signals"]["success"]) > 2 * runs["collapsing"]["random"]
