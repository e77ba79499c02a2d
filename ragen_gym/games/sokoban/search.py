"""Best-first search over pushes, compiled: the solver behind the oracle and the bounds of the generator.

A node is the boxes and the player's cell right after a push; an edge is a walk and a push. With a price of 1 for a step
of a walk the search is move-optimal, with 0 push-optimal. It is A* with the sum of the boxes' push distances to their
nearest targets as the bound from below (a lone box's pushes), which is consistent. Two kinds of dead positions are left
out: a box on a cell from which no target can be reached, and four cells in a square that are all walls or boxes, one of
the boxes off its target.

Nodes are compared by their cells, never by a hash alone, so an answer is exact or the search says that it has none.
"""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import compiled, mix
from ragen_gym.games.sokoban.search_nodes import (
    BEFORE,
    BOX,
    BUCKETS,
    CLOSED,
    DISTANCE,
    GROUND,
    OFF,
    PAID,
    PARENT,
    PLACES,
    PLAYER,
    PUSH,
    QUEUE,
    SMALLEST_TABLE,
    STEPS,
    TO_GO,
    Memory,
    find_slot,
    link,
    rebuild,
    unlink,
    write_child,
)

__all__ = ["BEYOND", "IMPOSSIBLE", "SOLVED", "TOO_MANY", "offset_of", "path", "search"]

#: How a search ends: a best plan, no plan at all, no plan within the bound, undecided within the nodes allowed.
SOLVED, IMPOSSIBLE, BEYOND, TOO_MANY = range(4)


@compiled
def offset_of(direction: int, stride: int) -> int:
    """From a cell to the next one in that direction, in the order of the actions."""
    return -stride if direction == 0 else stride if direction == 1 else -1 if direction == 2 else 1


@compiled
def _measure(cells: np.ndarray, count: int, stride: int) -> None:
    """Pushes that take a lone box from each cell to its nearest target, by search backwards from the targets.

    The box came from the cell before, and the player stood behind that.
    """
    head, tail = 0, 0
    for cell in range(count):
        cells[DISTANCE, cell] = -1
        if cells[GROUND, cell] == 2:
            cells[DISTANCE, cell] = 0
            cells[QUEUE, tail] = cell
            tail += 1
    while head < tail:
        cell = cells[QUEUE, head]
        head += 1
        for direction in range(4):
            offset = offset_of(direction, stride)
            before = cell - offset
            if cells[GROUND, before] != 0 and cells[GROUND, before - offset] != 0 and cells[DISTANCE, before] < 0:
                cells[DISTANCE, before] = cells[DISTANCE, cell] + 1
                cells[QUEUE, tail] = before
                tail += 1


@compiled
def _walk(nodes: np.ndarray, cells: np.ndarray, i: int, stride: int) -> None:
    """Stand the boxes of node i on the cells, and measure the player's walks among them."""
    for cell in range(cells.shape[1]):
        cells[STEPS, cell] = -1
        cells[BOX, cell] = 0
    for j in range(PLACES, nodes.shape[1]):
        cells[BOX, nodes[i, j]] = 1
    player = nodes[i, PLAYER]
    cells[STEPS, player] = 0
    cells[QUEUE, 0] = player
    head, tail = 0, 1
    while head < tail:
        cell = cells[QUEUE, head]
        head += 1
        for direction in range(4):
            target = cell + offset_of(direction, stride)
            if cells[STEPS, target] < 0 and cells[GROUND, target] != 0 and cells[BOX, target] == 0:
                cells[STEPS, target] = cells[STEPS, cell] + 1
                cells[QUEUE, tail] = target
                tail += 1


@compiled
def _frozen(cells: np.ndarray, stride: int, box: int, target: int) -> bool:
    """Whether the box, pushed to ``target``, is in a square of walls and boxes with one of the boxes off its target."""
    for corner in range(4):
        down, across = stride if corner & 1 else -stride, 1 if corner & 2 else -1
        off = cells[GROUND, target] == 1
        for k in range(3):
            cell = target + (down if k == 0 else across if k == 1 else down + across)
            if cells[GROUND, cell] != 0:
                if cells[BOX, cell] == 0 or cell == box:
                    off = False
                    break
                off = off or cells[GROUND, cell] == 1
        if off:
            return True
    return False


@compiled
def _start(
    board: np.ndarray, stride: int, pruned: bool, nodes: np.ndarray, hashes: np.ndarray, cells: np.ndarray
) -> bool:
    """Write the board as node 0 and its ground into the cells; False where a box stands on a dead cell."""
    player, off, word, found = 0, 0, np.uint64(0), PLACES
    for cell in range(board.shape[0]):
        tile = int(board[cell])
        box = 3 <= tile <= 4
        cells[GROUND, cell] = tile if tile <= 2 else 5 - tile if box else tile - 4
        cells[DISTANCE, cell] = 0
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
    for k in range(PLACES, found):
        if cells[DISTANCE, nodes[0, k]] < 0:
            return False
        to_go += cells[DISTANCE, nodes[0, k]]
    hashes[0] = word ^ mix(np.uint64(2 * player + 1))
    nodes[0, PLAYER], nodes[0, PAID], nodes[0, TO_GO], nodes[0, OFF] = player, 0, to_go, off
    nodes[0, PARENT], nodes[0, PUSH] = -1, -1
    for bucket in range(cells.shape[1]):
        cells[BUCKETS, bucket] = -1
    link(nodes, cells, 0)
    return True


@compiled
def _expand(
    i: int,
    count: int,
    mask: int,
    stride: int,
    walk_price: int,
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
    for push in range(4 * (nodes.shape[1] - PLACES)):
        box, offset = nodes[i, PLACES + push // 4], offset_of(push % 4, stride)
        walked, target = cells[STEPS, box - offset], box + offset
        if walked < 0 or cells[GROUND, target] == 0 or cells[BOX, target] != 0 or cells[DISTANCE, target] < 0:
            continue
        paid = nodes[i, PAID] + walk_price * walked + 1
        to_go = nodes[i, TO_GO] - cells[DISTANCE, box] + cells[DISTANCE, target]
        if bound >= 0 and paid + to_go > bound:
            cut = True
            continue
        write_child(nodes, hashes, i, count, push // 4, target)
        slot = find_slot(table, mask, hashes, nodes, count)
        child = table[slot]
        if child >= 0:
            if nodes[child, BEFORE] == CLOSED or nodes[child, PAID] <= paid:
                continue
            unlink(nodes, cells, child)
        else:
            if pruned and _frozen(cells, stride, box, target):
                continue
            if count == nodes.shape[0] - 1:
                return count + 1, mask, cut
            child = table[slot] = count
            count += 1
            nodes[child, TO_GO] = to_go
            nodes[child, OFF] = nodes[i, OFF] + int(cells[GROUND, box] == 2) - int(cells[GROUND, target] == 2)
            if 2 * count > mask:
                mask = 2 * mask + 1
                rebuild(table, mask, hashes, count)
        nodes[child, PAID], nodes[child, PARENT], nodes[child, PUSH] = paid, i, 4 * box + push % 4
        link(nodes, cells, child)
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
        memory: from ``make_memory``; holds the nodes afterwards, for ``path``.

    Returns:
        (SOLVED, IMPOSSIBLE, BEYOND or TOO_MANY; the last node of a plan of the lowest price, or -1; nodes made).
    """
    nodes, hashes, table, cells = memory
    if not _start(board, stride, goal == 0, nodes, hashes, cells):
        return IMPOSSIBLE, -1, 1
    price = nodes[0, TO_GO]
    if bound >= 0 and price > bound:
        return BEYOND, -1, 1
    count, closed, mask, cut = 1, 0, SMALLEST_TABLE - 1, False
    rebuild(table, mask, hashes, count)
    while closed < count:
        i = cells[BUCKETS, price % cells.shape[1]]
        if i < 0:
            price += 1
            continue
        if nodes[i, OFF] <= goal:
            return SOLVED, i, count
        unlink(nodes, cells, i)
        nodes[i, BEFORE] = CLOSED
        closed += 1
        count, mask, beyond = _expand(i, count, mask, stride, walk_price, bound, goal == 0, nodes, hashes, table, cells)
        if count == nodes.shape[0]:
            return TOO_MANY, -1, count - 1
        cut = cut or beyond
    return BEYOND if cut else IMPOSSIBLE, -1, count


@compiled
def path(stride: int, last: int, memory: Memory) -> tuple[np.ndarray, int]:
    """The plan that leads from node 0 to node ``last`` of the search just made: (actions int8 (moves,), pushes)."""
    nodes, _, _, cells = memory
    pushes, node = 0, last
    while nodes[node, PARENT] >= 0:
        pushes, node = pushes + 1, nodes[node, PARENT]
    backwards = np.empty((pushes + 1) * cells.shape[1], np.int8)
    moves, node = 0, last
    while nodes[node, PARENT] >= 0:
        direction, cell = nodes[node, PUSH] % 4, nodes[node, PUSH] // 4
        node = nodes[node, PARENT]
        _walk(nodes, cells, node, stride)
        while True:
            backwards[moves] = direction
            moves += 1
            cell -= offset_of(direction, stride)
            if cells[STEPS, cell] == 0:
                break
            for way in range(4):
                if cells[STEPS, cell - offset_of(way, stride)] == cells[STEPS, cell] - 1:
                    direction = way
    actions = np.empty(moves, np.int8)
    for k in range(moves):
        actions[k] = backwards[moves - 1 - k]
    return actions, pushes
