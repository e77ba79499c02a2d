"""The memory of a search: its nodes, a hash table that finds equal ones, and buckets that sort them by price."""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import compiled, mix

__all__ = [
    "AFTER",
    "BEFORE",
    "BOX",
    "BUCKETS",
    "CLOSED",
    "DISTANCE",
    "GROUND",
    "OFF",
    "PAID",
    "PARENT",
    "PLACES",
    "PLAYER",
    "PUSH",
    "QUEUE",
    "SMALLEST_TABLE",
    "STEPS",
    "TO_GO",
    "Memory",
    "find_slot",
    "link",
    "make_memory",
    "rebuild",
    "unlink",
    "write_child",
]

#: Columns of a node: the player's cell, the price paid, the bound on what is to come, boxes off target, the node before
#: or -1, the push that led here (4 * the box's cell + direction), the nodes after and before it in its bucket (the
#: latter is CLOSED once it has been expanded); from PLACES on the cells of the boxes, in order.
PLAYER, PAID, TO_GO, OFF, PARENT, PUSH, AFTER, BEFORE, PLACES = range(9)
CLOSED = -2

#: Rows of what is kept for each cell: what lies on the ground (0 wall, 1 floor, 2 target), whether a box stands there,
#: pushes to the nearest target or -1, steps of a walk or -1, a queue; and the first node of each bucket or -1.
GROUND, BOX, DISTANCE, STEPS, QUEUE, BUCKETS = range(6)

#: Slots of the hash table in use when a search starts.
SMALLEST_TABLE = 256

#: (nodes int32 (n + 1, 8 + boxes), their hashes uint64 (n + 1,), hash table int32 (a power of 2), cells int32
#: (6, cells + 8)).
Memory = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_memory(cells: int, boxes: int, nodes: int) -> Memory:
    """What a search of up to ``nodes`` nodes works in; one serves many searches on boards of one size."""
    table = SMALLEST_TABLE
    while table < 4 * nodes + 4:
        table *= 2
    return (
        np.empty((nodes + 1, PLACES + boxes), np.int32),
        np.empty(nodes + 1, np.uint64),
        np.empty(table, np.int32),
        np.zeros((6, cells + 8), np.int32),
    )


@compiled
def link(nodes: np.ndarray, cells: np.ndarray, i: int) -> None:
    """Put node i into the bucket of its price."""
    bucket = (nodes[i, PAID] + nodes[i, TO_GO]) % cells.shape[1]
    first = cells[BUCKETS, bucket]
    nodes[i, AFTER], nodes[i, BEFORE] = first, -1
    if first >= 0:
        nodes[first, BEFORE] = i
    cells[BUCKETS, bucket] = i


@compiled
def unlink(nodes: np.ndarray, cells: np.ndarray, i: int) -> None:
    """Take node i out of its bucket."""
    after, before = nodes[i, AFTER], nodes[i, BEFORE]
    if after >= 0:
        nodes[after, BEFORE] = before
    if before >= 0:
        nodes[before, AFTER] = after
    else:
        cells[BUCKETS, (nodes[i, PAID] + nodes[i, TO_GO]) % cells.shape[1]] = after


@compiled
def write_child(nodes: np.ndarray, hashes: np.ndarray, parent: int, child: int, j: int, target: int) -> None:
    """Write the boxes of ``parent`` with the j-th pushed to ``target``, in order, the player behind it, the hash."""
    box, first, last = nodes[parent, PLACES + j], PLACES, nodes.shape[1] - 1
    hashes[child] = (
        hashes[parent]
        ^ mix(np.uint64(2 * nodes[parent, PLAYER] + 1))
        ^ mix(np.uint64(2 * box + 1))
        ^ mix(np.uint64(2 * box))
        ^ mix(np.uint64(2 * target))
    )
    nodes[child, PLAYER] = box
    for k in range(first, last + 1):
        nodes[child, k] = nodes[parent, k]
    k = first + j
    while k > first and nodes[child, k - 1] > target:
        nodes[child, k] = nodes[child, k - 1]
        k -= 1
    while k < last and nodes[child, k + 1] < target:
        nodes[child, k] = nodes[child, k + 1]
        k += 1
    nodes[child, k] = target


@compiled
def find_slot(table: np.ndarray, mask: int, hashes: np.ndarray, nodes: np.ndarray, node: int) -> int:
    """The slot of the hash table that holds an equal of ``node``, or the free one where it belongs."""
    slot = int(np.int64(hashes[node] & np.uint64(mask)))
    while True:
        other = table[slot]
        if other < 0:
            return slot
        if hashes[other] == hashes[node] and nodes[other, PLAYER] == nodes[node, PLAYER]:
            same = True
            for k in range(PLACES, nodes.shape[1]):
                same = same and nodes[other, k] == nodes[node, k]
            if same:
                return slot
        slot = (slot + 1) & mask


@compiled
def rebuild(table: np.ndarray, mask: int, hashes: np.ndarray, count: int) -> None:
    """Empty the first ``mask + 1`` slots and enter the first ``count`` nodes, which all differ."""
    for slot in range(mask + 1):
        table[slot] = -1
    for node in range(count):
        slot = int(np.int64(hashes[node] & np.uint64(mask)))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = node
