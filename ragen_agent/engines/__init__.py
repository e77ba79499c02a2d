"""Where tokens come from: an `Engine` continues rows of token ids; the rollout loop asks nothing else of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Engine", "Sampled", "Session"]


@dataclass(frozen=True)
class Sampled:
    """The tokens sampled for one row in one turn.

    `ids`: the sampled token ids, the stop id included if one was drawn. `log_probs`: one natural logarithm for each,
    under the distribution they were drawn from (temperature and suppressed ids included).
    """

    ids: list[int]
    log_probs: list[float]


class Session(Protocol):
    """One batch of rows in play. Rows are numbered by their place among those still kept."""

    def reply(self, limits: Sequence[int]) -> list[Sampled]:
        """Samples for every row until a stop id or `limits[row]` tokens, whichever comes first."""
        ...

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Keeps only `rows` (increasing) and appends `ids[i]`, the template's own tokens, to the i-th of them."""
        ...


class Engine(Protocol):
    """Continues token ids. It never sees text, so nothing that was sampled is ever encoded a second time."""

    def start(self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int) -> Session:
        """Opens a session with one row for each prompt; equal arguments and weights give equal samples."""
        ...
