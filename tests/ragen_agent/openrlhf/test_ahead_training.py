"""A real run that plays ahead of training: how stale its episodes are, and that the page says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_agent.cli import main
from tests.ragen_agent.openrlhf.small_runs import SHORT, begin, configure, lines

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

STALENESS = 2


def test_episodes_are_as_stale_as_the_settings_say(warm: Path, tmp_path: Path) -> None:
    """vLLM's processes count the weights that arrive, so this is what played, not what was meant to."""
    training = {"iterations": 6, "correction": "clip", "learning_rate": 2e-4}
    config, settings = configure(warm, SHORT, {"training": training}), {"evaluate_every": 3, "max_vllm_kl": 1.0}
    folder, summary = begin(tmp_path / "run", config, {"staleness": STALENESS, "colocate": False, **settings})
    records = lines(folder.path)
    assert [record["iteration"] for record in records] == list(range(6))
    sent = [0]  # updates before each iteration; one where nothing is learned sends none
    for record in records:
        sent.append(sent[-1] + ("seconds_synchronise" in record))
    expected = [sent[n] - sent[max(0, n - STALENESS)] for n in range(6)]
    assert [record["staleness"] for record in records] == expected
    assert max(expected) == STALENESS
    trained = [record for record in records if "mismatch_kl" in record]
    fresh = [record["mismatch_kl"] for record in trained if not record["staleness"]]
    stale = [record["mismatch_kl"] for record in trained if record["staleness"]]
    assert all(0 <= kl < 1e-3 for kl in fresh), "the weights of the start, but for rounding"
    assert max(stale) > max(fresh), "older weights are another policy"
    assert all(0 <= record["corrected"] < 1 for record in trained)
    assert "eval_success" in records[2]
    assert "after" in summary
    assert main(["report", str(folder.path), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "staleness of the episodes (updates)" in page
    assert "KL of vLLM" in page
