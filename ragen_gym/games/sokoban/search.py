"""Best-first search over pushes, compiled: the solver behind the oracle and the bounds of the generator.

A node is the boxes and the player's cell right after a push; an edge is a walk and a push. It is A* with the sum
of the boxes' push distances to their nearest targets as the bound from below (a lone box's pushes), which is
consistent. Two kinds of dead positions are left out: a box on a cell from which no target can be reached, and four
cells in a square that are all walls or boxes, one of the boxes off its target.

Nodes are compared by their cells, never by a hash alone, so an answer is exact or the search says that it has none.
"""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import kernel
from ragen_gym.games.kernels import mix

#: How a search ends: a best plan, no plan at all, no plan within the bound, undecided within the nodes allowed.
SOLVED, IMPOSSIBLE, BEYOND, TOO_MANY = range(4)

#: Columns of a node: the player's cell, the price paid, the bound on what is to come, boxes off target, the node before
#: or -1, the push that led here (4 * the box's cell + direction), the nodes after and before it in its bucket (the
#: latter is _CLOSED once it has been expanded); from _PLACES on the cells of the boxes, in order.
_PLAYER, PAID, _TO_GO, _OFF, _PARENT, _PUSH, _AFTER, _BEFORE, _PLACES = range(9)
_CLOSED = -2

#: Rows of what is kept for each cell: what lies on the ground (0 wall, 1 floor, 2 target), whether a box stands there,
#: pushes to the nearest target or -1, steps of a walk or -1, a queue; and the first node of each bucket or -1.
_GROUND, _BOX, _DISTANCE, _STEPS, _QUEUE, _BUCKETS = range(6)

#: Slots of the hash table in use when a search starts.
_SMALLEST_TABLE = 256

#: (nodes int32 (n + 1, 8 + boxes), their hashes uint64 (n + 1,), hash table int32 (a power of 2), cells int32
#: (6, cells + 8)).
Memory = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_memory(cells: int, boxes: int, nodes: int) -> Memory:
    """Memory of a search of up to ``nodes`` nodes; one serves many searches on boards of one size."""
    table = _SMALLEST_TABLE
    while table < 4 * nodes + 4:
        table *= 2
    return (
        np.empty((nodes + 1, _PLACES + boxes), np.int32),
        np.empty(nodes + 1, np.uint64),
        np.empty(table, np.int32),
        np.zeros((6, cells + 8), np.int32),
    )


@kernel
def _link(nodes: np.ndarray, cells: np.ndarray, i: int) -> None:
    bucket = (nodes[i, PAID] + nodes[i, _TO_GO]) % cells.shape[1]
    first = cells[_BUCKETS, bucket]
    nodes[i, _AFTER], nodes[i, _BEFORE] = first, -1
    if first >= 0:
        nodes[first, _BEFORE] = i
    cells[_BUCKETS, bucket] = i


@kernel
def _unlink(nodes: np.ndarray, cells: np.ndarray, i: int) -> None:
    after, before = nodes[i, _AFTER], nodes[i, _BEFORE]
    if after >= 0:
        nodes[after, _BEFORE] = before
    if before >= 0:
        nodes[before, _AFTER] = after
    else:
        cells[_BUCKETS, (nodes[i, PAID] + nodes[i, _TO_GO]) % cells.shape[1]] = after


@kernel
def _write_child(nodes: np.ndarray, hashes: np.ndarray, parent: int, child: int, j: int, target: int) -> None:
    """Write the boxes of ``parent`` with the j-th pushed to ``target``, in order, the player behind it, the hash."""
    box, first, last = nodes[parent, _PLACES + j], _PLACES, nodes.shape[1] - 1
    hashes[child] = (
        hashes[parent]
        ^ mix(np.uint64(2 * nodes[parent, _PLAYER] + 1))
        ^ mix(np.uint64(2 * box + 1))
        ^ mix(np.uint64(2 * box))
        ^ mix(np.uint64(2 * target))
    )
    nodes[child, _PLAYER] = box
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


@kernel
def _find_slot(table: np.ndarray, mask: int, hashes: np.ndarray, nodes: np.ndarray, node: int) -> int:
    """The slot of the hash table that holds an equal of ``node``, or the free one where it belongs."""
    slot = int(np.int64(hashes[node] & np.uint64(mask)))
    while True:
        other = table[slot]
        if other < 0:
            return slot
        if hashes[other] == hashes[node] and nodes[other, _PLAYER] == nodes[node, _PLAYER]:
            same = True
            for k in range(_PLACES, nodes.shape[1]):
                same = same and nodes[other, k] == nodes[node, k]
            if same:
                return slot
        slot = (slot + 1) & mask


@kernel
def _rebuild(table: np.ndarray, mask: int, hashes: np.ndarray, count: int) -> None:
    """Empty the first ``mask + 1`` slots and enter the first ``count`` nodes, which all differ."""
    for slot in range(mask + 1):
        table[slot] = -1
    for node in range(count):
        slot = int(np.int64(hashes[node] & np.uint64(mask)))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = node


@kernel
def offset_of(direction: int, stride: int) -> int:
    """From a cell to the next one in that direction, in the order of the actions."""
    return -stride if direction == 0 else stride if direction == 1 else -1 if direction == 2 else 1


@kernel
def _measure(cells: np.ndarray, count: int, stride: int) -> None:
    """Pushes that take a lone box from each cell to its nearest target, by search backwards from the targets.

    The box came from the cell before, and the player stood behind that.
    """
    head, tail = 0, 0
    for cell in range(count):
        cells[_DISTANCE, cell] = -1
        if cells[_GROUND, cell] == 2:
            cells[_DISTANCE, cell] = 0
            cells[_QUEUE, tail] = cell
            tail += 1
    while head < tail:
        cell = cells[_QUEUE, head]
        head += 1
        for direction in range(4):
            offset = offset_of(direction, stride)
            before = cell - offset
            if cells[_GROUND, before] != 0 and cells[_GROUND, before - offset] != 0 and cells[_DISTANCE, before] < 0:
                cells[_DISTANCE, before] = cells[_DISTANCE, cell] + 1
                cells[_QUEUE, tail] = before
                tail += 1


@kernel
def _walk(nodes: np.ndarray, cells: np.ndarray, i: int, stride: int) -> None:
    """Stand the boxes of node i on the cells, and measure the player's walks among them."""
    for cell in range(cells.shape[1]):
        cells[_STEPS, cell] = -1
        cells[_BOX, cell] = 0
    for j in range(_PLACES, nodes.shape[1]):
        cells[_BOX, nodes[i, j]] = 1
    player = nodes[i, _PLAYER]
    cells[_STEPS, player] = 0
    cells[_QUEUE, 0] = player
    head, tail = 0, 1
    while head < tail:
        cell = cells[_QUEUE, head]
        head += 1
        for direction in range(4):
            target = cell + offset_of(direction, stride)
            if cells[_STEPS, target] < 0 and cells[_GROUND, target] != 0 and cells[_BOX, target] == 0:
                cells[_STEPS, target] = cells[_STEPS, cell] + 1
                cells[_QUEUE, tail] = target
                tail += 1


@kernel
def _frozen(cells: np.ndarray, stride: int, box: int, target: int) -> bool:
    """True if the box, pushed to ``target``, is in a square of walls and boxes with one of the boxes off its target."""
    for corner in range(4):
        down, across = stride if corner & 1 else -stride, 1 if corner & 2 else -1
        off = cells[_GROUND, target] == 1
        for k in range(3):
            cell = target + (down if k == 0 else across if k == 1 else down + across)
            if cells[_GROUND, cell] != 0:
                if cells[_BOX, cell] == 0 or cell == box:
                    off = False
                    break
                off = off or cells[_GROUND, cell] == 1
        if off:
            return True
    return False


@kernel
def _start(
    board: np.ndarray, stride: int, pruned: bool, nodes: np.ndarray, hashes: np.ndarray, cells: np.ndarray
) -> bool:
    """Write the board as node 0 and its ground into the cells; False where a box stands on a dead cell."""
    player, off, word, found = 0, 0, np.uint64(0), _PLACES
    for cell in range(board.shape[0]):
        tile = int(board[cell])
        box = 3 <= tile <= 4
        cells[_GROUND, cell] = tile if tile <= 2 else 5 - tile if box else tile - 4
        cells[_DISTANCE, cell] = 0
        if box:
            nodes[0, found] = cell
            found += 1
            off += tile == 4
            word ^= mix(np.uint64(2 * cell))
        elif 5 <= tile <= 6:
            player = cell
    if pruned:
        _measure(cells, board.shape[0], stride)
    to_go = 0
    for k in range(_PLACES, found):
        if cells[_DISTANCE, nodes[0, k]] < 0:
            return False
        to_go += cells[_DISTANCE, nodes[0, k]]
    hashes[0] = word ^ mix(np.uint64(2 * player + 1))
    nodes[0, _PLAYER], nodes[0, PAID], nodes[0, _TO_GO], nodes[0, _OFF] = player, 0, to_go, off
    nodes[0, _PARENT], nodes[0, _PUSH] = -1, -1
    for bucket in range(cells.shape[1]):
        cells[_BUCKETS, bucket] = -1
    _link(nodes, cells, 0)
    return True


@kernel
def _expand(
    i: int,
    count: int,
    mask: int,
    stride: int,
    bound: int,
    pruned: bool,
    nodes: np.ndarray,
    hashes: np.ndarray,
    table: np.ndarray,
    cells: np.ndarray,
) -> tuple[int, int, bool]:
    """Make the nodes one push after node i: (nodes made so far, mask of the hash table, whether the bound cut any)."""
    cut = False
    _walk(nodes, cells, i, stride)
    for push in range(4 * (nodes.shape[1] - _PLACES)):
        box, offset = nodes[i, _PLACES + push // 4], offset_of(push % 4, stride)
        walked, target = cells[_STEPS, box - offset], box + offset
        if walked < 0 or cells[_GROUND, target] == 0 or cells[_BOX, target] != 0 or cells[_DISTANCE, target] < 0:
            continue
        paid = nodes[i, PAID] + walked + 1
        to_go = nodes[i, _TO_GO] - cells[_DISTANCE, box] + cells[_DISTANCE, target]
        if bound >= 0 and paid + to_go > bound:
            cut = True
            continue
        _write_child(nodes, hashes, i, count, push // 4, target)
        slot = _find_slot(table, mask, hashes, nodes, count)
        child = table[slot]
        if child >= 0:
            if nodes[child, _BEFORE] == _CLOSED or nodes[child, PAID] <= paid:
                continue
            _unlink(nodes, cells, child)
        else:
            if pruned and _frozen(cells, stride, box, target):
                continue
            if count == nodes.shape[0] - 1:
                return count + 1, mask, cut
            child = table[slot] = count
            count += 1
            nodes[child, _TO_GO] = to_go
            nodes[child, _OFF] = nodes[i, _OFF] + int(cells[_GROUND, box] == 2) - int(cells[_GROUND, target] == 2)
            if 2 * count > mask:
                mask = 2 * mask + 1
                _rebuild(table, mask, hashes, count)
        nodes[child, PAID], nodes[child, _PARENT], nodes[child, _PUSH] = paid, i, 4 * box + push % 4
        _link(nodes, cells, child)
    return count, mask, cut


@kernel
def search(board: np.ndarray, stride: int, bound: int, goal: int, memory: Memory) -> tuple[int, int, int]:
    """Search from one board.

    Args:
        board: uint8 (cells,), closed by walls, with as many boxes as targets.
        stride: bytes from a row to the next.
        bound: the most moves that are looked at, or -1 for any number.
        goal: the number of boxes off target that ends the search: 0 for a plan. With 1 or more no position is dead.
        memory: from ``make_memory``; holds the nodes afterwards, for ``path``.

    Returns:
        (SOLVED, IMPOSSIBLE, BEYOND or TOO_MANY; the last node of a shortest plan, or -1; nodes made).
    """
    nodes, hashes, table, cells = memory
    if not _start(board, stride, goal == 0, nodes, hashes, cells):
        return IMPOSSIBLE, -1, 1
    price = nodes[0, _TO_GO]
    if bound >= 0 and price > bound:
        return BEYOND, -1, 1
    count, closed, mask, cut = 1, 0, _SMALLEST_TABLE - 1, False
    _rebuild(table, mask, hashes, count)
    while closed < count:
        i = cells[_BUCKETS, price % cells.shape[1]]
        if i < 0:
            price += 1
            continue
        if nodes[i, _OFF] <= goal:
            return SOLVED, i, count
        _unlink(nodes, cells, i)
        nodes[i, _BEFORE] = _CLOSED
        closed += 1
        count, mask, beyond = _expand(i, count, mask, stride, bound, goal == 0, nodes, hashes, table, cells)
        if count == nodes.shape[0]:
            return TOO_MANY, -1, count - 1
        cut = cut or beyond
    return BEYOND if cut else IMPOSSIBLE, -1, count


@kernel
def path(stride: int, last: int, memory: Memory) -> tuple[np.ndarray, int]:
    """The plan that leads from node 0 to node ``last`` of the search just made: (actions int8 (moves,), pushes)."""
    nodes, _, _, cells = memory
    pushes, node = 0, last
    while nodes[node, _PARENT] >= 0:
        pushes, node = pushes + 1, nodes[node, _PARENT]
    backwards = np.empty((pushes + 1) * cells.shape[1], np.int8)
    moves, node = 0, last
    while nodes[node, _PARENT] >= 0:
        direction, cell = nodes[node, _PUSH] % 4, nodes[node, _PUSH] // 4
        node = nodes[node, _PARENT]
        _walk(nodes, cells, node, stride)
        while True:
            backwards[moves] = direction
            moves += 1
            cell -= offset_of(direction, stride)
            if cells[_STEPS, cell] == 0:
                break
            for way in range(4):
                if cells[_STEPS, cell - offset_of(way, stride)] == cells[_STEPS, cell] - 1:
                    direction = way
    actions = np.empty(moves, np.int8)
    for k in range(moves):
        actions[k] = backwards[moves - 1 - k]
    return actions, pushes
