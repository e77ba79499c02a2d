"""Levels from generator keys, in one compiled loop: rooms, solved boards, and play backwards from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ragen_gym.games._jit import kernel, level_by_level
from ragen_gym.games.kernels import SplitKey, below, in_split, next_word
from ragen_gym.games.sokoban.blind import solves_blindly
from ragen_gym.games.sokoban.reverse_play import MAX_EXPLORED, SMALLEST_TABLE, explore, stroll, walk_back
from ragen_gym.games.sokoban.search import PAID, SOLVED, Memory, make_memory, search

if TYPE_CHECKING:
    from ragen_gym.games.game import Boards
    from ragen_gym.games.sokoban import Sokoban

#: Draws per level before the generator gives up, and the states that their searches may look at in all.
MAX_TRIES, MAX_STATES = 20_000, 50_000_000
#: Nodes of the solver that checks the bounds on moves; a board that needs more is drawn again.
SEARCH_NODES = 50_000

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_THREE, _FIVE = np.uint64(3), np.uint64(5)
#: Chance of a turn at each step of the walk that carves a room, in units of 2**-32; the number of the paper's code.
_TURN = np.uint64(round(0.35 * 2**32))


@kernel
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


@kernel
def _room(
    ground: np.ndarray, key: np.uint64, height: int, width: int, boxes: np.ndarray, scratch: np.ndarray
) -> tuple[np.uint64, int]:
    """A room with targets: (generator key, player's cell or -1 where the room is too small).

    Args:
        ground: uint8 (cells,), written: wall, floor and target, and 255 between two rows.
        key: generator key.
        height: rows.
        width: columns.
        boxes: int32 (4, boxes): the cells of the targets are written into its first row.
        scratch: int32 (1 or more, cells) to work in.
    """
    stride, n, targets = width + 1, 0, boxes.shape[1]
    for cell in range(ground.shape[0]):
        ground[cell] = 255 if cell % stride == width else 0
    key = _carve(ground, key, height, width)
    for cell in range(ground.shape[0]):
        if ground[cell] == 1:
            scratch[0, n] = cell
            n += 1
    if n <= targets + 1:
        return key, -1
    key, word = next_word(key)
    pick = below(word, n)
    player = scratch[0, pick]
    for j in range(targets):
        n -= 1
        scratch[0, pick] = scratch[0, n]
        key, word = next_word(key)
        pick = below(word, n)
        boxes[0, j] = scratch[0, pick]
        ground[scratch[0, pick]] = 2
    return key, player


@kernel
def _draw(
    keys: np.ndarray,
    rows: np.ndarray,
    wanted: np.ndarray,
    looked: np.ndarray,
    height: int,
    width: int,
    steps: int,
    boxes: np.ndarray,
    cells: np.ndarray,
    stack: np.ndarray,
    explored: np.ndarray,
    seen: np.ndarray,
) -> int:
    """Draw a level into each wanted row; the first row for which ``MAX_TRIES`` rooms gave none, or -1.

    Args:
        keys: uint64 (n,): states of the generators, written.
        rows: uint8 (n, cells): the boards.
        wanted: int64 (rows wanted,): their indices.
        looked: int64 (n,): states looked at for each row, added to.
        height: rows of a board.
        width: columns of a board.
        steps: steps of the walk back, or 0 to search.
        boxes: int32 (4, boxes); this and the following are worked in, see ``explore``.
        cells: int32 (3, cells).
        stack: int32 (search depth, 8).
        explored: uint64.
        seen: uint64.
    """
    stride, at = width + 1, cells[2]
    for i in wanted:
        key, board, player = keys[i], rows[i], -1
        for _ in range(MAX_TRIES):
            key, player = _room(board, key, height, width, boxes, cells)
            if player < 0:
                continue
            if steps:
                key, player = walk_back(board, stride, key, player, steps, boxes, at)
                looked[i] += steps
            else:
                player, apart, states = explore(board, stride, player, stack.shape[0], boxes, at, stack, explored, seen)
                looked[i] += states
                if apart:
                    key, player = stroll(board, stride, key, player, apart == 1, boxes, at)
                else:
                    player = -1
            if player >= 0 or looked[i] > MAX_STATES:
                break
        keys[i] = key
        if player < 0:
            return int(i)
        board[player] += 4
        for j in range(boxes.shape[1]):
            board[boxes[2, j]] = 4
    return -1


@kernel
def _of_split(rows: np.ndarray, wanted: np.ndarray, split: SplitKey, height: int, width: int) -> np.ndarray:
    """Membership of each wanted row in the split, bool (wanted,)."""
    fits = np.empty(wanted.shape[0], np.bool_)
    for k in range(wanted.shape[0]):
        fits[k] = in_split(rows[wanted[k]], split, height, width)
    return fits


@kernel
def _in_bounds(
    rows: np.ndarray, wanted: np.ndarray, looked: np.ndarray, stride: int, low: int, high: int, memory: Memory
) -> np.ndarray:
    """Levels whose moves by the solver are in the bounds, bool (wanted,)."""
    fits = np.empty(wanted.shape[0], np.bool_)
    for k in range(wanted.shape[0]):
        end, last, nodes = search(rows[wanted[k]], stride, high, 0, memory)
        looked[wanted[k]] += nodes
        fits[k] = end == SOLVED and memory[0][last, PAID] >= low
    return fits


@level_by_level(lambda game: _draw)
def generate(game: Sokoban, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
    """One level for each key, uint8 (len(keys), cells).

    A key is the state of a generator of its own, so a level depends on its key and the options alone.

    Raises:
        ValueError: no level that meets the options was found within ``MAX_TRIES`` draws and ``MAX_STATES`` states.
    """
    owner = game.split_key(split)
    keys, boards = keys.copy(), np.empty((len(keys), game.cells), np.uint8)
    looked, wanted = np.zeros(len(keys), np.int64), np.arange(len(keys))
    low, high = game.min_moves or 0, -1 if game.max_moves is None else game.max_moves
    bounded = low > 0 or high > 0
    solver = make_memory(game.cells, game.boxes, SEARCH_NODES if bounded else 1)
    steps = game.walk_steps if game.generator == "reverse_walk" else 0
    memory = work_arrays(game)
    for _ in range(MAX_TRIES):
        if _draw(keys, boards, wanted, looked, game.height, game.width, steps, *memory) >= 0:
            break
        drawn = wanted
        if split:
            fits = _of_split(boards, drawn, owner, game.height, game.width)
            drawn = drawn[fits]
        if bounded:
            drawn = drawn[_in_bounds(boards, drawn, looked, game.width + 1, low, high, solver)]
        if game.beyond_blind:
            blindly = [solves_blindly(game, bytes(boards[i])) for i in drawn]
            drawn = drawn[~np.array(blindly, bool)]
        if len(drawn) == len(wanted):
            return boards
        wanted = np.setdiff1d(wanted, drawn, assume_unique=True)
        if (looked[wanted] > MAX_STATES).any():
            break
    raise ValueError(_complaint(game, split))


@kernel
def first_states(boards: np.ndarray) -> np.ndarray:
    """The player's cell (tiles 5 and 6) and the boxes off target (tile 4): uint8 (n, cells) -> int32 (n, 2)."""
    states = np.empty((boards.shape[0], 2), np.int32)
    for i in range(boards.shape[0]):
        cell, off = np.int32(0), np.int32(0)
        for j in range(boards.shape[1]):  # without a break, so that it compiles to vector instructions
            tile = boards[i, j]
            cell |= np.int32(j) if (tile == 5) | (tile == 6) else np.int32(0)
            off += np.int32(tile == 4)
        states[i, 0], states[i, 1] = cell, off
    return states


def work_arrays(game: Sokoban) -> tuple[np.ndarray, ...]:
    """The last five arguments of ``_draw``."""
    searches = game.generator == "reverse_play"
    cells = np.full((3, game.cells), -1, np.int32)
    explored = MAX_EXPLORED if searches else 0
    return (
        np.empty((4, game.boxes), np.int32),
        cells,
        np.empty((game.search_depth if searches else 1, 8), np.int32),
        np.empty(explored, np.uint64),
        np.empty(max(SMALLEST_TABLE, 1 << (4 * explored - 1).bit_length()), np.uint64),
    )


def _complaint(game: Sokoban, split: str | None) -> str:
    play = "search_depth" if game.generator == "reverse_play" else "walk_steps"
    options = ("height", "width", "boxes", "generator", play, "min_moves", "max_moves")
    asked = [f"{name}={getattr(game, name)!r}" for name in options if getattr(game, name) is not None]
    asked += ["beyond_blind=True"] * game.beyond_blind
    return (
        f"Sokoban: no level in {MAX_TRIES} draws, or in {MAX_STATES} states looked at, meets {', '.join(asked)}, "
        f"split={split!r}; ask for fewer boxes, a larger board, wider bounds, a deeper search or a longer walk."
    )
