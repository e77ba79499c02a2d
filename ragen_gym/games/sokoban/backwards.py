"""Play backwards from a solved board: a search for a far state, or a random walk."""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import compiled, mix, next_word
from ragen_gym.games.sokoban.rooms import below
from ragen_gym.games.sokoban.search import Memory, offset_of

__all__ = ["MAX_EXPLORED", "explore", "stroll", "walk_back"]

#: States that one depth-first search looks at, as in the paper's code.
MAX_EXPLORED = 300_000

_LOW, _TWO, _THREE = np.uint64(0xFFFFFFFF), np.uint64(2), np.uint64(3)
#: Chance that a stroll begins (after a displacement of 1, of more) and that it goes on, in units of 2**-32; numbers of
#: the paper's code.
_STROLL_NEAR, _STROLL, _STROLL_ON = (np.uint64(round(chance * 2**32)) for chance in (0.8, 0.5, 0.5))
_LONGEST_STROLL = 3

_SMALLEST_TABLE = 256


@compiled
def _is_new(seen: np.ndarray, mask: int, word: np.uint64) -> bool:
    """Enter a nonzero hash into the first ``mask + 1`` slots of ``seen`` unless it is there."""
    slot = int(np.int64(word & np.uint64(mask)))
    while seen[slot] != 0:
        if seen[slot] == word:
            return False
        slot = (slot + 1) & mask
    seen[slot] = word
    return True


@compiled
def _grow(seen: np.ndarray, mask: int, explored: np.ndarray, states: int) -> int:
    """Double the slots of ``seen`` in use when half are taken; the new mask."""
    if 2 * states <= mask:
        return mask
    mask = 2 * mask + 1
    seen[: mask + 1] = 0
    for k in range(states):
        _is_new(seen, mask, explored[k])
    return mask


@compiled
def _undo(here: int, j: int, before: int, memory: Memory) -> None:
    """Take back a pull of box j that brought the player to ``here``."""
    _, _, at, boxes, pulled, _, _, _, _ = memory
    cell = boxes[j]  # where the player stood before the pull
    home = cell - (here - cell)
    at[cell], at[home], boxes[j], pulled[j] = -1, j, home, before


@compiled
def _root(player: int, targets: np.ndarray, best: np.ndarray, memory: Memory) -> None:
    """Set up the solved board as the first state of a search."""
    _, _, at, boxes, pulled, stack, hashes, explored, seen = memory
    word = mix(np.uint64(4 * player))
    for j in range(targets.shape[0]):
        boxes[j] = best[j] = targets[j]
        pulled[j] = 0
        at[targets[j]] = j
        word ^= mix(np.uint64(4 * targets[j] + 1))
    seen[:_SMALLEST_TABLE] = 0
    _is_new(seen, _SMALLEST_TABLE - 1, word)
    explored[0] = hashes[0] = word
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = player, 0, -1, 0
    stack[0, 4], stack[0, 5], stack[0, 6], stack[0, 7] = -1, 0, 0, targets.shape[0]


@compiled
def explore(
    ground: np.ndarray, stride: int, player: int, depth: int, targets: np.ndarray, best: np.ndarray, memory: Memory
) -> tuple[int, int, int]:
    """Depth-first search backwards from the solved board: (player's best cell, boxes' displacement, states seen).

    Each step the player leaves its cell and pulls the box behind it, if there is one; states are explored once. The
    best state is the first with the highest product of turns to another box and displacement, no target being covered;
    ``best`` takes its boxes. A box that was never pulled counts as another state than one pulled back home.

    ``memory`` is from `ragen_gym.games.sokoban.generate`. Columns of its stack: player, next action, box pulled to get
    here or -1, whether that had been pulled before, last box pulled, turns, displacement, boxes on targets.
    """
    _, _, at, boxes, pulled, stack, hashes, explored, seen = memory
    _root(player, targets, best, memory)
    mask, states, level, top, displaced = _SMALLEST_TABLE - 1, 1, 0, 0, 0
    while level >= 0:
        action, here = stack[level, 1], stack[level, 0]
        if action == 4:
            if stack[level, 2] >= 0:
                _undo(here, stack[level, 2], stack[level, 3], memory)
            level -= 1
            continue
        stack[level, 1] = action + 1
        offset = offset_of(action, stride)
        there, behind = here + offset, here - offset
        if level + 2 >= depth or states >= MAX_EXPLORED or ground[there] == 0 or at[there] >= 0:
            continue
        j = at[behind]
        word = hashes[level] ^ mix(np.uint64(4 * here)) ^ mix(np.uint64(4 * there))
        if j >= 0:
            word ^= mix(np.uint64(4 * behind + 1 + pulled[j])) ^ mix(np.uint64(4 * here + 2))
        if not _is_new(seen, mask, word):
            continue
        explored[states] = word
        states += 1
        mask = _grow(seen, mask, explored, states)
        level += 1
        hashes[level] = word
        for column in range(3, 8):
            stack[level, column] = stack[level - 1, column]
        stack[level, 0], stack[level, 1], stack[level, 2] = there, 0, j
        if j >= 0:
            stack[level, 5] += stack[level, 4] != j
            stack[level, 3], stack[level, 4] = pulled[j], j
            stack[level, 6] += _apart(here, targets[j], stride) - _apart(behind, targets[j], stride)
            stack[level, 7] += int(ground[here] == 2) - int(ground[behind] == 2)
            at[behind], at[here], boxes[j], pulled[j] = -1, j, here, 1
        score = stack[level, 5] * stack[level, 6]
        if score > top and stack[level, 7] == 0 and ground[there] == 1:
            top, player, displaced = score, there, stack[level, 6]
            for k in range(targets.shape[0]):
                best[k] = boxes[k]
    for j in range(targets.shape[0]):
        at[targets[j]] = -1
    return player, displaced, states


@compiled
def _apart(a: int, b: int, stride: int) -> int:
    """Manhattan distance of two cells."""
    return abs(a // stride - b // stride) + abs(a % stride - b % stride)


@compiled
def stroll(
    ground: np.ndarray, stride: int, key: np.uint64, player: int, near: bool, boxes: np.ndarray, at: np.ndarray
) -> tuple[np.uint64, int]:
    """Walk the player up to three cells away, through no cell twice: (generator key, player's cell)."""
    key, word = next_word(key)
    if (word & _LOW) > (_STROLL_NEAR if near else _STROLL):
        return key, player
    for j in range(boxes.shape[0]):
        at[boxes[j]] = 1
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
    for j in range(boxes.shape[0]):
        at[boxes[j]] = -1
    return key, player


@compiled
def walk_back(
    ground: np.ndarray, stride: int, key: np.uint64, player: int, steps: int, boxes: np.ndarray, at: np.ndarray
) -> tuple[np.uint64, int]:
    """Walk backwards at random, pulling the box left behind: (key, player's cell, or -1 where a box stays on a target).

    ``boxes`` holds the targets before and the boxes after. The walk takes ``steps`` steps, and up to as many again
    until no box is on a target.
    """
    n = boxes.shape[0]
    for j in range(n):
        at[boxes[j]] = j
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
            at[behind], at[player], boxes[j] = -1, j, player
            on += int(ground[player] == 2) - int(ground[behind] == 2)
        player = there
    for j in range(n):
        at[boxes[j]] = -1
    return key, player if on == 0 else -1
