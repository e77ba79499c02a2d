"""Rooms with targets and a player, drawn from a generator key."""

from __future__ import annotations

import numpy as np

from ragen_gym.games._jit import compiled, next_word

__all__ = ["below", "room"]

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_THREE, _FIVE = np.uint64(3), np.uint64(5)
#: Chance of a turn at each step of the walk that carves a room, in units of 2**-32; the number of the paper's code.
_TURN = np.uint64(round(0.35 * 2**32))


@compiled
def below(word: np.uint64, n: int) -> int:
    """A number from 0 to n - 1 from the upper half of a random word."""
    return int(np.int64(((word >> _32) * np.uint64(n)) >> _32))


@compiled
def _carve(ground: np.ndarray, key: np.uint64, height: int, width: int) -> np.uint64:
    """Lay floor along a random walk of 1.7 steps for each row and column, three or four cells a step."""
    stride = width + 1
    key, word = next_word(key)
    direction = word & _THREE
    key, word = next_word(key)
    row = 1 + below(word, height - 1)
    key, word = next_word(key)
    column = 1 + below(word, width - 1)
    for _ in range(17 * (height + width) // 10):
        key, word = next_word(key)
        if (word & _LOW) < _TURN:
            direction = (word >> _32) & _THREE
        row = max(min(row + int(direction == 1) - int(direction == 0), height - 2), 1)
        column = max(min(column + int(direction == 3) - int(direction == 2), width - 2), 1)
        cell = row * stride + column
        shape = ((word >> np.uint64(34)) * _FIVE) >> np.uint64(30)
        ground[cell] = 1
        if shape == 0:
            ground[cell - 1] = ground[cell + 1] = 1
        elif shape == 1:
            ground[cell - stride] = ground[cell + stride] = 1
        else:
            ground[cell + stride] = 1
            ground[cell + 1 if shape == 4 else cell - 1] = 1
            if shape == 3:
                ground[cell + stride - 1] = 1
    for column in range(width):
        ground[column] = ground[(height - 1) * stride + column] = 0
    for row in range(height):
        ground[row * stride] = ground[row * stride + width - 1] = 0
    return key


@compiled
def _scatter(ground: np.ndarray, key: np.uint64, height: int, width: int, wall: np.uint64) -> np.uint64:
    """Make each inner cell a wall with probability ``wall`` * 2**-32, else floor."""
    for row in range(1, height - 1):
        for column in range(1, width - 1):
            key, word = next_word(key)
            ground[row * (width + 1) + column] = (word & _LOW) >= wall
    return key


@compiled
def _keep_reached(ground: np.ndarray, stride: int, start: int, scratch: np.ndarray) -> int:
    """Turn floor that cannot be walked to from ``start`` into wall; the number of cells left, listed in the scratch."""
    for cell in range(ground.shape[0]):
        scratch[1, cell] = 0
    scratch[1, start] = 1
    scratch[0, 0] = start
    head, tail = 0, 1
    while head < tail:
        cell = scratch[0, head]
        head += 1
        for offset in (-stride, stride, -1, 1):
            if ground[cell + offset] == 1 and scratch[1, cell + offset] == 0:
                scratch[1, cell + offset] = 1
                scratch[0, tail] = cell + offset
                tail += 1
    for cell in range(ground.shape[0]):
        if ground[cell] == 1 and scratch[1, cell] == 0:
            ground[cell] = 0
    return tail


@compiled
def room(
    ground: np.ndarray, key: np.uint64, height: int, width: int, wall: int, boxes: np.ndarray, scratch: np.ndarray
) -> tuple[np.uint64, int]:
    """A room with targets: (generator key, player's cell or -1 where the room is too small).

    Args:
        ground: uint8 (cells,), written: wall, floor and target, and 255 between two rows.
        key: generator key.
        height: rows.
        width: columns.
        wall: chance of a wall in units of 2**-32, or -1 to carve the room along a random walk.
        boxes: int32 (4, boxes): the cells of the targets are written into its first row.
        scratch: int32 (2 or more, cells) to work in.
    """
    stride, n, targets = width + 1, 0, boxes.shape[1]
    for cell in range(ground.shape[0]):
        ground[cell] = 255 if cell % stride == width else 0
    key = _carve(ground, key, height, width) if wall < 0 else _scatter(ground, key, height, width, np.uint64(wall))
    for cell in range(ground.shape[0]):
        if ground[cell] == 1:
            scratch[0, n] = cell
            n += 1
    if n <= targets + 1:
        return key, -1
    key, word = next_word(key)
    pick = below(word, n)
    player = scratch[0, pick]
    if wall >= 0:
        n, pick = _keep_reached(ground, stride, player, scratch), 0
        if n <= targets + 1:
            return key, -1
    for j in range(targets):
        n -= 1
        scratch[0, pick] = scratch[0, n]
        key, word = next_word(key)
        pick = below(word, n)
        boxes[0, j] = scratch[0, pick]
        ground[scratch[0, pick]] = 2
    return key, player
