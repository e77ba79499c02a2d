"""Plays what is missing of an experiment: warm starts first, then the runs, some at a time, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.experiments.plan import PlannedRun, warm_starts
from benchmarks.experiments.worker import is_complete, is_warm
from ragen_agent.config import Config, to_toml
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.child_python import child_python
from ragen_gym.core.progress import ProgressBar
from ragen_gym.core.stats import percent

__all__ = ["check_settings", "run_all"]

ROOT = str(Path(__file__).parents[2])  # from which workers import this package
POLL_S = 1.0  # between two updates of the progress
JOBS_OF_A_PROCESS = 40  # after which another takes its place, so that what libraries keep of each run is given back


def check_settings(planned: Sequence[PlannedRun]) -> None:
    """Raises a ValueError if the folder of a run holds one with other settings than are planned for it."""
    for run in planned:
        if (run.folder / "config.toml").is_file() and RunFolder.reopen(run.folder)[1] != run.config:
            raise ValueError(
                f"{run.folder} was made with other settings than are asked for now: choose another --out, give the "
                "--set that it was made with, or remove it."
            )


def run_all(planned: Sequence[PlannedRun], jobs: int, console: Console, ends: float = inf) -> dict[str, str]:
    """Plays every run that is not complete on this disk, so many at a time; what went wrong, by the name of the run.

    None is begun after ``ends`` (``time.monotonic()``).

    Raises:
        KeyboardInterrupt: after the processes have ended; all that they wrote is kept.
    """
    wanted = [run for run in planned if not is_complete(run.folder, run.arm.imitation)]
    warm = [each for each in warm_starts(wanted) if not is_warm(each.folder, each.config)]
    failures: dict[str, str] = {}
    steps = [(f"warm start {each.folder.name}", _job(each.config, each.folder)) for each in warm]
    workers = _Workers()
    failures |= _play(steps, jobs, console, "warm starts", workers, ends)
    ready = [run for run in wanted if is_warm(run.warm.folder, run.warm.config)]
    if time.monotonic() < ends:
        failures |= {run.name: "its warm start failed" for run in wanted if run not in ready}
    steps = [(run.name, _job(run.config, run.folder, run)) for run in ready]
    failures |= _play(steps, jobs, console, "runs", workers, ends)
    workers.close(kill=False)
    return failures


def _job(config: Config, folder: Path, run: PlannedRun | None = None) -> dict[str, Any]:
    """A job of the worker: a warm start, or ``run``."""
    return {
        "parent": os.getpid(),
        "config": to_toml(config),
        "folder": str(folder.resolve()),
        "warm": str(run.warm.folder.resolve()) if run else "",
        "imitation": run is not None and run.arm.imitation,
        "evaluations": run.evaluations if run else 1,
        "iterations": config.training.iterations if run else None,
    }


class _Workers:
    """Processes that take one job after another, since starting one costs seconds; made when they are needed."""

    def __init__(self) -> None:
        self._idle: list[tuple[subprocess.Popen[str], int]] = []  # and how many jobs each has had
        self._all: list[subprocess.Popen[str]] = []

    def play(self, job: Mapping[str, Any]) -> str:
        """Waits for one job; what went wrong, or the empty text. Safe from several threads."""
        try:
            process, jobs = self._idle.pop()
        except IndexError:
            process = subprocess.Popen(
                child_python("-m", "benchmarks.experiments.worker"),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._all.append(process)
            jobs = 0
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
        if jobs + 1 < JOBS_OF_A_PROCESS:
            self._idle.append((process, jobs + 1))
        else:
            process.stdin.close()
            process.wait()
        return str(json.loads(answer))

    def close(self, kill: bool) -> None:
        """Ends the processes; those at work only with ``kill``."""
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
    steps: Sequence[tuple[str, dict[str, Any]]], jobs: int, console: Console, what: str, workers: _Workers, ends: float
) -> dict[str, str]:
    """Plays jobs, so many at a time, and begins none after ``ends``; what went wrong by name."""
    failures: dict[str, str] = {}
    if not steps:
        return failures
    left, running = list(steps), dict[Future[str], tuple[str, dict[str, Any], float]]()
    pool = ThreadPoolExecutor(jobs)
    try:
        with ProgressBar(what, len(steps), console=console) as bar:
            while running or (left and time.monotonic() < ends):
                while left and len(running) < jobs and time.monotonic() < ends:
                    name, job = left.pop(0)
                    running[pool.submit(workers.play, job)] = (name, job, time.monotonic())
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    name, job, begun = running.pop(future)
                    if problem := future.result():
                        failures[name] = problem
                    result = f"failed: {problem}" if problem else _result(Path(str(job["folder"])))
                    count, seconds = len(steps) - len(left) - len(running), time.monotonic() - begun
                    bar.say(f"{what} {count}/{len(steps)}  {name}: {result} ({seconds:.0f} s)")
                now = ", ".join(f"{name}{_progress(job)}" for name, job, _ in running.values())
                bar.update(len(steps) - len(left) - len(running), now)
    except BaseException:
        workers.close(kill=True)
        raise
    finally:
        pool.shutdown()
    return failures


def _progress(job: Mapping[str, Any]) -> str:
    """How many iterations of a run are written down, such as `` 12/40``; nothing for a warm start."""
    metrics = Path(str(job["folder"])) / "metrics.jsonl"
    try:
        done = metrics.read_bytes().count(b"\n")
    except OSError:  # not there yet, or gone: a progress bar must not end an experiment
        done = 0
    return f" {done}/{job['iterations']}" if job["iterations"] else ""


def _result(folder: Path) -> str:
    summary = RunFolder(folder).read_summary()
    row = "after" if "after" in summary else "before"
    return f"{row} {percent(summary[row]['rate'])}" if row in summary else "nothing was measured"
