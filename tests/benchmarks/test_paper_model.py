"""The page of the paper's class of model: runs as far as they came."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import paper_model
from ragen_agent.config import Config, with_settings
from ragen_agent.run.run_folder import RunFolder

HERE = Path(paper_model.__file__).parent
HALF = {"rate": 0.5, "low": 0.25, "high": 0.75, "n": 16}


def test_a_run_that_was_stopped_is_said_to_be_so(tmp_path: Path) -> None:
    config = with_settings(Config(), {"game": "Bandit", "training": {"iterations": 9}, "warm_start": {"epochs": 0}})
    run = RunFolder.create(tmp_path / "run", config)
    run.write_summary({"before": HALF, "random": HALF})
    figures = dict.fromkeys(paper_model.FIGURES, 0.5)
    lines = [json.dumps({"iteration": number, **figures}) + "\n" for number in range(8)]
    (run.path / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    run.save_state({"iteration": 7})  # the eighth was not saved
    (run.path / "eval-7").mkdir()
    played = {"splits": {"Bandit": {"clustered": {**HALF, "rate": 0.75}, "levels": 2}}}
    (run.path / "eval-7" / "summary.json").write_text(json.dumps(played), encoding="utf-8")
    assert paper_model.main([str(run.path), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "paper_model.md").read_text(encoding="utf-8")
    assert "| Bandit, no imitation, seed 0 | 7 of 9 | 50.0 | not yet | 50.0 (25.0 to 75.0) of 16 | 75.0 (" in page
    assert " of 16, 2 levels | " in page
    assert "| 6 to 7 | 50.0 | 50.0 |" in page
    assert "Without imitation (1 run), 50 % of the turns of the first 5 iterations were malformed" in page
    assert "Of the well-formed turns 100 % succeeded at first and 100 % in the end." in page
    assert "0 of 1 runs are surely above random moves; the widest interval is 25 to 75 %" in page
