"""Two runs on one machine at the same time, started by ``examples/cluster/share_node.sh``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragen_agent.config import to_toml
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.openrlhf.small_runs import ROUNDING, SHORT, configure, lines

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]

NEEDED = 12  # GiB
SCRIPT = Path(__file__).parents[3] / "examples" / "cluster" / "share_node.sh"


def test_two_runs_share_a_node(warm: Path, tmp_path: Path) -> None:
    """Each with a Ray of its own: neither joins the other's, and their ports do not meet."""
    if (free := psutil.virtual_memory().available / 2**30) < NEEDED:
        pytest.skip(f"two runs at once take {NEEDED} GiB of memory, and {free:.1f} are free")
    config = configure(warm, SHORT, {"training": {"iterations": 2}})
    (tmp_path / "run.toml").write_text(to_toml(config), encoding="utf-8")
    bin_folder = Path(sys.executable).parent
    command: list[Any] = ["bash", SCRIPT, "0 1", tmp_path / "runs", "--config", tmp_path / "run.toml"]
    environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "RAY_ADDRESS": "127.0.0.1:1"}
    for _ in range(2):  # the second time both are resumed, and are found done
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    records = [lines(tmp_path / "runs" / f"seed{seed}") for seed in (0, 1)]
    assert [len(each) for each in records] == [2, 2]
    assert all(abs(record["vllm_kl"]) < ROUNDING for each in records for record in each if "vllm_kl" in record)
    levels = [
        {
            e["seed"]
            for e in read_json_lines(tmp_path / "runs" / f"seed{seed}" / "episodes.jsonl")
            if e["phase"] == "train"
        }
        for seed in (0, 1)
    ]
    assert not levels[0] & levels[1], "another seed plays other levels"
