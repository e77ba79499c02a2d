"""The speedrun's folder in the real Inspect AI: the reward is that of the folder's test, on the file in the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.library import needs

needs("inspect", "inspect_ai")


@pytest.mark.parametrize(("test", "reward"), [("echo 0.5", 0.5), ('wc -l < "$APP/speedrun.py"', 2.0)])
def test_the_score_is_the_reward_of_the_folders_test(test: str, reward: float, tmp_path: Path) -> None:
    import inspect_ai
    from inspect_ai.solver import Solver, solver
    from inspect_ai.util import sandbox

    from benchmarks.speedrun_inspect import speedrun
    from benchmarks.speedrun_task import write_task

    write_task(folder := tmp_path / "task")
    command = f'mkdir -p "$LOGS"; ({test}) > "$LOGS/reward.txt"\n'  # torch, which the runner needs, is not here
    (folder / "tests" / "test.sh").write_text(command)

    @solver
    def two_lines() -> Solver:
        async def solve(state: Any, generate: Any) -> Any:
            await sandbox().write_file("speedrun.py", "# of\n# two\n")
            return state

        return solve

    (log,) = inspect_ai.eval(
        speedrun(str(folder)),
        solver=two_lines(),
        sandbox="local",
        model="mockllm/model",
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert log.status == "success", log.error
    assert log.samples[0].scores["measured"].value == reward
    assert log.samples[0].input.startswith("Write `/app/speedrun.py`")
