"""The form of a check that OpenEnv calls, and its validation of a running server with all that are registered.

``openenv validate`` of OpenEnv 0.10 loads none of them, and runs no semantic check. This does both, with OpenEnv's own
registry, scheduler, policy and report: ``python -m ragen_gym.integrations.graders FOLDER URL``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from openenv.validation import (
    CheckResult,
    CheckStatus,
    Lane,
    Level,
    Subject,
    apply_policy,
    detect_signature,
    load_policy,
)
from openenv.validation.report import ValidationReportV2
from openenv.validation.runner import default_grader_registry, default_parser_registry, source_digest
from openenv.validation.runtime.scheduler import execute_graders

from ragen_gym.audit.worker.protocol import NotApplicable
from ragen_gym.integrations.graders.replay import Package

#: A registry refuses a second grader of an id, and a later OpenEnv may have its own: there ours are not selected.
_KNOWN = version("openenv").startswith("0.10.")


class Answer(NamedTuple):
    """Outcome of a check that could be made."""

    holds: bool
    evidence: str
    measured: dict[str, Any] = {}  # noqa: RUF012  # never changed


@dataclass(frozen=True)
class Grader:
    """One check in the form of OpenEnv's protocol. Where it cannot tell, it SKIPs with the reason."""

    name: str
    answer: Callable[[Package], Answer]  # may raise NotApplicable
    fix: str
    depends_on: tuple[str, ...]
    requires_capabilities: frozenset[str]
    requires_provider: frozenset[Any] = frozenset()

    @property
    def check_id(self) -> str:  # noqa: D102
        return self.name if _KNOWN else f"ragen_gym.{self.name.partition('.')[2]}"

    @property
    def level(self) -> Level:  # noqa: D102
        return Level[self.name.partition(".")[0].upper()]

    def applies_to(self, manifest: Any) -> bool:
        """False where a model judges: its rewards vary within a bound, and these checks are of equality."""
        return _KNOWN and not manifest.capabilities.llm_judged

    def run(self, subject: Subject) -> CheckResult:  # noqa: D102
        began, found = time.monotonic(), Answer(False, "")
        try:
            found = self.answer(Package(subject))
            status = CheckStatus.PASS if found.holds else CheckStatus.FAIL
        except NotApplicable as reason:
            status, found = CheckStatus.SKIP, Answer(False, str(reason))
        fix, took = self.fix if status is CheckStatus.FAIL else None, time.monotonic() - began
        about = {"evidence": [found.evidence], "measured": found.measured, "remediation": fix, "duration_s": took}
        return CheckResult(check_id=self.check_id, status=status, **about)


def validate(folder: Path, url: str) -> ValidationReportV2:
    """OpenEnv's report of a package and of its server, which is running at ``url`` and neither built nor isolated here.

    Checks of a container, and those that no registered grader answers, are SKIP.

    Raises:
        ValueError: the package has no ``validation.execution``, or the server does not answer its runtime plan.
    """
    policy, signature = load_policy("v2"), detect_signature(folder)
    manifest = default_parser_registry().parser_for(signature).parse(folder)
    registry = default_grader_registry(policy)
    registry.load_entry_points()
    running = SimpleNamespace(base_url=url.rstrip("/"))
    subject = Subject(folder, manifest, None, running, folder / "outputs")
    try:
        evidence = Package(subject).record()
    except NotApplicable as reason:
        raise ValueError(f"{url} cannot be validated as {folder}: {reason}.") from reason
    begun = CheckResult(check_id="runtime.startup", status=CheckStatus.PASS, duration_s=0)
    subject = replace(subject, runtime_evidence=evidence)
    results = execute_graders(registry.select(manifest, Level.SEMANTIC), subject, prior=[begun])
    left = policy.entries_for_lane(Lane.LOCAL).keys() - {result.check_id for result in results}
    skip = {"status": CheckStatus.SKIP, "evidence": ["no registered grader applies"], "duration_s": 0}
    results += [CheckResult(check_id=check, **skip) for check in sorted(left)]
    return ValidationReportV2(
        report_schema_version="2",
        target=str(folder),
        source_digest=source_digest(folder),
        signature=signature,
        manifest=manifest,
        policy_version=policy.policy_version,
        lane=Lane.LOCAL,
        levels_run=[Level.STATIC, Level.RUNTIME, Level.SEMANTIC],
        results=results,
        verdict=apply_policy(results, policy, Lane.LOCAL),
    )
