"""What a check of `ragen-agent doctor` says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check", "fail", "ok", "warn"]


@dataclass(frozen=True)
class Check:
    """`state`: ok, warn (a run may still work) or fail (it will not). `advice`: what to do; empty for ok."""

    name: str
    state: str
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", found)


def warn(name: str, found: str, advice: str) -> Check:
    """A run may work all the same."""
    return Check(name, "warn", found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    """A run would break."""
    return Check(name, "fail", found, advice)
