"""Playing ahead of training (``openrlhf.staleness``): which iteration is played when.

With a staleness of s the engines play iteration n + s while the models train on iteration n: its episodes come from the
weights after n updates, and are trained on when there are n + s. The weights are sent out between two iterations' play,
never during one, so all episodes of an iteration come from the same weights, and staleness is exactly s from iteration
s on (less where an iteration updated nothing). That is what OpenRLHF's asynchronous trainer does with a queue of s
iterations, whose staleness is s at most; its loops are not used, since they know no filter, no reason to stop and no
evaluation of ours.

``Training.correction`` makes up for the older weights, with the log-probs that the engines noted: PPO's ratio is to the
policy before the update, and a truncated weight leads there from the one that sampled (decoupled PPO: AReaL, arXiv
2505.24298).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["PlayAhead", "Played"]

T = TypeVar("T")


@dataclass(frozen=True)
class Played(Generic[T]):
    """Episodes of an iteration, and the time that they took."""

    found: T
    seconds: float


class PlayAhead(Generic[T]):
    """Plays iterations in their order, up to ``staleness`` of them ahead; at most one at a time.

    Args:
        play: plays an iteration; called in another thread, but for a staleness of 0.
        end: one past the last iteration.
        staleness: at least 0.
    """

    def __init__(self, play: Callable[[int], T], end: int, staleness: int) -> None:
        self._play, self._end, self._staleness = play, end, staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._begun: dict[int, Future[Played[T]]] = {}

    def take(self, iteration: int) -> Played[T]:
        """Episodes of an iteration; before waiting for them, the iterations ahead are started too.

        Raises:
            Exception: what ``play`` raised.
        """
        if not self._staleness:
            return self._timed(iteration)
        first = max(self._begun, default=iteration - 1) + 1
        for number in range(first, min(iteration + self._staleness + 1, self._end)):
            self._begun[number] = self._thread.submit(self._timed, number)
        return self._begun.pop(iteration).result()

    def wait(self) -> None:
        """Returns when nothing is being played."""
        wait(self._begun.values())

    def close(self, wait: bool = True) -> None:
        """Plays nothing further and drops what was played ahead; if asked, waits for what is being played."""
        self._thread.shutdown(wait=wait, cancel_futures=True)
        self._begun.clear()

    def __enter__(self) -> PlayAhead[T]:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Closes; after an error without waiting."""
        self.close(wait=error is None)

    def _timed(self, iteration: int) -> Played[T]:
        began = time.monotonic()
        return Played(self._play(iteration), time.monotonic() - began)
