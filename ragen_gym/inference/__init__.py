"""Generation engines: an ``Engine`` continues rows of token ids; rollouts and benchmarks need nothing else of a model.

The interface needs nothing installed; ``torch_engine`` needs the extra ``agent``: torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Engine", "GenerationSession", "Sampled"]


@dataclass(frozen=True)
class Sampled:
    """The tokens sampled for one row in one turn.

    Attributes:
        ids: the sampled token ids, including the stop id if one was drawn.
        log_probs: the natural logarithm of each one's probability in the distribution from which it was drawn
            (with temperature and suppressed ids).
    """

    ids: list[int]
    log_probs: list[float]


class GenerationSession(Protocol):
    """Rows that are being generated, numbered from 0 in the order in which they joined; ``feed`` renumbers them."""

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int]) -> None:
        """Appends one row for each prompt; ``episodes`` are numbers that no other row of the session has."""
        ...

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """Samples for every row until a stop id or ``limits[row]`` tokens, whichever comes first.

        Returns:
            the replies; None for a row that has not stopped yet. It continues at the next call with the same limit, if
            it is kept and fed nothing. At least one row has stopped.
        """
        ...

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Keeps only ``rows`` (increasing) and appends ``ids[i]``, tokens of the chat template, to the i-th of them."""
        ...

    def close(self) -> None:
        """Ends the session, which must not be used afterwards."""
        ...


class Engine(Protocol):
    """Continues token ids. It never sees text, so sampled tokens are never re-encoded."""

    def start(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, episodes: Sequence[int] | None = None
    ) -> GenerationSession:
        """Opens a session with one row for each prompt; equal arguments and weights give equal samples.

        ``episodes`` number the rows, by default from 0. A row's samples depend on the seed and on its own number.
        """
        ...

    def max_rows(self, tokens: int) -> int:
        """How many rows of so many tokens a session can hold."""
        ...
