"""The vertical axes of the curves: from what to what, with which lines, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scale", "axis", "said"]

SHARES = ("success", "validation", "invalid_rate", "effective_rate", "repeated_rate", "retrieval_accuracy")
LOGARITHMIC = 30.0  # times the median that a maximum may be before the axis is logarithmic


@dataclass(frozen=True)
class Scale:
    """From a value to its height in thousandths."""

    low: float
    high: float
    logarithmic: bool = False

    def height(self, value: NDArray[np.float64] | float) -> Any:
        """Clipped a little outside of the panel."""
        low, high, value = self.low, self.high, np.asarray(value, float)
        if self.logarithmic:
            low, high, value = log10(low), log10(high), np.log10(np.maximum(value, self.low))
        return np.clip(1000 - 1000 * (value - low) / (high - low), -20, 1020)


def axis(name: str, series: Sequence[NDArray[np.float64]]) -> tuple[Scale, list[float]]:
    """The scale of a figure, and the values of its grid lines; logarithmic where a few values dwarf the others."""
    if _share(name):
        return Scale(0.0, 1.0), [0.0, 0.5, 1.0]
    values = np.concatenate(list(series))
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > LOGARITHMIC * float(np.median(values)):
        least = floor(log10(low))
        most = max(least + 1, ceil(log10(high)))
        powers = range(least, most + 1, max(1, (most - least + 3) // 4))
        return Scale(10.0**least, 10.0**most, True), [10.0**power for power in powers]
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    step = _round_step((high - low) / 3)
    first, end = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return Scale(first * step, end * step), [number * step for number in range(first, end + 1)]


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least as large."""
    power = 10.0 ** floor(log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)))


def said(name: str, value: float) -> str:
    """A value of a figure as people read it."""
    if _share(name):
        return f"{100 * value:.0f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f} k".replace("-", "\N{MINUS SIGN}")
    digits = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    text = f"{value:.{digits}f}" if size >= 0.001 or value == 0 else f"{value:.0e}"
    text = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return text.replace("-", "\N{MINUS SIGN}")


def _share(name: str) -> bool:
    return name in SHARES or name.startswith("success/")
