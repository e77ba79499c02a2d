"""The speedrun's folder (``python -m benchmarks.speedrun_task``) as a task of Inspect AI."""

from __future__ import annotations

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import TaskState
from inspect_ai.tool import bash
from inspect_ai.util import sandbox


@task
def speedrun(folder: str, timeout: int = 3600) -> Task:
    """One sample: an agent with a shell in the folder's container, measured by the folder's test."""
    place = Path(folder).resolve()
    sample = Sample(input=(place / "instruction.md").read_text(encoding="utf-8"), id="speedrun")
    container = ("docker", str(place / "environment" / "Dockerfile"))
    agent = react(tools=[bash(timeout=timeout)])
    return Task(dataset=[sample], solver=agent, scorer=measured(str(place), timeout), sandbox=container)


@scorer(metrics=[mean()])
def measured(folder: str, timeout: int) -> Scorer:
    """The reward of the folder's test, which is copied into the sandbox after the agent has ended."""

    async def score(state: TaskState, target: Target) -> Score:
        for file in (Path(folder) / "tests").iterdir():
            await sandbox().write_file(f"tests/{file.name}", file.read_bytes())
        done = await sandbox().exec(["/bin/sh", "-c", "APP=$PWD LOGS=$PWD/logs bash tests/test.sh"], timeout=timeout)
        reward = await sandbox().read_file("logs/reward.txt")
        return Score(value=float(reward), explanation=f"{done.stdout}\n{done.stderr}"[-4000:])

    return score
