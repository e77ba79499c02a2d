"""Real runs that must stop: what they say, and that they leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragen_agent.config import to_toml
from ragen_agent.openrlhf.launch import RunStoppedError
from tests.ragen_agent.openrlhf.small_runs import ROUNDING, SHORT, Family, begin, configure, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

LOST, BROKEN = (
    {"flags": f"--train.agent_func_path {Path(__file__).with_name(name)}"}
    for name in ("lost_weights.py", "broken_executor.py")
)

# Python ignores Ctrl-C in what a script started with &, as these tests may have been.
ATTENTIVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ragen_agent.cli import main
sys.exit(main())
"""


def test_weights_that_do_not_arrive_stop_the_run(warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOST_WEIGHTS", "garbage")
    with (
        Family() as family,
        pytest.raises(RunStoppedError, match=r"WeightsLostError: vllm_kl is .*did not arrive.*--resume"),
    ):
        begin(tmp_path / "run", configure(warm, SHORT), {"max_vllm_kl": 0.01, **LOST})
    assert 1 <= len(lines(tmp_path / "run")) < 4, "the first synchronisation was the first to be lost"
    assert abs(lines(tmp_path / "run")[0]["vllm_kl"]) < ROUNDING, "vLLM read the weights of the start from the disk"
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert not family.left()


@pytest.mark.nightly
def test_the_last_synchronisation_is_checked_too(warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOST_WEIGHTS", "stale")
    config = configure(warm, SHORT, {"training": {"iterations": 1}})
    with pytest.raises(RunStoppedError, match="WeightsLostError"):
        begin(tmp_path / "run", config, {"max_vllm_kl": 0.01, **LOST})
    assert len(lines(tmp_path / "run")) == 1


@pytest.mark.nightly
def test_too_many_failures_stop_the_run(warm: Path, tmp_path: Path) -> None:
    """Half of the second iteration's environments raise."""
    message = r"TooManyFailuresError: \d+ of 32 episodes failed, more than .*=0.2 allows: environment_error: Runt"
    with Family() as family, pytest.raises(RunStoppedError, match=message):
        begin(tmp_path / "run", configure(warm, SHORT), BROKEN)
    assert len(lines(tmp_path / "run")) == 1
    assert not family.left()


def test_ctrl_c_leaves_no_process_and_says_how_to_go_on(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(configure(warm, SHORT, {"training": {"iterations": 500}})))
    run = tmp_path / "run"
    words = ["train", "--backend", "openrlhf", "--config", str(tmp_path / "config.toml"), "--out", str(run)]
    with Family() as family:
        process = subprocess.Popen(
            [sys.executable, "-c", ATTENTIVE, *words], start_new_session=True, stderr=subprocess.PIPE
        )
        limit = time.monotonic() + 300
        while len(lines(run)) < 2:
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.2)
        family.look()
        assert {"VLLM::EngineCor", "raylet"} <= family.names
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130
    assert f"Go on with: ragen-agent train --resume {run}" in printed
    assert "leaked" not in printed
    assert not family.left()
    assert not (run / "datasets").exists()
