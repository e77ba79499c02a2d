"""Best-first search over pushes, compiled: the solver behind the oracle and the bounds of the generator.

A node is the boxes and the player's cell right after a push; an edge is a walk and a push. With a price of 1 for a
step of a walk the search is move-optimal, with 0 push-optimal. It is A* with the sum of the boxes' push distances to
their nearest targets as the bound from below (pushes ignore the other boxes), which is consistent. Two kinds of dead
positions are left out: a box on a cell from which no target can be reached, and four cells in a square that are all
walls or boxes, one of the boxes off its target.

Nodes are compared by their cells, never by a hash alone, so an answer is exact or the search says that it has none.
"""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import compiled, mix

__all__ = ["BEYOND", "IMPOSSIBLE", "SOLVED", "TOO_MANY", "make_memory", "offset_of", "path", "search"]

#: How a search ends: a best plan, no plan at all, no plan within the bound, undecided within the nodes allowed.
SOLVED, IMPOSSIBLE, BEYOND, TOO_MANY = 0, 1, 2, 3

#: Columns of the table of nodes: the player's cell, the price paid, the bound on what is to come, boxes off target, the
#: node before, the push that led here (box's cell * 4 + direction), the node's neighbours in its bucket.
#: The last is _CLOSED for a node that was expanded.
_CLOSED = -2

_SMALLEST_TABLE = 256

Memory = tuple[np.ndarray, ...]


def make_memory(cells: int, boxes: int, nodes: int) -> Memory:
    """The arrays that a search of up to ``nodes`` nodes works in; one set serves many searches on boards of that size.

    Returns:
        nodes int32 (nodes + 1, 8), their boxes' cells in order int32 (nodes + 1, boxes), their hashes uint64
        (nodes + 1,), the hash table int32 (a power of 2); then for each cell: ground uint8, occupied uint8, push
        distance, walking distance, queue and one bucket int32.
    """
    table = _SMALLEST_TABLE
    while table < 4 * nodes + 4:
        table *= 2
    return (
        np.empty((nodes + 1, 8), np.int32),
        np.empty((nodes + 1, boxes), np.int32),
        np.empty(nodes + 1, np.uint64),
        np.empty(table, np.int32),
        np.empty(cells, np.uint8),
        np.zeros(cells, np.uint8),
        np.empty(cells, np.int32),
        np.empty(cells, np.int32),
        np.empty(cells, np.int32),
        np.empty(cells + 8, np.int32),
    )


@compiled
def offset_of(direction: int, stride: int) -> int:
    """From a cell to the next one in that direction, in the order of the actions."""
    return -stride if direction == 0 else stride if direction == 1 else -1 if direction == 2 else 1


@compiled
def _push_distances(ground: np.ndarray, stride: int, distance: np.ndarray, queue: np.ndarray) -> None:
    """Pushes that take a lone box from each cell to its nearest target, -1 where none does.

    Breadth-first search backwards from the targets: the box came from the cell before, the player stood behind that.
    """
    tail = 0
    for cell in range(ground.shape[0]):
        distance[cell] = -1
        if ground[cell] == 2:
            distance[cell] = 0
            queue[tail] = cell
            tail += 1
    head = 0
    while head < tail:
        cell = queue[head]
        head += 1
        for offset in (-stride, stride, -1, 1):
            before = cell - offset
            if ground[before] != 0 and ground[before - offset] != 0 and distance[before] < 0:
                distance[before] = distance[cell] + 1
                queue[tail] = before
                tail += 1


@compiled
def _walk(
    ground: np.ndarray, stride: int, start: int, occupied: np.ndarray, steps: np.ndarray, queue: np.ndarray
) -> None:
    """Steps of the shortest walk from ``start`` to each cell among walls and boxes, -1 where there is none."""
    steps[:] = -1
    steps[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for offset in (-stride, stride, -1, 1):
            target = cell + offset
            if steps[target] < 0 and ground[target] != 0 and occupied[target] == 0:
                steps[target] = steps[cell] + 1
                queue[tail] = target
                tail += 1


@compiled
def _frozen(ground: np.ndarray, stride: int, occupied: np.ndarray, box: int, target: int) -> bool:
    """Whether the box, pushed to ``target``, is in a square of walls and boxes with one of the boxes off its target."""
    for down in (-stride, stride):
        for across in (-1, 1):
            off = ground[target] == 1
            for corner in (target + down, target + across, target + down + across):
                if ground[corner] != 0:
                    if occupied[corner] == 0 or corner == box:
                        off = False
                        break
                    off = off or ground[corner] == 1
            if off:
                return True
    return False


@compiled
def _link(nodes: np.ndarray, buckets: np.ndarray, i: int) -> None:
    """Put node i into the bucket of its price."""
    bucket = (nodes[i, 1] + nodes[i, 2]) % buckets.shape[0]
    first = buckets[bucket]
    nodes[i, 6], nodes[i, 7] = first, -1
    if first >= 0:
        nodes[first, 7] = i
    buckets[bucket] = i


@compiled
def _unlink(nodes: np.ndarray, buckets: np.ndarray, i: int) -> None:
    """Take node i out of its bucket."""
    after, before = nodes[i, 6], nodes[i, 7]
    if after >= 0:
        nodes[after, 7] = before
    if before >= 0:
        nodes[before, 6] = after
    else:
        buckets[(nodes[i, 1] + nodes[i, 2]) % buckets.shape[0]] = after
    nodes[i, 7] = _CLOSED


@compiled
def _write_child(
    places: np.ndarray, hashes: np.ndarray, parent: int, child: int, player: int, j: int, target: int
) -> None:
    """Write row ``child``: the boxes of ``parent`` with box j on ``target``, in order, and the player where it was."""
    box, last = places[parent, j], places.shape[1] - 1
    hashes[child] = (
        hashes[parent]
        ^ mix(np.uint64(2 * player + 1))
        ^ mix(np.uint64(2 * box + 1))
        ^ mix(np.uint64(2 * box))
        ^ mix(np.uint64(2 * target))
    )
    for k in range(last + 1):
        places[child, k] = places[parent, k]
    while j > 0 and places[child, j - 1] > target:
        places[child, j] = places[child, j - 1]
        j -= 1
    while j < last and places[child, j + 1] < target:
        places[child, j] = places[child, j + 1]
        j += 1
    places[child, j] = target


@compiled
def _slot(
    table: np.ndarray, mask: int, hashes: np.ndarray, places: np.ndarray, nodes: np.ndarray, node: int, player: int
) -> int:
    """The slot of the hash table that holds an equal of row ``node``, or the free one where it belongs."""
    slot = int(np.int64(hashes[node] & np.uint64(mask)))
    while True:
        other = table[slot]
        if other < 0:
            return slot
        if hashes[other] == hashes[node] and nodes[other, 0] == player:
            same = True
            for j in range(places.shape[1]):
                same = same and places[other, j] == places[node, j]
            if same:
                return slot
        slot = (slot + 1) & mask


@compiled
def _refill(table: np.ndarray, mask: int, hashes: np.ndarray, count: int) -> None:
    """Empty the first ``mask + 1`` slots and enter the first ``count`` nodes, which all differ."""
    table[: mask + 1] = -1
    for node in range(count):
        slot = int(np.int64(hashes[node] & np.uint64(mask)))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = node


@compiled
def _start(board: np.ndarray, stride: int, memory: Memory, pruned: bool) -> bool:
    """Write the board as node 0 and the ground below it; False where a box stands on a dead cell."""
    nodes, places, hashes, table, ground, _, distance, _, queue, buckets = memory
    player, found, off, word = 0, 0, 0, np.uint64(0)
    for cell in range(board.shape[0]):
        tile = board[cell]
        box = 3 <= tile <= 4
        ground[cell] = tile if tile <= 2 else 5 - tile if box else tile - 4
        if box:
            places[0, found] = cell
            found += 1
            off += tile == 4
            word ^= mix(np.uint64(2 * cell))
        elif 5 <= tile <= 6:
            player = cell
    if pruned:
        _push_distances(ground, stride, distance, queue)
    else:
        distance[:] = 0
    to_go = 0
    for j in range(found):
        if distance[places[0, j]] < 0:
            return False
        to_go += distance[places[0, j]]
    hashes[0] = word ^ mix(np.uint64(2 * player + 1))
    nodes[0, 0], nodes[0, 1], nodes[0, 2], nodes[0, 3], nodes[0, 4], nodes[0, 5] = player, 0, to_go, off, -1, -1
    buckets[:] = -1
    _link(nodes, buckets, 0)
    _refill(table, _SMALLEST_TABLE - 1, hashes, 1)
    return True


@compiled
def _expand(
    i: int, count: int, mask: int, stride: int, walk_price: int, bound: int, pruned: bool, memory: Memory
) -> tuple[int, int, bool]:
    """Make the nodes one push after node i: (nodes made so far, mask of the hash table, whether the bound cut any)."""
    nodes, places, hashes, table, ground, occupied, distance, steps, queue, buckets = memory
    boxes, cut = places.shape[1], False
    for j in range(boxes):
        occupied[places[i, j]] = 1
    _walk(ground, stride, nodes[i, 0], occupied, steps, queue)
    for push in range(4 * boxes):
        box, offset = places[i, push // 4], offset_of(push % 4, stride)
        walked, target = steps[box - offset], box + offset
        if walked < 0 or ground[target] == 0 or occupied[target] != 0 or distance[target] < 0:
            continue
        paid = nodes[i, 1] + walk_price * walked + 1
        to_go = nodes[i, 2] - distance[box] + distance[target]
        if bound >= 0 and paid + to_go > bound:
            cut = True
            continue
        _write_child(places, hashes, i, count, nodes[i, 0], push // 4, target)
        slot = _slot(table, mask, hashes, places, nodes, count, box)
        child = table[slot]
        if child >= 0:
            if nodes[child, 7] == _CLOSED or nodes[child, 1] <= paid:
                continue
            _unlink(nodes, buckets, child)
        else:
            if pruned and _frozen(ground, stride, occupied, box, target):
                continue
            if count == nodes.shape[0] - 1:
                count += 1
                break
            child = table[slot] = count
            count += 1
            nodes[child, 0], nodes[child, 2] = box, to_go
            nodes[child, 3] = nodes[i, 3] + (ground[box] == 2) - (ground[target] == 2)
            if 2 * count > mask:
                mask = 2 * mask + 1
                _refill(table, mask, hashes, count)
        nodes[child, 1], nodes[child, 4], nodes[child, 5] = paid, i, 4 * box + push % 4
        _link(nodes, buckets, child)
    for j in range(boxes):
        occupied[places[i, j]] = 0
    return count, mask, cut


@compiled
def search(
    board: np.ndarray, stride: int, walk_price: int, bound: int, goal: int, memory: Memory
) -> tuple[int, int, int]:
    """Search from one board.

    Args:
        board: uint8 (cells,), closed by walls, with as many boxes as targets.
        stride: bytes from a row to the next.
        walk_price: what a step of a walk costs, 1 or 0; a push costs 1.
        bound: the highest price that is looked at, or -1 for none.
        goal: the number of boxes off target that ends the search: 0 for a plan. With 1 or more no position is dead.
        memory: from `make_memory`; holds the nodes afterwards, for `path`.

    Returns:
        (SOLVED, IMPOSSIBLE, BEYOND or TOO_MANY; the last node of a plan of the lowest price, or -1; nodes made).
    """
    nodes, buckets = memory[0], memory[9]
    if not _start(board, stride, memory, goal == 0):
        return 1, -1, 1
    price = nodes[0, 2]
    if bound >= 0 and price > bound:
        return 2, -1, 1
    count, closed, mask, cut = 1, 0, _SMALLEST_TABLE - 1, False
    while closed < count:
        i = buckets[price % buckets.shape[0]]
        if i < 0:
            price += 1
            continue
        if nodes[i, 3] <= goal:
            return 0, i, count
        _unlink(nodes, buckets, i)
        closed += 1
        count, mask, beyond = _expand(i, count, mask, stride, walk_price, bound, goal == 0, memory)
        if count == nodes.shape[0]:
            return 3, -1, count - 1
        cut = cut or beyond
    return 2 if cut else 1, -1, count


@compiled
def path(stride: int, last: int, memory: Memory) -> np.ndarray:
    """The actions that lead from node 0 to node ``last`` of the search just made, int8 (moves,)."""
    nodes, places, _, _, ground, occupied, _, steps, queue, _ = memory
    backwards = np.empty(64, np.int8)
    moves, node = 0, last
    while nodes[node, 4] >= 0:
        parent, push = nodes[node, 4], nodes[node, 5]
        for j in range(places.shape[1]):
            occupied[places[parent, j]] = 1
        _walk(ground, stride, nodes[parent, 0], occupied, steps, queue)
        for j in range(places.shape[1]):
            occupied[places[parent, j]] = 0
        direction, cell = push % 4, push // 4
        while True:
            if moves == backwards.shape[0]:
                backwards = np.concatenate((backwards, np.empty(moves, np.int8)))
            backwards[moves] = direction
            moves += 1
            cell -= offset_of(direction, stride)
            if steps[cell] == 0:
                break
            for direction in range(4):
                if steps[cell - offset_of(direction, stride)] == steps[cell] - 1:
                    break
        node = parent
    return backwards[:moves][::-1].copy()
