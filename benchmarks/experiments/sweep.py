"""Experiments that are a grid: methods times values of one setting times games, written down as the three lists.

[sweep] setting, factors        what is varied, such as ``training.learning_rate``, by these factors of a panel's value
[[sweep.panels]] name, settings    such as a game; the settings hold the value that the factors multiply
[[sweep.lines]] name, about, settings, control    the methods
[[sweep.comparisons]] factor, measure, claim, asks, ...    each line against ``sweep.against``, in each panel

An arm is a line at a factor in a panel. ``asks`` may hold {panel} and {line}; what else a comparison takes is as in
``benchmarks.experiments.spec``. The page shows a measure as a figure with a panel for each game, the value of the
setting to the right, and a line for each method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ragen_agent.config import Settings, merged

__all__ = ["Sweep"]


@dataclass(frozen=True)
class Sweep:
    """See the module; ``panels`` and ``lines`` are the rows of the table."""

    setting: str
    factors: Sequence[float]
    against: str
    panels: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Mapping[str, Any]]

    @staticmethod
    def arm(panel: str, line: str, factor: float) -> str:
        """The name of an arm."""
        return f"{panel}, {line}, x{factor:g}"

    def value(self, panel: Mapping[str, Any], factor: float) -> float:
        """The setting's value in a panel at a factor."""
        whole: float = reduce(lambda table, key: table[key], self.setting.split("."), panel["settings"])
        return factor * whole

    def arm_rows(self) -> list[dict[str, Any]]:
        """The arms, as rows of a table without a sweep."""
        rows = []
        for panel, line, factor in ((p, each, f) for p in self.panels for each in self.lines for f in self.factors):
            varied: Any = self.value(panel, factor)
            for key in reversed(self.setting.split(".")):
                varied = {key: varied}
            settings: Settings = merged(merged(panel["settings"], line.get("settings", {})), varied)
            rows.append({**line, "name": self.arm(panel["name"], line["name"], factor), "settings": settings})
        return rows

    def comparison_rows(self) -> list[dict[str, Any]]:
        """The comparisons, as rows of a table without a sweep."""
        others = [line["name"] for line in self.lines if line["name"] != self.against]
        rows = []
        for panel, line, each in ((p["name"], o, c) for p in self.panels for o in others for c in self.comparisons):
            row = {key: value for key, value in each.items() if key != "factor"}
            first, second = (self.arm(panel, name, each["factor"]) for name in (line, self.against))
            rows.append({**row, "asks": row["asks"].format(panel=panel, line=line), "first": first, "second": second})
        return rows
