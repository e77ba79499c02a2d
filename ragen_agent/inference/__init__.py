"""Generation engines: an ``Engine`` continues rows of token ids, which is all that rollouts and benchmarks need.

A picture is a run of placeholder ids in a row, plus an ``ImageSpan`` next to it.

The interface has no dependencies; ``torch_engine`` needs the extra ``agent`` (torch and transformers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Engine", "GenerationSession", "ImageSpan", "RowImages", "Sampled"]


@dataclass(frozen=True, eq=False)
class ImageSpan:
    """A picture in a row of tokens, and the place of its placeholders.

    Attributes:
        start: index of the first placeholder.
        grid: (rows, columns) of visual tokens; rows * columns placeholders follow one another.
        pixels: uint8 (height, width, 3).
        digest: hash of the pixels and their shape; computed if not given.
    """

    start: int
    grid: tuple[int, int]
    pixels: NDArray[np.uint8]
    digest: bytes = b""

    def __post_init__(self) -> None:
        assert self.start >= 0
        assert min(self.grid) >= 1
        assert self.pixels.dtype == np.uint8
        assert self.pixels.ndim == 3
        if not self.digest:
            found = hashlib.blake2b(self.pixels.tobytes(), digest_size=16)
            found.update(repr(self.pixels.shape).encode())
            object.__setattr__(self, "digest", found.digest())

    @property
    def tokens(self) -> int:
        """The number of placeholders."""
        return self.grid[0] * self.grid[1]

    @property
    def end(self) -> int:
        """The index after its last placeholder."""
        return self.start + self.tokens

    def moved(self, by: int) -> ImageSpan:
        """The same picture ``by`` tokens further on."""
        return replace(self, start=self.start + by)


RowImages = Sequence[Sequence[ImageSpan]] | None
"""The pictures in each of several lists of ids, counted from its first token; None if there are none."""


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
    """Rows being generated, numbered from 0 in the order of joining; ``feed`` renumbers them."""

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int], *, images: RowImages = None) -> None:
        """Appends one row for each prompt; ``episodes`` are numbers unique within the session."""
        ...

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """Samples for every row until a stop id or ``limits[row]`` tokens, whichever comes first.

        Returns:
            the replies; None for a row that has not stopped yet, which continues at the next call with the same limit
            if it is kept and fed nothing. At least one row has stopped.
        """
        ...

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]], *, images: RowImages = None) -> None:
        """Keeps only ``rows`` (increasing) and appends ``ids[i]``, tokens of the chat template, to the i-th of them."""
        ...

    def close(self) -> None:
        """Ends the session; do not use it afterwards."""
        ...


class Engine(Protocol):
    """Continues token ids. It never sees text, so sampled tokens are never re-encoded."""

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        episodes: Sequence[int] | None = None,
        images: RowImages = None,
    ) -> GenerationSession:
        """Opens a session with one row for each prompt; equal arguments and weights give equal samples.

        ``episodes`` number the rows, by default from 0. A row's samples depend on the seed and on its own number.
        """
        ...

    def max_rows(self, tokens: int) -> int:
        """Maximum number of rows of ``tokens`` tokens in a session."""
        ...
