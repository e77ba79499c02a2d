"""The benchmark of a pretrained model, with a small model in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import real_model
from benchmarks.peers import Peer, PeerError
from benchmarks.real_model import BANDIT
from ragen_agent.config import Config, SmallModel, with_settings
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import build_model, build_tokenizer, game_texts
from ragen_agent.tasks.tasks import make_env


def small_model(folder: Path) -> Path:
    """A model that has read the texts of the game."""
    config = with_settings(Config(), BANDIT)
    tokenizer = build_tokenizer([game_texts(make_env(config, None), config.demonstrations.thought)])
    save_checkpoint(build_model(SmallModel(32, 1, 32), tokenizer, 0), tokenizer, folder)
    return folder


@pytest.mark.slow
def test_both_measurements_make_a_page(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    out = tmp_path / "out"
    words = ["--quick", "--model", str(small_model(tmp_path / "model")), "--vllm", str(tmp_path / "no-such-python")]
    assert real_model.main([*words, "--work", str(tmp_path / "work"), "--out", str(out)]) == 0
    results = json.loads((out / "real_model.json").read_text())
    page = (out / "real_model.md").read_text()
    assert results["iteration"]["kept"] == 4, "all groups are kept"
    assert set(results["iteration"]["trl"]["phases"]) >= {"generation", "rewards", "forward", "backward", "optimiser"}
    assert "vLLM was left out: there is no" in page
    assert "{" not in page


def test_a_peer_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="vllm ended: no module named vllm"):
        Peer(program, "vllm", {}, tmp_path / "log", 1)
