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
        """The setting's value in a panel at a factor.

        Raises:
            ValueError: the panel's settings do not hold it.
        """
        try:
            whole: float = reduce(lambda table, key: table[key], self.setting.split("."), panel["settings"])
        except KeyError as error:
            raise ValueError(f"sweep: the panel {panel['name']!r} has no {self.setting} to multiply.") from error
        return factor * whole

    def arm_rows(self) -> list[dict[str, Any]]:
        """The arms, as rows of a table without a sweep."""
        return [
            {
                **line,
                "name": self.arm(panel["name"], line["name"], factor),
                "settings": merged(merged(panel["settings"], line.get("settings", {})), self._set(panel, factor)),
            }
            for panel in self.panels
            for line in self.lines
            for factor in self.factors
        ]

    def comparison_rows(self) -> list[dict[str, Any]]:
        """The comparisons, as rows of a table without a sweep."""
        rows = []
        for panel in self.panels:
            for line in self.lines:
                for comparison in self.comparisons if line["name"] != self.against else ():
                    row = dict(comparison)
                    factor = row.pop("factor")
                    row["asks"] = row["asks"].format(panel=panel["name"], line=line["name"])
                    names = (self.arm(panel["name"], name, factor) for name in (line["name"], self.against))
                    rows.append({**row, **dict(zip(("first", "second"), names, strict=True))})
        return rows

    def _set(self, panel: Mapping[str, Any], factor: float) -> Settings:
        settings: Any = self.value(panel, factor)
        for key in reversed(self.setting.split(".")):
            settings = {key: settings}
        return dict(settings)
