"""Real runs that must stop: what they say, and that they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ragen_agent.config import to_toml
from ragen_agent.config.io import read_openrlhf
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.launch import RunStoppedError, train_distributed
from ragen_agent.run.run_folder import RunFolder
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.openrlhf.small_runs import SHORT, Family, begin, configure, lines

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


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of ``size`` bytes at ``folder``, which grows at the end of the block."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount a disk: {done.stderr.decode().strip()}")
    yield
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


def test_weights_that_do_not_arrive_stop_the_run(warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOST_WEIGHTS", "garbage")
    with (
        Family() as family,
        pytest.raises(RunStoppedError, match=r"WeightsLostError: vllm_kl is .*did not arrive.*--resume"),
    ):
        begin(tmp_path / "run", configure(warm, SHORT), {"max_vllm_kl": 0.01, **LOST})
    assert 1 <= len(lines(tmp_path / "run")) < 4, "the first synchronisation was the first to be lost"
    assert abs(lines(tmp_path / "run")[0]["vllm_kl"]) < 1e-3, "vLLM read the weights of the start from the disk"
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert not family.left()


def test_the_last_synchronisation_is_checked_too(warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOST_WEIGHTS", "stale")
    config = configure(warm, SHORT, {"training": {"iterations": 1}})
    with pytest.raises(RunStoppedError, match="WeightsLostError"):
        begin(tmp_path / "run", config, {"max_vllm_kl": 0.01, **LOST})
    assert len(lines(tmp_path / "run")) == 1


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(warm: Path, tmp_path: Path) -> None:
    disk, config = tmp_path / "disk", configure(warm, SHORT, {"training": {"iterations": 1}})
    full = r"the run stopped: the disk is full, 0\.\d MiB are free in .*: make room there\. .*--resume"
    try:
        with small_disk(disk, 2_000_000), pytest.raises(RunStoppedError, match=full):
            begin(disk / "run", config, {})
        folder, again = RunFolder.reopen(disk / "run")
        summary = train_distributed(again, read_openrlhf(folder.path) or OpenRLHF(), folder, quiet())
        assert [line["iteration"] for line in lines(folder.path)] == [0]
        assert "after" in summary
        assert (folder.checkpoint / "model.safetensors").is_file()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


def test_too_many_failures_stop_the_run(warm: Path, tmp_path: Path) -> None:
    """Half of the second iteration's environments raise."""
    message = r"TooManyFailuresError: \d+ of 32 episodes failed, more than .*=0.2 allows: environment_error: Runt"
    with Family() as family, pytest.raises(RunStoppedError, match=message):
        begin(tmp_path / "run", configure(warm, SHORT), BROKEN)
    assert len(lines(tmp_path / "run")) == 1
    assert not family.left()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_process(warm: Path, tmp_path: Path, how: signal.Signals) -> None:
    """By Ctrl-C, and by a kill of the launcher alone, which can tell nobody."""
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
        assert {"VLLM::EngineCor", "raylet"} <= set(family.names.values()), "names as the kernel cuts them"
        os.kill(process.pid, how)
        printed = process.communicate(timeout=120)[1].decode()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert f"Go on with: ragen-agent train --resume {run}" in printed
        assert "leaked" not in printed
    assert not family.left()
    assert not (run / "datasets").exists()
