"""An audit and its report: checks are run in child processes with time limits, and processes compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Timer
from typing import IO, Any

from ragen_gym.audit.worker.main import CHECKS
from ragen_gym.audit.worker.protocol import SEVERITIES, Check

__all__ = ["AuditSettings", "Report", "Result", "audit"]


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: Check
    status: str  # "passed", "finding" or "not applicable"
    detail: str  # what was seen, or why the check does not apply
    evidence: str = ""  # Python that ends in a failing assertion

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a finding says why it matters and how to fix it."""
        check = self.check
        found = {"check": check.id, "title": check.title, "severity": check.severity}
        found |= {"status": self.status, "detail": self.detail}
        if self.status == "finding":
            found |= {"evidence": self.evidence, "why": check.why, "fix": check.fix}
        return found


@dataclass
class Report:
    """Everything that an audit of one target found."""

    target: str
    options: dict[str, Any]
    version: str = ""
    code: str = ""  # Python that defines new, start and act
    results: list[Result] = field(default_factory=list)

    def status(self, check: str) -> str | None:
        """The status of a check; None where it was not run."""
        return next((result.status for result in self.results if result.check.id == check), None)

    def findings(self) -> list[Result]:
        """The findings, errors before warnings."""
        found = [result for result in self.results if result.status == "finding"]
        return sorted(found, key=lambda result: SEVERITIES.index(result.check.severity))

    def counts(self) -> dict[str, int]:
        """Number of checks with each status."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in ("passed", "finding", "not applicable")}

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        about = {"target": self.target, "options": self.options, "version": self.version, "counts": self.counts()}
        return {**about, "checks": [result.to_dict() for result in self.results]}


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
#: Evidence that a seed begins differently in another process.
_IN_ANOTHER_PROCESS = """\
import os, subprocess, sys; a = repr(start(new(), {seed})); print(a); again = [*sys.orig_argv, 'again']
b = a if 'again' in sys.argv else subprocess.run(
    again, env={{**os.environ, 'PYTHONHASHSEED': '77'}}, capture_output=True, text=True).stdout
assert a in b"""
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


def audit(
    target: str, settings: AuditSettings | None = None, progress: Callable[[str, int], None] | None = None
) -> Report:
    """Audit an environment.

    Args:
        target: see ``ragen_gym.audit.worker.main.open_target``.
        settings: how.
        progress: told each check before it runs, and its place.

    Raises:
        ValueError: the target cannot be opened; the message says why.
    """
    settings = settings or AuditSettings()
    wanted = list(settings.checks or CHECKS)
    report = Report(target, dict(settings.options))

    def begin(check: str) -> None:
        if progress:
            progress(check, wanted.index(check))

    waiting = [name for name in wanted if CHECKS[name].run is not None]
    ended: list[str] = []
    while waiting:
        reason = ""
        for message in _answers(report, settings, waiting):
            event = message.pop("event")
            if event == "begun":
                begin(message["check"])
            elif event == "outcome":
                report.results.append(Result(CHECKS[waiting.pop(0)], **message))
            elif event == "ended":
                reason = message["reason"]
        if waiting:  # the process ended in the midst of a check
            failed = waiting.pop(0)
            ended.append(f"{failed}: {reason}")
            report.results.append(Result(CHECKS[failed], "not applicable", f"no answer: {reason}"))
    if "seed_process" in wanted:
        begin("seed_process")
        report.results.append(_compare_processes(report, settings))
    if "process_survives" in wanted:
        report.results.append(_survival(ended))
    report.results.sort(key=lambda result: list(CHECKS).index(result.check.id))
    return report


def _survival(ended: Sequence[str]) -> Result:
    check = CHECKS["process_survives"]
    deaths = [each for each in ended if "time limit" not in each or each.startswith("plays:")]
    if deaths:
        what = f"the process ended, or gave no answer, during {'; '.join(deaths)}"
        return Result(check, "finding", what, f"# ragen-gym audit TARGET --check {deaths[0].partition(':')[0]}")
    late = f"; out of time: {', '.join(each.partition(':')[0] for each in ended)}" if ended else ""
    return Result(check, "passed", f"the process lived through every check{late}")


def _compare_processes(report: Report, settings: AuditSettings) -> Result:
    """Two processes with different hash seeds must give the same beginnings and episodes."""
    check = CHECKS["seed_process"]
    prints: list[dict[str, Any]] = []
    for hash_seed in ("1", "2"):
        found: dict[str, Any] = {}
        for message in _answers(report, settings, ["fingerprint"], hash_seed):
            found |= message
        if "levels" not in found:
            reason = found.get("failed") or found["reason"]
            return Result(check, "not applicable", f"another process gave no answer: {reason}")
        prints.append(found)
    one, two = prints
    if not one["seeds"]:
        return Result(check, "not applicable", "reset takes no seed")
    if report.status("seed_repeats") == "finding":
        return Result(check, "not applicable", "a seed does not repeat even in one process (see seed_repeats)")
    levels = list(zip(one["seeds"], one["levels"], two["levels"], strict=False))  # one may have run out of time first
    wrong = [seed for seed, first, second in levels if first != second]
    pairs = zip(one["seeds"], one["episodes"], two["episodes"], strict=False)
    played = [seed for seed, first, second in pairs if first != second and one["actions"] == two["actions"]]
    if not wrong and not played:
        what = f"{len(levels)} beginnings and {len(one['episodes'])} episodes are the same in two processes"
        return Result(check, "passed", what)
    what = f"{len(wrong)} of {len(levels)} seeds begin differently" if wrong else f"{len(played)} episodes differ"
    seed = (wrong or played)[0]
    detail = f"{what} in another process with another PYTHONHASHSEED, such as seed {seed}"
    return Result(check, "finding", detail, f"{report.code}\n{_IN_ANOTHER_PROCESS.format(seed=seed)}")


def _answers(
    report: Report, settings: AuditSettings, checks: Sequence[str], hash_seed: str = "0"
) -> Iterator[dict[str, Any]]:
    """The messages of a child process that runs these checks, and at last ``ended`` with how it ended.

    The child ends itself where a check exceeds its limit; a timer ends it, and all that it started, where it cannot.

    Raises:
        ValueError: the target cannot be opened.
    """
    limit = 3 * settings.seconds
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile("w+") as asked:
        asked.write(request_line(report.target, settings, checks))
        asked.seek(0)
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as answers:
            process = start_worker(settings, asked, writing, log, hash_seed)
            late = Event()

            def stop() -> None:
                late.set()
                end_worker(process)

            timer = Timer(START_SECONDS + limit * len(checks), stop)
            timer.start()
            try:
                for line in answers:
                    message = json.loads(line)
                    if message["event"] == "bad":
                        raise ValueError(f"{report.target} cannot be audited: {message['reason']}")
                    if message["event"] == "opened":
                        report.version, report.code = message["version"], message["code"]
                    yield message
                process.wait()
            finally:
                timer.cancel()
                end_worker(process)
        reason = why_ended(process, log, limit, late.is_set())
    if not report.version:
        raise ValueError(f"{report.target} cannot be audited: {reason}")
    yield {"event": "ended", "reason": reason}


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
    settings: AuditSettings, asked: IO[str] | int, writing: int, log: IO[bytes], hash_seed: str = "0"
) -> subprocess.Popen[bytes]:
    """A child process that reads requests from ``asked`` and answers on the descriptor ``writing``, closed here.

    Raises:
        ValueError: the interpreter cannot be started.
    """
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}
    if Path(settings.python) == Path(sys.executable):
        root = str(Path(__file__).parents[2])  # this package itself, for its own ids
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    else:
        environment.pop("PYTHONPATH", None)
    try:
        return subprocess.Popen(
            [settings.python, "-c", _BOOT, str(_WORKER), str(writing)],
            stdin=asked,
            stdout=log,
            stderr=log,
            pass_fds=(writing,),
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ValueError(f"python={settings.python} cannot be started: {error.strerror}.") from error
    finally:
        os.close(writing)


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
