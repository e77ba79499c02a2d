"""Slots shared by rows with one history, against a cache that is a list of token lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent.inference.kv_cache import Copies, SharedPrefixes, SlotCache


class Histories:
    """A cache in plain sight: each slot is the list of the tokens that were written to it."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = [[] for _ in range(64)]

    def copy(self, copies: Copies) -> None:
        sources = [self.slots[source].copy() for source in copies[0]]
        assert len(set(copies[1])) == len(copies[1]), "a slot is written once"
        for target, tokens in zip(copies[1], sources, strict=True):
            self.slots[target] = tokens


def write(prefixes: SharedPrefixes, cache: Histories, rows: list[int], tokens: list[int]) -> None:
    for row, token in zip(rows, tokens, strict=True):
        slot, length = int(prefixes.slot[row]), int(prefixes.length[row])
        cache.slots[slot] = [*cache.slots[slot][:length], token]
    prefixes.length[rows] += 1


@given(st.data())
def test_every_row_finds_its_own_history_in_its_slot(data: st.DataObject) -> None:
    prefixes, cache, expected = SharedPrefixes(), Histories(), list[list[int]]()
    for _ in range(data.draw(st.integers(1, 5))):
        new = data.draw(st.lists(st.integers(0, 1), min_size=0 if expected else 1, max_size=4))  # prompts of one token
        first = len(expected)
        prefixes.add(len(new))
        groups = [[first + i for i, prompt in enumerate(new) if prompt == kind] for kind in sorted(set(new))]
        prefixes.assign(groups)
        expected += [[prompt] for prompt in new]
        for group in groups:
            cache.slots[int(prefixes.slot[group[0]])] = [expected[group[0]][0]]
        prefixes.length[first:] = 1
        writing, front = np.arange(len(expected)), prefixes.count
        while len(writing) and data.draw(st.booleans()):
            tokens = [data.draw(st.integers(0, 2)) for _ in writing]
            keys = zip(prefixes.slot[writing].tolist(), prefixes.length[writing].tolist(), tokens, strict=True)
            different = len(set(keys))
            copies, front = prefixes.split(writing, tokens, front)
            cache.copy(copies)
            assert len(set(prefixes.slot[writing].tolist())) == different, "rows that go on alike share a slot"
            if data.draw(st.booleans()):
                copies, front = prefixes.to_front(writing)
                cache.copy(copies)
            assert prefixes.slot[writing].max() < front <= prefixes.count <= len(expected)
            write(prefixes, cache, writing.tolist(), tokens)
            for row, token in zip(writing, tokens, strict=True):
                expected[row].append(token)
            writing = writing[[data.draw(st.booleans()) for _ in writing]]
        kept = [row for row in range(len(expected)) if data.draw(st.booleans())]
        cache.copy(prefixes.keep(kept))
        expected = [expected[row] for row in kept]
        assert set(prefixes.slot.tolist()) == set(range(prefixes.count))
        for index, history in enumerate(expected):
            assert cache.slots[int(prefixes.slot[index])][: int(prefixes.length[index])] == history


def test_spare_columns_take_no_room_from_rows() -> None:
    cache = SlotCache(1024)
    cache.reserve(4, 256, 0)
    cache.reserve(4, 160, 0)
    assert cache.columns == 256, "they are kept where there is room"
    cache.reserve(6, 160, 0)
    assert (cache.slots, cache.columns) == (6, 160)
