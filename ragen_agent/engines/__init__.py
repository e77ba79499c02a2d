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
    """Rows in play. They are numbered by their place among those still kept, new ones after the old."""

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int]) -> None:
        """Appends one row for each prompt; `episodes` are numbers that no other row of the session has."""
        ...

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """Samples for every row until a stop id or `limits[row]` tokens, whichever comes first.

        None where a row is still writing: it goes on at the next call, if it is kept and fed nothing, with the same
        limit. At least one row has stopped.
        """
        ...

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Keeps only `rows` (increasing) and appends `ids[i]`, the template's own tokens, to the i-th of them."""
        ...

    def close(self) -> None:
        """Ends the session; nothing may be asked of it afterwards."""
        ...


class Engine(Protocol):
    """Continues token ids. It never sees text, so nothing that was sampled is ever encoded a second time."""

    def start(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, episodes: Sequence[int] | None = None
    ) -> Session:
        """Opens a session with one row for each prompt; equal arguments and weights give equal samples.

        `episodes` number the rows, by default from 0 on. A row's samples depend on the seed and on its own number.
        """
        ...

    def rows(self, tokens: int) -> int:
        """How many rows of so many tokens a session may hold at a time."""
        ...
