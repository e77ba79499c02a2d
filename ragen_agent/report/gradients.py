"""The table of ``gradients.json``: gradient norms by return std, as ``ragen-agent gradients`` measures them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_agent.report.runs import RecordedRun

TERMS = {"task": "task", "entropy": "entropy bonus", "kl": "KL term"}


def gradient_table(buckets: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column names, and a row of cells for each bucket that holds an episode."""
    terms = [term for term in TERMS if any(term in bucket for bucket in buckets)]
    rows = [
        [
            str(bucket["bucket"] or "all"),
            str(bucket["groups"]),
            f"{bucket['return_std']:.3f} ({bucket['return_std_low']:.3f} to {bucket['return_std_high']:.3f})",
            *(f"{bucket[term]:.2e} ({bucket[f'{term}_expected']:+.1e})" for term in terms),
        ]
        for bucket in buckets
        if bucket["episodes"]
    ]
    return ["bucket", "groups", "return std", *(TERMS[term] for term in terms)], rows


def gradients_of(run: RecordedRun) -> dict[str, Any] | None:
    """The table of a run's ``gradients.json``, if it was measured; raises a ValueError if the file is damaged."""
    path = run.folder.path / "gradients.json"
    if not path.is_file():
        return None
    try:
        columns, rows = gradient_table(json.loads(path.read_text(encoding="utf-8"))["buckets"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): measure again, with ragen-agent gradients.") from error
    return {"name": run.name, "columns": columns, "rows": rows}
