"""Levels from generator keys, in one compiled loop: rooms, solved boards, and play backwards from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ragen_gym.games._jit import canonical_hash, compiled, split_index
from ragen_gym.games.sokoban.backwards import MAX_EXPLORED, explore, stroll, walk_back
from ragen_gym.games.sokoban.rooms import room
from ragen_gym.games.sokoban.search import Memory, make_memory, search
from ragen_gym.levels import SPLITS, check_split

if TYPE_CHECKING:
    from ragen_gym.games.game import Boards
    from ragen_gym.games.sokoban import Sokoban

__all__ = ["MAX_STATES", "MAX_TRIES", "SEARCH_NODES", "generate"]

#: Draws per level before the generator gives up, and the states that their searches may look at in all.
MAX_TRIES, MAX_STATES = 20_000, 50_000_000
#: Nodes of the solver that checks the bounds on moves and pushes; a board that needs more is drawn again.
SEARCH_NODES = 50_000


@compiled
def _within(board: np.ndarray, stride: int, bounds: tuple[int, int, int, int], solver: Memory) -> tuple[bool, int]:
    """Whether the solver's numbers of moves and pushes lie in the bounds, and the nodes it took; -1 is no bound."""
    nodes = 0
    for price in range(2):  # 0 counts pushes, 1 counts moves
        low, high = bounds[2 - 2 * price], bounds[3 - 2 * price]
        if low < 0 and high < 0:
            continue
        end, last, made = search(board, stride, price, high, 0, solver)
        nodes += made
        if end != 0 or solver[0][last, 1] < low:
            return False, nodes
    return True, nodes


@compiled
def _draw(
    board: np.ndarray,
    key: np.uint64,
    shape: tuple[int, int, int],
    play: tuple[int, int],
    targets: np.ndarray,
    boxes: np.ndarray,
    memory: Memory,
) -> tuple[np.uint64, int, bool]:
    """Draw one level: (generator key, states looked at, whether it is a level and not a room where nothing moves)."""
    (height, width, wall), (depth, steps) = shape, play
    stride = width + 1
    key, player = room(board, key, height, width, wall, targets, memory[0], memory[1])
    if player < 0:
        return key, 0, False
    if steps:
        for j in range(boxes.shape[0]):
            boxes[j] = targets[j]
        key, player = walk_back(board, stride, key, player, steps, boxes, memory[2])
        if player < 0:
            return key, steps, False
        states = steps
    else:
        player, apart, states = explore(board, stride, player, depth, targets, boxes, memory)
        if apart == 0:
            return key, states, False
        key, player = stroll(board, stride, key, player, apart == 1, boxes, memory[2])
    board[player] += 4
    for j in range(boxes.shape[0]):
        board[boxes[j]] = 4
    return key, states, True


@compiled
def _fill(
    keys: np.ndarray,
    rows: np.ndarray,
    shape: tuple[int, int, int],
    play: tuple[int, int],
    bounds: tuple[int, int, int, int],
    split: int,
    codes: np.ndarray,
    basis: np.uint64,
    memory: Memory,
    solver: Memory,
) -> int:
    """Write one level a row; the index of the first row that could not be written within the limits, or -1."""
    height, width, _ = shape
    targets, boxes = np.empty_like(memory[3]), np.empty_like(memory[3])
    for i in range(keys.shape[0]):
        key, board, looked, found = keys[i], rows[i], 0, False
        for _ in range(MAX_TRIES):
            key, states, found = _draw(board, key, shape, play, targets, boxes, memory)
            looked += states
            if found and split >= 0:
                found = split_index(canonical_hash(board, codes, basis, height, width)) == split
            if found:
                found, states = _within(board, width + 1, bounds, solver)
                looked += states
            if found or looked > MAX_STATES:
                break
        if not found:
            return i
    return -1


def generate(game: Sokoban, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
    """One level for each key, uint8 (len(keys), cells).

    Raises:
        ValueError: no level that meets the knobs was found within `MAX_TRIES` draws and `MAX_STATES` states.
    """
    check_split(split)
    boards = np.empty((len(keys), game.cells), np.uint8)
    moves = game.min_moves or -1, game.max_moves or -1
    bounds = (*moves, game.min_pushes or -1, game.max_pushes or -1)
    wall = -1 if game.wall_prob is None else round(game.wall_prob * 2**32)
    searches = game.generator == "reverse_play"
    failed = _fill(
        keys,
        boards,
        (game.height, game.width, wall),
        (game.search_depth, 0 if searches else game.walk_steps),
        bounds,
        SPLITS.index(split) if split else -1,
        *game.identity,
        _make_memory(game, game.search_depth if searches else 1),
        make_memory(game.cells, game.boxes, SEARCH_NODES if max(bounds) >= 0 else 1),
    )
    if failed >= 0:
        knobs = ("height", "width", "boxes", "generator", "wall_prob", "search_depth" if searches else "walk_steps")
        limits = ("min_moves", "max_moves", "min_pushes", "max_pushes")
        asked = [name for name in (*knobs, *limits) if getattr(game, name) is not None]
        raise ValueError(
            f"Sokoban: no level in {MAX_TRIES} draws, or in {MAX_STATES} states looked at, meets "
            f"{', '.join(f'{name}={getattr(game, name)!r}' for name in asked)}, split={split!r}; ask for fewer boxes, "
            "a larger board, wider bounds, a deeper search or a longer walk."
        )
    return boards


def _make_memory(game: Sokoban, depth: int) -> Memory:
    """What the generator works in.

    Returns:
        int32 (cells,): cells of floor, marks, box on each cell or -1; int32 (boxes,): cells of the boxes, whether they
        were pulled; int32 (depth, 8) and uint64 (depth,): stack of the search and its hashes; uint64: hashes explored,
        and their table.
    """
    explored = MAX_EXPLORED if depth > 1 else 0
    return (
        np.empty(game.cells, np.int32),
        np.empty(game.cells, np.int32),
        np.full(game.cells, -1, np.int32),
        np.empty(game.boxes, np.int32),
        np.empty(game.boxes, np.int32),
        np.empty((depth, 8), np.int32),
        np.empty(depth, np.uint64),
        np.empty(explored + 1, np.uint64),
        np.empty(max(256, 1 << (4 * explored).bit_length()), np.uint64),
    )
