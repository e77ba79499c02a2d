"""Which slot of the cache holds the history of which row. Rows with one history share one slot until they part.

The members of a group begin alike, and a policy that has learned a form of reply writes much of it alike, so fewer
histories than rows have to be computed. A row has a slot and a length, how many of the slot's tokens are its own: a
row that stopped keeps its slot although another writes on in it. Of rows that go on differently one keeps the slot,
and the others get copies.

Every operation returns what the cache has to copy, as `(sources, targets)`: slot `targets[i]` gets what slot
`sources[i]` holds, all at once. Slots 0 to `count - 1` are in use, each by one row at least.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Branches", "Copies"]

Copies = tuple[list[int], list[int]]


class Branches:
    """See the module. `slot` and `length`: int64 (rows,); a row that has read nothing yet has slot -1 and length 0."""

    def __init__(self) -> None:
        self.slot = np.zeros(0, np.int64)
        self.length = np.zeros(0, np.int64)
        self.count = 0

    def join(self, rows: int) -> None:
        """Appends rows that have read nothing."""
        self.slot = np.concatenate([self.slot, np.full(rows, -1)])
        self.length = np.concatenate([self.length, np.zeros(rows, np.int64)])

    def keep(self, rows: Sequence[int]) -> Copies:
        """Keeps these rows only; slots that nobody uses any more are filled from behind."""
        self.slot, self.length = self.slot[list(rows)], self.length[list(rows)]
        used = np.unique(self.slot[self.slot >= 0])
        self.count = len(used)
        late, free = used[used >= self.count], np.setdiff1d(np.arange(self.count), used)
        return self._move(late.tolist(), free.tolist())

    def to_front(self, rows: NDArray[np.int64]) -> tuple[Copies, int]:
        """The slots of these rows change places with others so as to stand before them; also says how many they are."""
        used = np.unique(self.slot[rows])
        front = len(used)
        late, free = used[used >= front].tolist(), np.setdiff1d(np.arange(front), used).tolist()
        return self._move([*late, *free], [*free, *late]), front

    def part(self, rows: NDArray[np.int64], ways: Sequence[Hashable], front: int) -> tuple[Copies, int]:
        """Rows of one history that go different ways get slots of their own.

        Args:
            rows: those that go on; their slots are among the first `front`.
            ways: what each of them goes on with.
            front: new slots are put here, before the slots of rows that do not go on.

        Returns:
            what to copy, and the number of slots up to and with the new ones.
        """
        places: dict[tuple[int, int, Hashable], int] = {}
        taken: set[int] = set()
        parted: list[int] = []
        slots: list[int] = []
        for slot, length, way in zip(self.slot[rows].tolist(), self.length[rows].tolist(), ways, strict=True):
            key = (slot, length, way)
            if key not in places and slot in taken:
                places[key] = front + len(parted)
                parted.append(slot)
            taken.add(slot)
            slots.append(places.setdefault(key, slot))
        end = front + len(parted)
        displaced = list(range(front, min(self.count, end)))
        begin = max(self.count, end)
        aside = list(range(begin, begin + len(displaced)))
        self._move(displaced, aside)
        self.slot[rows] = slots
        self.count += len(parted)
        return ([*parted, *displaced], [*range(front, end), *aside]), end

    def open(self, groups: Sequence[Sequence[int]]) -> None:
        """Each group of rows that have read nothing gets one new slot."""
        for group in groups:
            self.slot[list(group)] = self.count
            self.count += 1

    def _move(self, sources: list[int], targets: list[int]) -> Copies:
        place = np.arange(max([self.count, *self.slot + 1, *(slot + 1 for slot in sources)]))
        place[sources] = targets
        known = self.slot >= 0
        self.slot[known] = place[self.slot[known]]
        return sources, targets
