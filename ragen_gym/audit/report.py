"""An audit and its report: checks are run in child processes with time limits, and processes compared."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event, Timer
from typing import Any

from ragen_gym.audit.sandbox import START_SECONDS, AuditSettings, end_worker, request_line, start_worker, why_ended
from ragen_gym.audit.worker.main import CHECKS
from ragen_gym.audit.worker.protocol import SEVERITIES, Check


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
    random_text: bool = False  # whether the actions were random characters: see ``Target``
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
        random = {"random_text": True} if self.random_text else {}
        return {**about, **random, "checks": [result.to_dict() for result in self.results]}


#: Evidence that a seed begins differently in another process.
_IN_ANOTHER_PROCESS = """\
import os, subprocess, sys; a = repr(start(new(), {seed})); print(a); again = [*sys.orig_argv, 'again']
b = a if 'again' in sys.argv else subprocess.run(
    again, env={{**os.environ, 'PYTHONHASHSEED': '77'}}, capture_output=True, text=True).stdout
assert a in b"""


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
        process, answers = start_worker(settings, asked, log, hash_seed)
        with answers:
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
                        report.random_text = message["random_text"]
                    yield message
                process.wait()
            finally:
                timer.cancel()
                end_worker(process)
        reason = why_ended(process, log, limit, late.is_set())
    if not report.version:
        raise ValueError(f"{report.target} cannot be audited: {reason}")
    yield {"event": "ended", "reason": reason}
