"""The benchmark of a pretrained model, with a small model in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import real_model
from benchmarks.peers import Peer, PeerError
from ragen_agent.config import Config, SmallModel, merged, with_settings
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import build_model, build_tokenizer, game_texts
from ragen_agent.tasks.tasks import make_env


@pytest.mark.slow
def test_both_measurements_make_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = Path("build/integrations/trl/bin/python").absolute()
    if not trl.is_file():
        pytest.skip("needs make test-integrations ARGS=trl")
    small = {"demonstrations": {"episodes": 16}, "training": {"groups": 2, "group_size": 2, "minibatch": 4}}
    tasks = {name: merged(task, small) for name, task in real_model.TASKS.items()}
    monkeypatch.setattr(real_model, "TASKS", tasks)
    monkeypatch.setattr(real_model, "BANDIT", merged(real_model.BANDIT, small))
    monkeypatch.setattr(real_model, "DECODED", (4,))
    config = with_settings(Config(), next(iter(tasks.values())))
    envs = [make_env(with_settings(Config(), task), None) for task in tasks.values()]
    tokenizer = build_tokenizer([game_texts(env, config.demonstrations.thought) for env in envs])
    save_checkpoint(build_model(SmallModel(32, 1, 32), tokenizer, 0), tokenizer, tmp_path / "model")
    words = ["--runs", "1", "--model", str(tmp_path / "model"), "--vllm", str(tmp_path / "no-such-python")]
    words += ["--trl", str(trl), "--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    assert real_model.main(words) == 0
    decoded = json.loads((tmp_path / "real_model.json").read_text())["decode"]
    assert real_model.main([*words, "--only", "iteration"]) == 0
    assert json.loads((tmp_path / "real_model.json").read_text())["decode"] == decoded
    page = (tmp_path / "real_model.md").read_text()
    assert "vLLM was left out: " in page
    assert "no-such-python" in page
    rows = [line for line in page.splitlines() if " tokens | " in line]
    assert [row.split(" | ")[:2] for row in rows] == [["| Bandit, one turn", "4"], ["| FrozenLake, five turns", "4"]]
    assert all("| 2, faster than 4 | " in row or "| 4, faster than 2 | " in row for row in rows), "half, and all"
    assert "{" not in page


def test_a_choice_of_one_micro_batch_is_no_choice() -> None:
    results = json.loads(Path(real_model.__file__).with_suffix(".json").read_text(encoding="utf-8"))
    task = results["iteration"]["tasks"]["Bandit, one turn"]
    task["trl"] = {"16": {"seconds": 50.0, "tokens": 9}}
    assert "| 16, the only one measured | " in real_model._page(results)
    task["trl"]["32"] = {"seconds": 40.0, "tokens": 9}
    assert "| 32, faster than 16 | " in real_model._page(results)


def test_a_size_whose_process_ended_is_said() -> None:
    results = json.loads(Path(real_model.__file__).with_suffix(".json").read_text(encoding="utf-8"))
    results["iteration"]["tasks"]["Bandit, one turn"] |= {
        "trl": {"16": {"seconds": 50.0, "tokens": 9}},
        "ended": {"32": "trl ended: no memory (see its log)"},
    }
    assert "On Bandit, one turn a micro-batch of 32 was not measured: trl ended." in real_model._page(results)


def test_a_missing_environment_is_told_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--trl is .*none, which does not exist: `make test-integrations ARGS=trl`"):
        real_model.main(["--trl", str(tmp_path / "none"), "--work", str(tmp_path), "--out", str(tmp_path)])


def test_a_peer_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="vllm ended: no module named vllm"):
        Peer(program, "vllm", {}, tmp_path / "log", 1)
