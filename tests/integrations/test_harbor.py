"""Exported episodes in Harbor's own validator of ATIF."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.library import needs, serving_replies

needs("harbor", "harbor")


def exported(folder: Path, *arguments: str) -> list[Path]:
    """The trajectories of a run."""
    command = [sys.executable, "-m", "ragen_gym.cli", "bench"]
    run = ["run", "--suite", "smoke", "--limit", "2", "--out", str(folder / "run"), *arguments]
    for words in (run, ["export", str(folder / "run"), "--out", str(folder / "out")]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return sorted((folder / "out").iterdir())


@pytest.mark.parametrize("agent", ["random", "oracle", "openai:stand-in"])
def test_harbor_reads_every_trajectory(agent: str, tmp_path: Path) -> None:
    from harbor.models.trajectories import Trajectory
    from harbor.utils.trajectory_validator import TrajectoryValidator

    with serving_replies() as url:
        settings = ["--base-url", url, "--key-env", "HOME"] if agent.startswith("openai") else []
        files = exported(tmp_path, "--agent", agent, *settings)
    assert len(files) == 12
    for path in files:
        validator = TrajectoryValidator()
        assert validator.validate(path), validator.errors
        content = json.loads(path.read_text(encoding="utf-8"))
        read = Trajectory.model_validate(content)
        if agent.startswith("openai"):
            assert read.agent.model_name == "stand-in"
            assert read.final_metrics.total_prompt_tokens == len(read.steps) - 2
        content["steps"][0]["source"] = "game"
        path.write_text(json.dumps(content), encoding="utf-8")
        assert not TrajectoryValidator().validate(path)
