"""Play backwards from a solved board: a search for a far state, or a random walk.

The boxes are kept in one array int32 (4, boxes), a row each for the targets' cells, the boxes' cells, the boxes' cells
in the best state so far, and whether a box was pulled; ``at``, int32 (cells,), has the box on each cell or -1.
"""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import kernel
from ragen_gym.games.kernels import below, mix, next_word
from ragen_gym.games.sokoban.search import offset_of

#: States that one depth-first search looks at, as in the paper's code, and slots of its hash table to start with.
MAX_EXPLORED, SMALLEST_TABLE = 300_000, 256

_TARGET, _NOW, _BEST, _PULLED = range(4)

#: Columns of the stack of the search: player's cell, next action, box pulled to get here or -1, whether that had been
#: pulled before, last box pulled, turns to another box, displacement of the boxes, boxes on targets.
_PLAYER, _ACTION, _BOX, _BEFORE, _LAST, _TURNS, _APART, _ON = range(8)

_LOW, _TWO, _THREE = np.uint64(0xFFFFFFFF), np.uint64(2), np.uint64(3)
#: Chance that a stroll begins (after a displacement of 1, of more) and that it goes on, in units of 2**-32; numbers of
#: the paper's code.
_STROLL_NEAR, _STROLL, _STROLL_ON = (np.uint64(round(chance * 2**32)) for chance in (0.8, 0.5, 0.5))
_LONGEST_STROLL = 3


@kernel
def _is_new(seen: np.ndarray, mask: int, word: np.uint64) -> bool:
    """Enter a nonzero hash into the first ``mask + 1`` slots of ``seen`` unless it is there."""
    slot = int(np.int64(word & np.uint64(mask)))
    while seen[slot] != 0:
        if seen[slot] == word:
            return False
        slot = (slot + 1) & mask
    seen[slot] = word
    return True


@kernel
def _rebuild(seen: np.ndarray, mask: int, explored: np.ndarray, states: int) -> None:
    """Empty the first ``mask + 1`` slots of ``seen`` and enter the hashes of the states explored."""
    for slot in range(mask + 1):
        seen[slot] = 0
    for k in range(states):
        _is_new(seen, mask, explored[k])


@kernel
def _apart(a: int, b: int, stride: int) -> int:
    return abs(a // stride - b // stride) + abs(a % stride - b % stride)


@kernel
def _begin(player: int, boxes: np.ndarray, at: np.ndarray, stack: np.ndarray) -> np.uint64:
    """Stand the boxes on their targets and write level 0 of the stack; the state's hash."""
    word = mix(np.uint64(4 * player))
    for j in range(boxes.shape[1]):
        home = boxes[_TARGET, j]
        boxes[_NOW, j], boxes[_BEST, j], boxes[_PULLED, j], at[home] = home, home, 0, j
        word ^= mix(np.uint64(4 * home + 1))
    stack[0, _PLAYER], stack[0, _ACTION], stack[0, _BOX], stack[0, _BEFORE] = player, 0, -1, 0
    stack[0, _LAST], stack[0, _TURNS], stack[0, _APART], stack[0, _ON] = -1, 0, 0, boxes.shape[1]
    return word


@kernel
def _pull(
    ground: np.ndarray,
    stride: int,
    level: int,
    cell: int,
    target: int,
    boxes: np.ndarray,
    at: np.ndarray,
    stack: np.ndarray,
) -> None:
    """Pull the box on ``cell`` to ``target`` and enter what that changes at that level of the stack."""
    j = at[cell]
    home = boxes[_TARGET, j]
    stack[level, _BEFORE] = boxes[_PULLED, j]
    stack[level, _TURNS] += stack[level, _LAST] != j
    stack[level, _LAST] = j
    stack[level, _APART] += _apart(target, home, stride) - _apart(cell, home, stride)
    stack[level, _ON] += int(ground[target] == 2) - int(ground[cell] == 2)
    at[cell], at[target], boxes[_NOW, j], boxes[_PULLED, j] = -1, j, target, 1


@kernel
def _keep(boxes: np.ndarray) -> None:
    for j in range(boxes.shape[1]):
        boxes[_BEST, j] = boxes[_NOW, j]


@kernel
def explore(
    ground: np.ndarray,
    stride: int,
    player: int,
    depth: int,
    boxes: np.ndarray,
    at: np.ndarray,
    stack: np.ndarray,
    explored: np.ndarray,
    seen: np.ndarray,
) -> tuple[int, int, int]:
    """Depth-first search backwards from the solved board: (player's best cell, boxes' displacement, states seen).

    Each step the player leaves its cell and pulls the box behind it, if there is one; states are explored once. The
    best state is the first with the highest product of turns to another box and displacement, no target being covered.
    A box that was never pulled counts as another state than one pulled back home.

    Args:
        ground: uint8 (cells,), a room with targets.
        stride: bytes from a row to the next.
        player: cell where the player starts.
        depth: moves looked back, less 2: the count of the paper's code.
        boxes: see the module; the targets are read, the boxes of the best state written.
        at: see the module; no box when it starts and ends.
        stack: int32 (depth, 8) to work in.
        explored: uint64 (``MAX_EXPLORED``,) to work in.
        seen: uint64 (a power of 2 from 4 * ``MAX_EXPLORED`` on,) to work in.
    """
    word = explored[0] = _begin(player, boxes, at, stack)
    mask, states, level, top, displaced = SMALLEST_TABLE - 1, 1, 0, 0, 0
    _rebuild(seen, mask, explored, states)
    while level >= 0:
        action, here, j = stack[level, _ACTION], stack[level, _PLAYER], stack[level, _BOX]
        if action == 4:
            level -= 1
            if level >= 0:
                back = stack[level, _PLAYER]
                word ^= mix(np.uint64(4 * here)) ^ mix(np.uint64(4 * back))
                if j >= 0:
                    home, before = back + back - here, stack[level + 1, _BEFORE]
                    word ^= mix(np.uint64(4 * back + 2)) ^ mix(np.uint64(4 * home + 1 + before))
                    at[back], at[home], boxes[_NOW, j], boxes[_PULLED, j] = -1, j, home, before
            continue
        stack[level, _ACTION] = action + 1
        offset = offset_of(action, stride)
        there, behind = here + offset, here - offset
        if level + 2 >= depth or states >= MAX_EXPLORED or ground[there] == 0 or at[there] >= 0:
            continue
        j = at[behind]
        changed = word ^ mix(np.uint64(4 * here)) ^ mix(np.uint64(4 * there))
        if j >= 0:
            changed ^= mix(np.uint64(4 * behind + 1 + boxes[_PULLED, j])) ^ mix(np.uint64(4 * here + 2))
        if not _is_new(seen, mask, changed):
            continue
        word = explored[states] = changed
        states += 1
        if 2 * states > mask:
            mask = 2 * mask + 1
            _rebuild(seen, mask, explored, states)
        for column in range(_LAST, _ON + 1):
            stack[level + 1, column] = stack[level, column]
        level += 1
        stack[level, _PLAYER], stack[level, _ACTION], stack[level, _BOX] = there, 0, j
        if j >= 0:
            _pull(ground, stride, level, behind, here, boxes, at, stack)
        score = int(stack[level, _TURNS]) * int(stack[level, _APART])
        if score > top and stack[level, _ON] == 0 and ground[there] == 1:
            top, player, displaced = score, there, stack[level, _APART]
            _keep(boxes)
    for j in range(boxes.shape[1]):
        at[boxes[_TARGET, j]] = -1
    return player, displaced, states


@kernel
def stroll(
    ground: np.ndarray, stride: int, key: np.uint64, player: int, near: bool, boxes: np.ndarray, at: np.ndarray
) -> tuple[np.uint64, int]:
    """Walk the player up to three cells away, through no cell twice: (generator key, player's cell).

    It sets off more often where the boxes are ``near`` their targets. Arrays as in ``explore``.
    """
    key, word = next_word(key)
    if (word & _LOW) > (_STROLL_NEAR if near else _STROLL):
        return key, player
    for j in range(boxes.shape[1]):
        at[boxes[_BEST, j]] = 1
    first = second = player
    for _ in range(_LONGEST_STROLL):
        ways = 0
        for direction in range(4):
            cell = player + offset_of(direction, stride)
            ways += ground[cell] != 0 and at[cell] < 0 and cell not in (first, second)
        if ways == 0:
            break
        key, word = next_word(key)
        pick = below(word, ways)
        for direction in range(4):
            cell = player + offset_of(direction, stride)
            if ground[cell] != 0 and at[cell] < 0 and cell not in (first, second):
                if pick == 0:
                    second, first, player = first, player, cell
                    break
                pick -= 1
        if (word & _LOW) > _STROLL_ON:
            break
    for j in range(boxes.shape[1]):
        at[boxes[_BEST, j]] = -1
    return key, player


@kernel
def walk_back(
    ground: np.ndarray, stride: int, key: np.uint64, player: int, steps: int, boxes: np.ndarray, at: np.ndarray
) -> tuple[np.uint64, int]:
    """Walk backwards at random, pulling the box left behind: (key, player's cell, or -1 where a box stays on a target).

    The walk takes ``steps`` steps, and up to as many again until no box is on a target. Arrays as in ``explore``.
    """
    n = boxes.shape[1]
    for j in range(n):
        boxes[_BEST, j] = boxes[_TARGET, j]
        at[boxes[_TARGET, j]] = j
    on, word = n, np.uint64(0)
    for step in range(2 * steps):
        if step >= steps and on == 0:
            break
        if step & 31 == 0:
            key, word = next_word(key)
        offset = offset_of(int(np.int64(word & _THREE)), stride)
        word >>= _TWO
        there, behind = player + offset, player - offset
        if ground[there] == 0 or at[there] >= 0:
            continue
        j = at[behind]
        if j >= 0:
            at[behind], at[player], boxes[_BEST, j] = -1, j, player
            on += int(ground[player] == 2) - int(ground[behind] == 2)
        player = there
    for j in range(n):
        at[boxes[_BEST, j]] = -1
    return key, player if on == 0 else -1
