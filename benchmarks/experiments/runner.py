"""Plays what is missing of an experiment: warm starts first, then the runs, some at a time, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.experiments.metrics import read_run
from benchmarks.experiments.plan import Planned, warm_starts
from benchmarks.experiments.worker import is_complete, is_warm
from ragen_agent.config import Config, to_toml
from ragen_agent.training.run_folder import RunFolder

__all__ = ["check_settings", "missing", "run_all"]

LOOK = 1.0  # seconds between two looks at how far the runs are


def check_settings(planned: Sequence[Planned]) -> None:
    """Raises a ValueError if the folder of a run holds one with other settings than are planned for it."""
    for run in planned:
        if (run.folder / "config.toml").is_file() and RunFolder.reopen(run.folder)[1] != run.config:
            raise ValueError(
                f"{run.folder} was made with other settings than are asked for now: choose another --out, give the "
                "--set that it was made with, or remove it."
            )


def missing(planned: Sequence[Planned]) -> list[Planned]:
    """The runs that are not whole yet."""
    return [run for run in planned if not is_complete(run.folder, run.arm.imitation)]


def run_all(planned: Sequence[Planned], jobs: int, console: Console) -> dict[str, str]:
    """Plays every run that is not whole.

    Args:
        planned: the runs.
        jobs: how many at a time.
        console: where progress goes.

    Returns:
        what went wrong, by the name of the run; the others are not stopped by it.

    Raises:
        KeyboardInterrupt: after the processes have ended; all that they wrote is kept.
    """
    wanted = missing(planned)
    warm = [each for each in warm_starts(wanted) if not is_warm(each.folder, each.config)]
    failures: dict[str, str] = {}
    steps = [(f"warm start {each.folder.name}", _job(each.config, each.folder)) for each in warm]
    workers = _Workers()
    failures |= _play(steps, jobs, console, "warm starts", workers)
    ready = [run for run in wanted if is_warm(run.warm.folder, run.warm.config)]
    failures |= {run.name: "its warm start failed" for run in wanted if run not in ready}
    steps = [(run.name, _job(run.config, run.folder, run.warm.folder, run.arm.imitation)) for run in ready]
    failures |= _play(steps, jobs, console, "runs", workers)
    workers.close(kill=False)
    return failures


def _job(config: Config, folder: Path, warm: Path | None = None, imitation: bool = False) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "config": to_toml(config),
        "folder": str(folder.resolve()),
        "warm": str(warm.resolve()) if warm else "",
        "imitation": imitation,
        "iterations": config.training.iterations if warm else None,
    }


class _Workers:
    """Processes that take one job after another, since starting one costs seconds; made when they are needed."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []

    def play(self, job: Mapping[str, Any]) -> str:
        """Waits for one job; what went wrong, or the empty text. Safe from several threads."""
        try:
            process = self._idle.pop()
        except IndexError:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._all.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            return f"its process ended with {process.wait()}"
        self._idle.append(process)
        return str(json.loads(answer))

    def close(self, kill: bool) -> None:
        """Ends the processes, those at work only if told to."""
        for process in self._all:
            if kill:
                process.terminate()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        for process in self._all:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _play(
    steps: Sequence[tuple[str, dict[str, Any]]], jobs: int, console: Console, what: str, workers: _Workers
) -> dict[str, str]:
    """Plays jobs, so many at a time; what went wrong by name."""
    failures: dict[str, str] = {}
    if not steps:
        return failures
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left, waiting = list(steps), dict[Future[str], tuple[str, dict[str, Any], float]]()
    bars: dict[str, TaskID] = {}  # of the runs that are being played
    pool = ThreadPoolExecutor(jobs)
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(what, total=len(steps))
            while left or waiting:
                while left and len(waiting) < jobs:
                    name, job = left.pop(0)
                    waiting[pool.submit(workers.play, job)] = (name, job, time.monotonic())
                    if console.is_terminal and job["iterations"]:
                        bars[name] = progress.add_task(f"  {name}", total=job["iterations"])
                done, _ = wait(waiting, timeout=LOOK if bars else None, return_when=FIRST_COMPLETED)
                for name, job, _ in waiting.values():
                    if name in bars:
                        progress.update(bars[name], completed=_iterations(job))
                for future in done:
                    name, job, begun = waiting.pop(future)
                    if name in bars:
                        progress.remove_task(bars.pop(name))
                    if problem := future.result():
                        failures[name] = problem
                    progress.advance(task)
                    said = f"failed: {problem}" if problem else _said(Path(str(job["folder"])))
                    count, took = len(steps) - len(left) - len(waiting), time.monotonic() - begun
                    console.print(
                        f"{what} {count}/{len(steps)}  {name}: {said} ({took:.0f} s)", soft_wrap=True, markup=False
                    )
    except BaseException:
        workers.close(kill=True)
        raise
    finally:
        pool.shutdown()
    return failures


def _iterations(job: Mapping[str, Any]) -> int:
    """How many iterations of reinforcement are written down."""
    metrics = Path(str(job["folder"])) / "metrics.jsonl"
    try:
        return metrics.read_bytes().count(b"\n")
    except OSError:  # not there yet, or gone: a bar must not end an experiment
        return 0


def _said(folder: Path) -> str:
    rates = read_run(folder).rates
    row = "after" if "after" in rates else "before"
    return f"{row} {100 * rates[row]['rate']:.1f} %" if row in rates else "nothing was measured"
