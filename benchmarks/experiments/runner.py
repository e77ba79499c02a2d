"""Plays what is missing of an experiment: warm starts first, then the runs, some at a time, in processes of their own.

Each run goes on where an earlier process was killed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

from rich.console import Console

from benchmarks.experiments.plan import PlannedRun, WarmStart, warm_starts
from benchmarks.experiments.spec import end_row
from ragen_agent.config import Config, read_toml, to_toml, with_settings
from ragen_agent.local.run import TrainingRun
from ragen_agent.run.console import Display
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.seen import SEEN_FILE
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import atomic_folder, read_json_lines

POLL_S = 1.0  # between two updates of the progress
JOBS_OF_A_PROCESS = 40  # after which another takes its place, so that what libraries keep of each run is given back

#: Rows of the summary that a warm start has and its runs need not measure again.
SHARED = ("before", "random", "blind", "optimal", "demonstrator")


def check_settings(planned: Sequence[PlannedRun]) -> None:
    """Raises a ValueError if the folder of a run holds one with other settings than are planned for it."""
    for run in planned:
        _check_same(run.config, run.folder)


def is_complete(run: PlannedRun) -> bool:
    """True if the folder of the run holds it whole, with all its measurements."""
    return is_whole(RunFolder(run.folder).read_summary())


def is_whole(summary: Mapping[str, Any]) -> bool:
    """True if it is the summary of a finished run with all its measurements."""
    return summary.get("finished", False) is True and "after" in summary


def run_all(planned: Sequence[PlannedRun], jobs: int, console: Console) -> dict[str, str]:
    """Plays every run that is not complete on this disk, ``jobs`` at a time; what went wrong, by the name of the run.

    Raises:
        KeyboardInterrupt: after the processes have ended; all that they wrote is kept.
    """
    wanted = [run for run in planned if not is_complete(run)]
    with patch.dict(os.environ):
        os.environ["PYTHONSAFEPATH"] = "1"  # spawned processes import nothing from the current folder
        warm = {f"warm start {each.folder.name}": each for each in warm_starts(wanted) if not _is_warm(each)}
        failures = _play_all(warm, jobs, console, "warm starts")
        ready = {run.name: run for run in wanted if _is_warm(run.warm)}
        failures |= {run.name: "its warm start failed" for run in wanted if run.name not in ready}
        return failures | _play_all(ready, jobs, console, "runs")


def _play_all(todo: Mapping[str, PlannedRun | WarmStart], jobs: int, console: Console, what: str) -> dict[str, str]:
    failures: dict[str, str] = {}
    left, running = list(todo), dict[Future[str], tuple[str, float]]()
    if not left:
        return failures
    pool = _pool(jobs)
    try:
        with ProgressBar(what, len(todo), console=console) as bar:
            while running or left:
                while left and len(running) < jobs:
                    name = left.pop(0)
                    running[pool.submit(_play, todo[name])] = (name, time.monotonic())
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    name, begun = running.pop(future)
                    try:
                        problem = future.result()
                    except BrokenProcessPool:  # killed, say for its memory: those that are not begun need other ones
                        problem, pool = "its process or one beside it was killed", _pool(jobs)
                    if problem:
                        failures[name] = problem
                    result = f"failed: {problem}" if problem else _result(todo[name].folder)
                    count = len(todo) - len(left) - len(running)
                    bar.say(f"{what} {count}/{len(todo)}  {name}: {result} ({time.monotonic() - begun:.0f} s)")
                bar.update(len(todo) - len(left) - len(running), ", ".join(name for name, _ in running.values()))
    except BaseException:
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Processes that take one job after another, since starting one costs seconds."""
    return ProcessPoolExecutor(
        jobs, get_context("spawn"), _begin_process, (os.getpid(),), max_tasks_per_child=JOBS_OF_A_PROCESS
    )


def _begin_process(parent: int) -> None:
    """Print nothing, and exit when the parent is gone: a killed experiment leaves no process writing in its runs."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _result(folder: Path) -> str:
    summary = RunFolder(folder).read_summary()
    row = "after" if "after" in summary else "before"
    return f"{row} {percent(summary[row]['rate'])}" if row in summary else "nothing was measured"


def _play(each: PlannedRun | WarmStart) -> str:
    """Plays one; what went wrong, in a line. A fault of the program is also in the run's log."""
    try:
        if isinstance(each, PlannedRun):
            _play_run(each)
        else:
            _play_warm(each)
    except (ValueError, OSError, RuntimeError) as error:
        return " ".join(str(error).split()) or repr(error)
    except Exception as error:  # one run must not end the others
        with (each.folder / "log.txt").open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        return f"{error!r}; see {each.folder / 'log.txt'}"
    return ""


def _play_warm(warm: WarmStart) -> None:
    """The warm start and its measurements; nothing where they are there."""
    folder = _opened(warm.config, warm.folder)
    if not _is_warm(warm):
        with (warm.folder / "log.txt").open("a", encoding="utf-8") as log:
            _begun(warm.config, folder, log)


def _play_run(planned: PlannedRun) -> None:
    """The run from its warm start to its measurements; nothing where they are there.

    The policies after each of its last ``evaluations`` iterations are measured.
    """
    if not (planned.folder / "config.toml").is_file():
        _prepare(planned)
    folder = _opened(planned.config, planned.folder)
    if is_complete(planned):
        return
    folder.note_versions()
    with (planned.folder / "log.txt").open("a", encoding="utf-8") as log:
        run = _begun(planned.config, folder, log)
        run.reinforce(partial(_measure_before_end, run, planned.evaluations))
        run.measure("after")
        run.write_summary()
        folder.write_summary(run.summary | {"finished": True})
    (planned.folder / "state.pt").unlink(missing_ok=True)  # the run is over, and its checkpoint is there


def _is_warm(warm: WarmStart) -> bool:
    """True if the folder holds a finished warm start and all its measurements."""
    wanted = SHARED if warm.config.warm_start.epochs else SHARED[:-1]
    return (warm.folder / "warm").is_dir() and all(name in RunFolder(warm.folder).read_summary() for name in wanted)


def _begun(config: Config, folder: RunFolder, log: TextIO) -> TrainingRun:
    """A run up to its reinforcement; what its folder has already is not done again."""
    run = TrainingRun(config, folder, Display(Console(file=log, width=140)))
    run.warm_start()
    run.measure("before")
    run.baselines()
    return run


def _measure_before_end(run: TrainingRun, evaluations: int, iterations: int) -> None:
    left = _iterations_left(run, iterations)
    if 0 < left < evaluations:
        run.measure_meanwhile(end_row(left), left)


def _iterations_left(run: TrainingRun, iterations: int) -> int:
    """How many are still to come; of a run that stops by its tokens, if each samples as many as the last one."""
    left, budget = run.config.training.iterations - iterations, run.config.stops.sampled_tokens
    if not budget:
        return left
    sampled = [int(record["sampled_tokens"]) for record in read_json_lines(run.folder.metrics)]
    return min(left, max(0, math.ceil((budget - sum(sampled)) / max(1, sampled[-1]))))


def _prepare(planned: PlannedRun) -> None:
    """The run's folder with its warm start in it, in place of what an earlier process did not bring to its settings."""
    warm = planned.warm.folder
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    summary = json.loads((warm / "summary.json").read_text(encoding="utf-8"))
    with atomic_folder(planned.folder) as folder:
        shutil.copytree(warm / "warm", folder / "warm", copy_function=os.link)  # weights are never changed in place
        shared = {name: value for name, value in summary.items() if name in (*SHARED, "blind")}  # which a game may lack
        (folder / "summary.json").write_text(json.dumps(shared, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(warm / "episodes.jsonl", folder / "episodes.jsonl")
        shutil.copyfile(warm / SEEN_FILE, folder / SEEN_FILE)
        (folder / "config.toml").write_text(to_toml(planned.config), encoding="utf-8")


def _opened(config: Config, path: Path) -> RunFolder:
    """The folder of a run with these settings; raises a ValueError if it holds one with others."""
    if not (path / "config.toml").is_file():
        for left in path.glob("config.toml.writing*.tmp"):
            left.unlink()
        return RunFolder.create(path, config)
    _check_same(config, path)
    return RunFolder(path)


def _check_same(config: Config, path: Path) -> None:
    if (path / "config.toml").is_file() and with_settings(Config(), read_toml(path / "config.toml")) != config:
        raise ValueError(
            f"{path} was made with other settings than are asked for now: choose another --out, or remove it."
        )
