"""Child processes of an audit: the settings, the request, the start and the end of a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ragen_gym.audit.worker.main import CHECKS

_WORKER = Path(__file__).with_name("worker")
#: Makes the folder of the worker a package of its own, so that the interpreter need not have this one.
#: Python before 3.11 has no ``-P``: the current folder, which ``-c`` puts first, goes last.
_BOOT = """\
import sys
if sys.path[0] == "": del sys.path[0]
sys.path.append("")
import importlib.util
spec = importlib.util.spec_from_file_location("audit_worker", sys.argv[1] + "/__init__.py",
                                              submodule_search_locations=[sys.argv[1]])
package = importlib.util.module_from_spec(spec); sys.modules["audit_worker"] = package; spec.loader.exec_module(package)
importlib.import_module("audit_worker.main").main(int(sys.argv[2]))
"""
START_SECONDS = 180.0  # to import the target's library
_LOG_CHARACTERS = 600


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit."""

    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the target's constructor
    actions: Sequence[Any] = ()  # to choose from, where the environment does not list its own
    checks: Sequence[str] = ()  # ids of ``CHECKS``; none means all
    seeds: int = 24  # seeds that a check plays, from 4 on
    steps: int = 30  # the most actions of an episode, from 1 on
    seconds: float = 20.0  # of one check: loops end then if they can be cut short; after 3 times as long the process
    train: str | None = None  # ``FIRST:LAST`` seeds, ``module:callable`` that returns them, ``name=value`` options
    test: str | None = None  # the same of the test split
    python: str = sys.executable  # the interpreter that has the target's library
    path: Sequence[str] = ()  # folders to import the target from

    def __post_init__(self) -> None:
        unknown = [name for name in self.checks if name not in CHECKS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such check; the checks are {', '.join(CHECKS)}.")
        for name, value, least in (("seeds", self.seeds, 4), ("steps", self.steps, 1), ("seconds", self.seconds, 1)):
            if not value >= least:
                raise ValueError(f"{name}={value} is too small: give {least} or more.")
        if (self.train is None) != (self.test is None):
            raise ValueError("give both sides of a split, train and test, or neither.")


def request_line(target: str, settings: AuditSettings, checks: Sequence[str]) -> str:
    """The request of a child process, as a line; see ``ragen_gym.audit.worker.main.main``."""
    request = {
        "target": target,
        "options": dict(settings.options),
        "actions": list(settings.actions),
        "checks": list(checks),
        "limit": 3 * settings.seconds,
        "path": [str(Path(each).resolve()) for each in settings.path],
        "settings": {name: getattr(settings, name) for name in ("seeds", "steps", "seconds", "train", "test")},
    }
    return json.dumps(request) + "\n"


def start_worker(
    settings: AuditSettings, asked: IO[str] | int, log: IO[bytes], hash_seed: str = "0"
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A child process that reads requests from ``asked``, and the file of its answers.

    Raises:
        ValueError: the interpreter cannot be started.
    """
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}
    if Path(settings.python) == Path(sys.executable):
        root = str(Path(__file__).parents[2])  # this package itself, for its own ids
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    else:
        environment.pop("PYTHONPATH", None)
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [settings.python, "-c", _BOOT, str(_WORKER), str(writing)],
            stdin=asked,
            stdout=log,
            stderr=log,
            pass_fds=(writing,),
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        os.close(reading)
        raise ValueError(f"python={settings.python} cannot be started: {error.strerror}.") from error
    finally:
        os.close(writing)
    return process, os.fdopen(reading, "rb")


def why_ended(process: subprocess.Popen[bytes], log: IO[bytes], limit: float, late: bool) -> str:
    """The reason why a child process ended: its code and the end of its log, or its time, as where ``late`` says so."""
    log.seek(0)
    text, code = log.read().decode(errors="replace").strip(), process.returncode
    if late or "Timeout (" in text:  # of faulthandler
        return f"the time limit of {limit:g} s was exceeded"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the process ended by itself with {how}" + f"; it said: {text[-_LOG_CHARACTERS:]}" * bool(text)


def end_worker(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
