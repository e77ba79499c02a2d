"""Displays that print nothing."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console

from ragen_agent.run.console import Display

__all__ = ["Interrupting", "quiet"]


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


class Interrupting(Display):
    """Interrupts the run after an iteration, the first of which is 0."""

    def __init__(self, iteration: int) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.iteration = iteration

    def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
        if record.get("iteration") == self.iteration:
            raise KeyboardInterrupt
