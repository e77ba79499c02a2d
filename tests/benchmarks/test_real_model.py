"""The benchmark of a pretrained model, with a small model in its place."""

from __future__ import annotations

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
    pytest.importorskip("trl")
    small = {"demonstrations": {"episodes": 16}, "training": {"groups": 2, "group_size": 2, "minibatch": 4}}
    monkeypatch.setattr(real_model, "BANDIT", merged(real_model.BANDIT, small))
    monkeypatch.setattr(real_model, "DECODED", (4,))
    config = with_settings(Config(), real_model.BANDIT)
    tokenizer = build_tokenizer([game_texts(make_env(config, None), config.demonstrations.thought)])
    save_checkpoint(build_model(SmallModel(32, 1, 32), tokenizer, 0), tokenizer, tmp_path / "model")
    words = ["--runs", "1", "--model", str(tmp_path / "model"), "--vllm", str(tmp_path / "no-such-python")]
    assert real_model.main([*words, "--work", str(tmp_path / "work"), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "real_model.md").read_text()
    assert "vLLM was left out: " in page
    assert "no-such-python" in page
    assert "| TRL | " in page
    assert "{" not in page


def test_a_peer_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="vllm ended: no module named vllm"):
        Peer(program, "vllm", {}, tmp_path / "log", 1)
