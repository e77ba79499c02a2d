"""The page on training signals shows the runs that its record holds."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.experiments.spec import read
from benchmarks.training_signals import PAGE, RUNS, SIGNALS, TABLE, draw, table

RECORD = Path(__file__).parents[2] / "benchmarks" / "training_signals.json"


def test_the_table_and_the_pictures_are_drawn_from_the_record(tmp_path: Path) -> None:
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    text = PAGE.read_text(encoding="utf-8")
    assert table(runs) in text
    draw(runs, tmp_path)
    for signal in SIGNALS:
        name = f"signal-{signal}.png"
        assert f"]({name})" in text
        with Image.open(PAGE.parent / name) as kept, Image.open(tmp_path / name) as drawn:
            assert kept.size == drawn.size
            difference = abs(np.asarray(kept.convert("RGB"), float) - np.asarray(drawn.convert("RGB"), float))
        assert difference.mean() < 4  # another version of matplotlib places a label otherwise


def test_the_runs_are_of_the_table_and_are_what_the_page_calls_them() -> None:
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    assert runs.keys() == RUNS.keys()
    assert list(RUNS) == [arm.name for arm in read(str(TABLE)).arms]
    assert {name: run["seed"] for name, run in runs.items()} == RUNS
    ends = {name: np.mean(run["signals"]["success"][-5:]) for name, run in runs.items()}
    assert ends["learning"] > 3 * runs["learning"]["random"]
    assert max(ends["stuck"], ends["collapsing"]) < runs["stuck"]["random"] / 2
    assert runs["stuck"]["signals"]["return"][-1] > runs["stuck"]["signals"]["return"][0]
    assert max(runs["collapsing"]["signals"]["success"]) > 2 * runs["collapsing"]["random"]
