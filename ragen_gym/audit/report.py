"""Findings of an audit, as data, as rows of a table and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen_gym.audit.worker.protocol import SEVERITIES, Check

__all__ = ["Report", "Result"]


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: Check
    status: str  # "passed", "finding" or "not applicable"
    detail: str  # what was seen, or why the check does not apply
    evidence: str = ""  # Python that ends in a failing assertion

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a finding says why it matters and how to fix it."""
        found: dict[str, Any] = {
            "check": self.check.id,
            "title": self.check.title,
            "severity": self.check.severity,
            "status": self.status,
            "detail": self.detail,
        }
        if self.status == "finding":
            found |= {"evidence": self.evidence, "why": self.check.why, "fix": self.check.fix}
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

    def findings(self, least: str = SEVERITIES[-1]) -> list[Result]:
        """The findings of a severity or graver, the gravest first."""
        found = [result for result in self.results if result.status == "finding"]
        found.sort(key=lambda result: SEVERITIES.index(result.check.severity))
        return [result for result in found if SEVERITIES.index(result.check.severity) <= SEVERITIES.index(least)]

    def counts(self) -> dict[str, int]:
        """Number of checks with each status."""
        return {
            status: sum(result.status == status for result in self.results)
            for status in ("passed", "finding", "not applicable")
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target,
            "options": self.options,
            "version": self.version,
            "counts": self.counts(),
            "checks": [result.to_dict() for result in self.results],
        }
