"""The key-value cache of the grouped engine: its slots and prefix sharing.

The rows of a group have the same prompt, and a trained policy often samples the same beginning of a reply, so there are
fewer prefixes to compute than rows. A row has a slot and a length, the number of the slot's tokens that are its own. A
row that has stopped keeps its slot although another row may continue in it. Of rows that continue differently, one
keeps the slot and the others get copies.

Every operation returns the copies that the cache has to make, as ``(sources, targets)``: slot ``targets[i]`` gets the
content of slot ``sources[i]``, all at once. Slots 0 to ``count - 1`` are in use, each by at least one row.

The token at position p of a row is in column p, so there is no padding: a row's columns beyond its length are free and
are overwritten when the row grows. A slot is reused by starting again at column 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

Copies = tuple[list[int], list[int]]


COLUMN_STEP = 32
"""Columns are allocated in multiples of this. Attention runs over all columns, spare ones included: the buffers of all
rows are then contiguous, which is more than twice as fast on a CPU as attention over a part of them."""


class SharedPrefixes:
    """The slots of all rows.

    Attributes:
        slot: int64 (rows,), -1 for a row that has read nothing yet.
        length: int64 (rows,), number of the slot's tokens that belong to the row.
        count: number of slots in use.
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
        """Swaps slots so that the slots of these rows come first; also returns their number."""
        used = np.unique(self.slot[rows])
        front = len(used)
        late, free = used[used >= front].tolist(), np.setdiff1d(np.arange(front), used).tolist()
        return self._move([*late, *free], [*free, *late]), front

    def split(self, rows: NDArray[np.int64], continuations: Sequence[Hashable], front: int) -> tuple[Copies, int]:
        """Gives rows of one prefix that continue differently slots of their own.

        Args:
            rows: rows that continue; their slots are among the first ``front``.
            continuations: the continuation of each of them.
            front: where new slots are inserted, before the slots of rows that do not continue.

        Returns:
            the copies to make, and the number of slots up to and including the new ones.
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


def padded_columns(columns: int) -> int:
    """Number of columns allocated for ``columns``."""
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


class _Layer(DynamicLayer):
    """One layer's keys and values, each a view (slots, heads, columns, head size) of persistent memory."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.memory: list[Tensor] = []
        self.buffers: list[Tensor] = []

    def get_seq_length(self) -> int:
        return self.cache.columns

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cache, new = self.cache, (key_states, value_states)
        if not self.buffers:
            shapes = [(cache.slots, states.shape[1], cache.columns, states.shape[3]) for states in new]
            self.memory = [states.new_zeros(prod(shape)) for states, shape in zip(new, shapes, strict=True)]
            self.buffers = [memory.view(shape) for memory, shape in zip(self.memory, shapes, strict=True)]
            self.is_initialized = True
        if cache.positions is None:  # prompts: nothing precedes them
            for buffer, states in zip(self.buffers, new, strict=True):
                buffer[cache.rows, :, : states.shape[2]] = states
            return new
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer.transpose(1, 2)[cache.index, cache.positions] = states.transpose(1, 2)
        self.keys, self.values = (buffer[cache.rows] for buffer in self.buffers)
        return self.keys, self.values

    def resize(self, slots: int, columns: int, live: int) -> None:
        for index, old in enumerate(self.buffers):
            shape = (slots, old.shape[1], columns, old.shape[3])
            kept = old[:live, :, :columns].clone()
            if prod(shape) > len(self.memory[index]):
                self.memory[index] = old.new_zeros(prod(shape))
            self.buffers[index] = self.memory[index][: prod(shape)].view(shape)
            self.buffers[index][:live, :, : kept.shape[2]] = kept

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for buffer in self.buffers:
            buffer[targets] = buffer[sources]


class SlotCache(Cache):
    """A cache for ``transformers`` whose rows are added, removed and moved.

    Before each forward pass, ``set_positions`` or ``set_prompts`` sets the slots of the pass's rows.

    Attributes:
        capacity: maximum tokens, ``slots * columns``.
        slots, columns: its current size.
    """

    def __init__(self, capacity: int) -> None:
        # A weak reference; with a strong one only the garbage collector would free a session's GPU memory.
        own = proxy(self)
        super().__init__(layer_class_to_replicate=lambda: _Layer(own))  # type: ignore[arg-type]
        self.capacity = capacity
        self.slots = self.columns = 0
        self.rows = slice(0)
        self.positions: Tensor | None = None
        self.index = torch.zeros(0, 1, dtype=torch.long)

    def set_positions(self, rows: slice, positions: Tensor) -> None:
        """The next pass reads tokens at ``positions``, int64 (rows, width), of these slots."""
        self.rows, self.positions = rows, positions
        self.index = torch.arange(rows.start or 0, rows.stop, device=positions.device)[:, None]

    def set_prompts(self, rows: slice) -> None:
        """The next pass reads prompts, from position 0, into these slots."""
        self.rows, self.positions = rows, None

    def reserve(self, slots: int, columns: int, live: int) -> None:
        """Allocates slots and columns.

        Spare columns are released if they are half of all or more, or if the slots would not fit into ``capacity``.

        Args:
            slots: number of slots.
            columns: minimum number of columns.
            live: number of first slots that keep their content, at most ``columns`` columns of it.

        Raises:
            MemoryError: more than ``capacity`` tokens.
        """
        columns = padded_columns(columns)
        if columns < self.columns < columns + max(COLUMN_STEP, columns) and slots * self.columns <= self.capacity:
            columns = self.columns
        if slots * columns > self.capacity:
            raise MemoryError(
                f"{slots} rows of {columns} tokens are more than the {self.capacity} that may be cached; "
                "play fewer episodes at a time, or raise cached_tokens"
            )
        if slots <= self.slots and columns == self.columns:
            return
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            layer.resize(slots, columns, live)
        self.slots, self.columns = slots, columns

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Slot ``targets[i]`` gets the content of slot ``sources[i]``, all at once; a swap names two slots in both."""
        if not sources:
            return
        layers = [layer for layer in self.layers if isinstance(layer, _Layer)]
        device = layers[0].buffers[0].device
        given, taken = (torch.as_tensor(slots, device=device) for slots in (sources, targets))
        for layer in layers:
            layer.move(given, taken)

    def erase_broken(self) -> None:
        """Sets non-finite numbers to 0: even masked, they would spoil later rows in the same slot."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            for memory in layer.memory:
                memory.nan_to_num_(0.0, 0.0, 0.0)
