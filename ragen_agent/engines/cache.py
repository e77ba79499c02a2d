"""Keys and values of many rows: the token at position p of a row lies in column p, whatever the other rows hold.

So there is no padding to skip: a row's columns beyond its length are free, whatever stands in them, and are written
over when the row grows. A slot is taken over by starting again at column 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

__all__ = ["SlotCache", "in_steps"]

STEP = 32
"""Columns are added so many at a time. Attention runs over all columns, spare ones included: the buffers of all rows
then lie in one piece, which makes it more than twice as fast on a CPU as over a part of them."""


def in_steps(columns: int) -> int:
    """The columns that are made where so many are needed."""
    return -(-columns // STEP) * STEP


class _Layer(DynamicLayer):
    """One layer's buffers, each of shape (slots, heads, columns, head size); which slots come next says the cache."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.buffers: list[Tensor] = []

    def get_seq_length(self) -> int:
        return 0 if not self.buffers else int(self.buffers[0].shape[2])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cache, new = self.cache, (key_states, value_states)
        if not self.buffers:
            self.buffers = [x.new_zeros(cache.slots, x.shape[1], cache.columns, x.shape[3]) for x in new]
        self.is_initialized = True
        if cache.copies is not None:  # prompts, each for some of the slots: nothing stands before them
            for buffer, states in zip(self.buffers, new, strict=True):
                buffer[cache.targets, :, : states.shape[2]] = states[cache.copies]
            return new
        rows = slice(cache.first, cache.first + len(key_states))
        index = torch.arange(rows.start, rows.stop, device=key_states.device)[:, None]
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer.transpose(1, 2)[index, cache.positions] = states.transpose(1, 2)
        self.keys, self.values = (buffer[rows] for buffer in self.buffers)
        return self.keys, self.values

    def resize(self, slots: int, columns: int) -> None:
        for index, old in enumerate(self.buffers):
            new = old.new_zeros(slots, old.shape[1], columns, old.shape[3])
            rows, width = min(slots, len(old)), min(columns, old.shape[2])
            new[:rows, :, :width] = old[:rows, :, :width]
            self.buffers[index] = new

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for buffer in self.buffers:
            buffer[targets] = buffer[sources]


class SlotCache(Cache):
    """A `transformers` cache whose rows come, go and change places.

    Before each forward pass, `reading` or `prompting` says which slots the rows of the pass are.

    Attributes:
        capacity: the most tokens that it may hold, `slots * columns`, or None.
        slots, columns: what it holds now.
    """

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(layer_class_to_replicate=lambda: _Layer(self))  # type: ignore[arg-type]
        self.capacity = capacity
        self.slots = self.columns = 0
        self.first = 0
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.targets = torch.zeros(0, dtype=torch.long)
        self.copies: Tensor | None = None

    def reading(self, first: int, positions: Tensor) -> None:
        """The next pass reads tokens at `positions` (rows, width) of the slots from `first` on."""
        self.first, self.positions, self.copies = first, positions, None

    def prompting(self, targets: Tensor, copies: Tensor) -> None:
        """The next pass reads prompts from position 0; slot `targets[i]` gets that of row `copies[i]`."""
        self.targets, self.copies = targets, copies

    def reserve(self, slots: int, columns: int) -> None:
        """Makes room for so many slots and columns, and gives back columns when far fewer are needed.

        Raises:
            MemoryError: that is more than `capacity` tokens.
        """
        columns = in_steps(columns)
        slots = max(slots, self.slots)
        if slots <= self.slots and self.columns / 2 <= columns <= self.columns:
            return
        if self.capacity is not None and slots * columns > self.capacity:
            raise MemoryError(
                f"{slots} rows of {columns} tokens are more than the {self.capacity} that may be cached; "
                "play fewer episodes at a time, or allow more"
            )
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            layer.resize(slots, columns)
        self.slots, self.columns = slots, columns

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Slot `targets[i]` gets what slot `sources[i]` holds, all at once; a swap names two slots in both."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            device = layer.buffers[0].device
            layer.move(torch.as_tensor(sources, device=device), torch.as_tensor(targets, device=device))
