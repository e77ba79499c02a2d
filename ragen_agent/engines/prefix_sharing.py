"""Prefix sharing: rows with equal tokens so far share one slot of the cache until their tokens differ.

The rows of a group have the same prompt, and a trained policy samples much of a reply's form identically, so fewer
prefixes than rows have to be computed. A row has a slot and a length: how many of the slot's tokens are its own. A row
that has stopped keeps its slot although another row may continue in it. Of rows that continue differently, one keeps
the slot and the others get copies.

Every operation returns what the cache has to copy, as ``(sources, targets)``: slot ``targets[i]`` gets the content of
slot ``sources[i]``, all at once. Slots 0 to ``count - 1`` are in use, each by at least one row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Copies", "SharedPrefixes"]

Copies = tuple[list[int], list[int]]


class SharedPrefixes:
    """The slots of all rows.

    Attributes:
        slot: int64 (rows,), -1 for a row that has read nothing yet.
        length: int64 (rows,), how many tokens of the slot belong to the row.
        count: how many slots are in use.
    """

    def __init__(self) -> None:
        self.slot = np.zeros(0, np.int64)
        self.length = np.zeros(0, np.int64)
        self.count = 0

    def add(self, rows: int) -> None:
        """Appends rows that have read nothing."""
        self.slot = np.concatenate([self.slot, np.full(rows, -1)])
        self.length = np.concatenate([self.length, np.zeros(rows, np.int64)])

    def keep(self, rows: Sequence[int]) -> Copies:
        """Keeps only these rows; slots that become free are filled with the last ones."""
        self.slot, self.length = self.slot[list(rows)], self.length[list(rows)]
        used = np.unique(self.slot[self.slot >= 0])
        self.count = len(used)
        late, free = used[used >= self.count], np.setdiff1d(np.arange(self.count), used)
        return self._move(late.tolist(), free.tolist())

    def to_front(self, rows: NDArray[np.int64]) -> tuple[Copies, int]:
        """Swaps slots so that those of these rows come first; also returns how many they are."""
        used = np.unique(self.slot[rows])
        front = len(used)
        late, free = used[used >= front].tolist(), np.setdiff1d(np.arange(front), used).tolist()
        return self._move([*late, *free], [*free, *late]), front

    def split(self, rows: NDArray[np.int64], continuations: Sequence[Hashable], front: int) -> tuple[Copies, int]:
        """Gives rows of one prefix that continue differently slots of their own.

        Args:
            rows: those that continue; their slots are among the first ``front``.
            continuations: what each of them continues with.
            front: where new slots are inserted, before the slots of rows that do not continue.

        Returns:
            what to copy, and the number of slots up to and including the new ones.
        """
        places: dict[tuple[int, int, Hashable], int] = {}
        taken: set[int] = set()
        copied: list[int] = []
        slots: list[int] = []
        for slot, length, tokens in zip(
            self.slot[rows].tolist(), self.length[rows].tolist(), continuations, strict=True
        ):
            key = (slot, length, tokens)
            if key not in places and slot in taken:
                places[key] = front + len(copied)
                copied.append(slot)
            taken.add(slot)
            slots.append(places.setdefault(key, slot))
        end = front + len(copied)
        displaced = list(range(front, min(self.count, end)))
        begin = max(self.count, end)
        aside = list(range(begin, begin + len(displaced)))
        self._move(displaced, aside)
        self.slot[rows] = slots
        self.count += len(copied)
        return ([*copied, *displaced], [*range(front, end), *aside]), end

    def assign(self, groups: Sequence[Sequence[int]]) -> None:
        """Gives each group of rows with the same prompt one new slot."""
        for group in groups:
            self.slot[list(group)] = self.count
            self.count += 1

    def _move(self, sources: list[int], targets: list[int]) -> Copies:
        place = np.arange(max([self.count, *self.slot + 1, *(slot + 1 for slot in sources)]))
        place[sources] = targets
        known = self.slot >= 0
        self.slot[known] = place[self.slot[known]]
        return sources, targets
