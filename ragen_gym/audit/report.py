"""Findings of an audit, as data, as rows of a table and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ragen_gym.audit.worker.table import CHECKS, SEVERITIES, Check

__all__ = ["Report", "Result"]


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: Check
    status: str  # "passed", "finding" or "not applicable"
    detail: str  # what was seen, or why the check does not apply
    evidence: str = ""  # Python that ends in a failing assertion
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, check: Check, message: Mapping[str, Any]) -> Result:
        """The result that a worker's message holds."""
        return cls(check, message["status"], message["detail"], message["evidence"], message["numbers"])

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a finding says why it matters and how to fix it."""
        found: dict[str, Any] = {
            "check": self.check.id,
            "title": self.check.title,
            "severity": self.check.severity,
            "status": self.status,
            "detail": self.detail,
        }
        if self.numbers:
            found["numbers"] = dict(self.numbers)
        if self.status == "finding":
            found |= {"evidence": self.evidence, "why": self.check.why, "fix": self.check.fix}
        return found


@dataclass
class Report:
    """Everything that an audit of one target found."""

    target: str
    options: dict[str, Any]
    kind: str = ""
    version: str = ""
    code: str = ""  # Python that defines new, start and act
    results: list[Result] = field(default_factory=list)

    def sort(self) -> None:
        """In the order of the table of checks."""
        order = list(CHECKS)
        self.results.sort(key=lambda result: order.index(result.check.id))

    def status(self, check: str) -> str | None:
        """The status of a check; None where it was not run."""
        return next((result.status for result in self.results if result.check.id == check), None)

    def findings(self, least: str = SEVERITIES[-1]) -> list[Result]:
        """The findings of a severity or graver, the gravest first."""
        ranks = {name: rank for rank, name in enumerate(SEVERITIES)}
        found = [
            result
            for result in self.results
            if result.status == "finding" and ranks[result.check.severity] <= ranks[least]
        ]
        return sorted(found, key=lambda result: ranks[result.check.severity])

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
            "kind": self.kind,
            "version": self.version,
            "counts": self.counts(),
            "checks": [result.to_dict() for result in self.results],
        }
