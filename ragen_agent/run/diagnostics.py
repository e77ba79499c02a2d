"""Per-iteration diagnostics and their timings, shared by both trainers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ragen_agent.config import Config
from ragen_agent.run.alarm import History
from ragen_agent.run.information import MeasuredPolicy, information_figures
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.update.iteration import Iteration
from ragen_gym.core.stats import Rate

T = TypeVar("T")


class Monitor:
    """The diagnostics of a run, each in its due iterations, and their times.

    ``piece`` gives a token's text; ``validation`` measures the success on the fixed levels of the split ``validation``;
    None for runs without it.
    """

    def __init__(self, config: Config, piece: Callable[[int], str], validation: Callable[[], Rate] | None) -> None:
        self.config, self.piece, self.validation = config, piece, validation
        self._costs: dict[str, float] = {}

    def before_update(
        self, policy: MeasuredPolicy, iteration: Iteration, past: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """The figures of the episodes, and the figures that need the policy that played them.

        ``past`` are the records of the iterations before.
        """
        figures: dict[str, Any] = {}
        if self.config.stops.sampled_tokens:
            figures["sampled_tokens"] = iteration.sampled_tokens
        if self.config.program.command:
            figures["new_prompts"] = sum(max(0, len(t.contexts) - 1) for t in iteration.played)
        figures |= self.timed("replies", lambda: iteration.figures(self.piece))
        if _due(self.config.diagnostics.information_every, iteration.number):
            seed = derive_seed(self.config.seed, SeedStream.INFORMATION, iteration.number)
            played, own = iteration.played, iteration.own_tokens
            measure = partial(information_figures, policy, played, self.piece, seed, past, own)
            figures |= self.timed("information", measure)
        return figures

    def validate(self, iteration: int) -> dict[str, float]:
        """The success of the validation, if one is due after this iteration."""
        if self.validation is None or not _due(self.config.stops.validate_every, iteration + 1):
            return {}
        return {"validation": self.timed("validation", self.validation).rate}

    def alarm(self, history: History, record: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, list[str]]:
        """Prints the signs of collapse that first appear in an iteration not yet in the history; returns the names."""
        signs = self.timed("alarm", lambda: history.new_signs(record))
        for sign in signs:
            say(str(sign))
        return {"alarm": [sign.name for sign in signs]} if signs else {}

    def timed(self, name: str, measure: Callable[[], T]) -> T:
        """Returns ``measure()`` and records its time under this name."""
        started = time.monotonic()
        result = measure()
        self._costs[name] = time.monotonic() - started
        return result

    def take_costs(self) -> dict[str, float]:
        """Seconds of each measurement since the last call."""
        costs, self._costs = self._costs, {}
        return costs


def _due(every: int, iteration: int) -> bool:
    return bool(every) and iteration % every == 0
