"""A process that plays runs of an experiment, one after the other; each goes on where an earlier process was killed."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from benchmarks.experiments.spec import end_row
from ragen_agent.config import Config, read_toml, to_toml, with_settings
from ragen_agent.local.run import TrainingRun
from ragen_agent.run.console import Display
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.seen import SEEN_FILE
from ragen_gym.core.storage import atomic_folder, read_json_lines

__all__ = ["is_complete", "is_warm", "is_whole", "play_run", "play_warm"]

_watched: list[int] = []  # the parent, once it is watched

#: Rows of the summary that a warm start has and its runs need not measure again.
SHARED = ("before", "random", "optimal", "demonstrator")


def _exit_with(parent: int) -> None:
    """Exit when the parent process is gone, so that a killed experiment leaves no process writing in its runs."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    _watched.append(parent)
    threading.Thread(target=watch, daemon=True).start()


def play_warm(config: Config, path: Path) -> None:
    """The warm start and its measurements; nothing where they are there."""
    folder = _opened(config, path)
    if is_warm(path, config):
        return
    with (path / "log.txt").open("a", encoding="utf-8") as log:
        _begun(config, folder, log)


def play_run(config: Config, path: Path, warm: Path, *, imitation: bool, evaluations: int) -> None:
    """The run from its warm start to its measurements; nothing where they are there.

    The policies after each of the last ``evaluations`` iterations are measured.
    """
    if not (path / "config.toml").is_file():
        _prepare(config, path, warm)
    folder = _opened(config, path)
    if is_complete(path, imitation):
        return
    folder.note_versions()
    with (path / "log.txt").open("a", encoding="utf-8") as log:
        run = _begun(config, folder, log)
        run.reinforce(partial(_measure_before_end, run, evaluations))
        run.measure("after")
        if imitation:
            run.compare_imitation()
        run.write_summary()
        folder.write_summary(run.summary | {"finished": True})
    (path / "state.pt").unlink(missing_ok=True)  # the run is over, and its checkpoint is there


def is_warm(path: Path, config: Config) -> bool:
    """True if the folder holds a finished warm start and all its measurements."""
    wanted = SHARED if config.warm_start.epochs else SHARED[:-1]
    return (path / "warm").is_dir() and all(name in RunFolder(path).read_summary() for name in wanted)


def is_complete(path: Path, imitation: bool) -> bool:
    """True if the folder holds a finished run and all its measurements."""
    return is_whole(RunFolder(path).read_summary(), imitation)


def is_whole(summary: Mapping[str, Any], imitation: bool) -> bool:
    """True if it is the summary of a finished run with all its measurements."""
    wanted = ("after", "more_imitation", "clean_warm_start") if imitation else ("after",)
    return summary.get("finished", False) is True and all(name in summary for name in wanted)


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


def _prepare(config: Config, path: Path, warm: Path) -> None:
    """The run's folder with its warm start in it, in place of what an earlier process did not bring to its settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = json.loads((warm / "summary.json").read_text(encoding="utf-8"))
    with atomic_folder(path) as folder:
        shutil.copytree(warm / "warm", folder / "warm", copy_function=os.link)  # weights are never changed in place
        shared = {name: value for name, value in summary.items() if name in SHARED}
        (folder / "summary.json").write_text(json.dumps(shared, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(warm / "episodes.jsonl", folder / "episodes.jsonl")
        shutil.copyfile(warm / SEEN_FILE, folder / SEEN_FILE)
        (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")


def _opened(config: Config, path: Path) -> RunFolder:
    """The folder of a run with these settings.

    Raises:
        ValueError: it holds a run with others.
    """
    if not (path / "config.toml").is_file():
        for left in path.glob("config.toml.writing*.tmp"):
            left.unlink()
        return RunFolder.create(path, config)
    if with_settings(Config(), read_toml(path / "config.toml")) != config:
        raise ValueError(
            f"{path} was started with other settings than the experiment has now; choose another --out, or remove it."
        )
    return RunFolder(path)


def main() -> int:
    """Jobs from the standard input, one a line as JSON; an answer a line: what went wrong, or nothing."""
    answers, sys.stdout = sys.stdout, sys.stderr  # so that nothing else is read as an answer
    for line in sys.stdin:
        job = json.loads(line)
        if not _watched:
            _exit_with(int(job["parent"]))
        try:
            problem = _one(job)
        except KeyboardInterrupt:
            return 130
        print(json.dumps(problem), file=answers, flush=True)
    return 0


def _one(job: Mapping[str, Any]) -> str:
    """What went wrong, in a line; a fault of the program is also in the run's log."""
    config = with_settings(Config(), tomllib.loads(job["config"]))
    folder = Path(job["folder"])
    try:
        if job["warm"]:
            warm, imitation = Path(job["warm"]), bool(job["imitation"])
            play_run(config, folder, warm, imitation=imitation, evaluations=int(job["evaluations"]))
        else:
            play_warm(config, folder)
    except (ValueError, OSError, RuntimeError) as error:
        return " ".join(str(error).split()) or repr(error)
    except Exception as error:  # one run must not end the others
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        return f"{error!r}; see {folder / 'log.txt'}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
