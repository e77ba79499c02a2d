"""Lakes from generator keys.

A lake takes a word for start and goal, then the words of its ice, up to 64 cells at a time. Boards of up to 64 cells
are integers, a bit for every cell (``fill_bitboards``), larger ones arrays (``fill_arrays``); both make the same lakes.

Whether a bit is decided, or a path found, is nothing that a processor can predict. So no small lake is drawn by itself:
every loop does the same to all of a group, which compiles to vector instructions, and goes on until the last is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import GOLDEN
from ragen_gym.games._jit import Kernel, kernel, level_by_level
from ragen_gym.games.frozen_lake.rules import blind
from ragen_gym.games.kernels import SplitKey, in_split, mix

if TYPE_CHECKING:
    from ragen_gym.games.frozen_lake import FrozenLake
    from ragen_gym.games.game import Board, Boards

#: Destinations of the moves, chance of the intended direction, and moves; see ``beyond_blind``.
Beyond = tuple[np.ndarray, float, int]

#: Draws per level before the generator gives up.
MAX_TRIES = 20_000
#: Lakes that are drawn together.
_GROUP = 64

#: Rows of the array uint64 (_ROWS, lakes) that a group is drawn in: state of the generator, cell of the start, cell of
#: the goal, bits of the ice, bits undecided (later: cells that can be walked on), random bits (later: cells reached),
#: moves until the goal was reached.
_KEY, _START, _GOAL, _ICE, _OPEN, _BITS, _MOVES = range(7)
_ROWS = 7

_GOLDEN = np.uint64(GOLDEN)
_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_ALL, _LOW = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFFFFFFFF)


@kernel
def _draw_ends(lakes: np.ndarray, held: int, n: np.uint64, random_start: bool) -> None:
    """Draw start and goal, two of ``n`` cells in row order, of the first ``held`` lakes."""
    key, start, goal = lakes[_KEY], lakes[_START], lakes[_GOAL]
    for k in range(held):
        if random_start:
            key[k] += _GOLDEN
            word = mix(key[k])
            first = ((word & _LOW) * n) >> _32
            second = ((word >> _32) * (n - _1)) >> _32
            start[k], goal[k] = first, second + np.uint64(second >= first)
        else:
            start[k], goal[k] = _0, n - _1


@kernel
def _draw_ice(lakes: np.ndarray, held: int, count: int, chance: np.uint64) -> None:
    """Draw ``count`` bits of ice, up to 64, of the first ``held`` lakes: each is 1 with probability ``chance`` / 2**32.

    Each bit is the comparison of a random binary fraction with ``chance``. The fractions are drawn digit by digit from
    the first, all bits' digits at once from a slice of a random word, until every comparison is decided: about
    log2(count) + 1 slices, where a number for each cell would take ``count`` / 2 words. A lake whose bits are decided
    draws no further word, whatever the others of its group do.
    """
    key, ice, undecided, word = lakes[_KEY], lakes[_ICE], lakes[_OPEN], lakes[_BITS]
    full, last, digit = _ALL >> np.uint64(64 - count), np.uint64(count - 1), 32
    if chance >> _32:
        ice[:] = full
        return
    ice[:], undecided[:held], undecided[held:] = _0, full, _0
    left = full
    while left and digit:
        for k in range(held):
            key[k] += _GOLDEN if undecided[k] else _0
            word[k] = mix(key[k])
        for _ in range(min(64 // count, digit)):
            digit -= 1
            threshold = _0 - ((chance >> np.uint64(digit)) & _1)  # this digit of the chance, in every bit
            left = _0
            for k in range(held):
                ice[k] |= undecided[k] & threshold & ~word[k]
                undecided[k] &= ~(word[k] ^ threshold)
                left |= undecided[k]
                word[k] = word[k] >> last >> _1  # in two steps, as a shift by 64 has no defined result


@kernel
def _find_paths(lakes: np.ndarray, held: int, not_first: np.uint64, not_last: np.uint64, width: np.uint64) -> None:
    """Count the moves of a shortest path over the ice of the first ``held`` lakes, 0 where there is none.

    All that is within reach grows by a move at a time. ``not_first`` and ``not_last`` are the bits that are not in the
    first, the last column.
    """
    start, goal, ice, open_, reached, moves = (
        lakes[_START],
        lakes[_GOAL],
        lakes[_ICE],
        lakes[_OPEN],
        lakes[_BITS],
        lakes[_MOVES],
    )
    for k in range(held):
        reached[k] = _1 << start[k]
        open_[k] = ice[k] | reached[k] | (_1 << goal[k])
        moves[k] = _0
    growing = _1
    while growing:
        growing = _0
        for k in range(held):
            now = reached[k]
            sideways = ((now << _1) & not_first) | ((now >> _1) & not_last)
            grown = (now | sideways | (now << width) | (now >> width)) & open_[k]
            new = _0 if (now >> goal[k]) & _1 else grown ^ now
            reached[k] = now | new
            moves[k] += np.uint64(new != _0)
            growing |= new
    for k in range(held):
        moves[k] = moves[k] if (reached[k] >> goal[k]) & _1 else _0


blind_move = kernel(blind)


@kernel
def beyond_blind(board: np.ndarray, moves: np.ndarray, straight: float, steps: int) -> bool:
    """True if the blind script's chance of the goal within ``steps`` moves is below half of the best one.

    Args:
        board: uint8 (cells,).
        moves: ``rules.destinations`` of its size.
        straight: chance of the intended direction.
        steps: moves.
    """
    cells, aside = board.shape[0], (1.0 - straight) / 2
    script, best = np.zeros(cells), np.zeros(cells)
    chosen, start, here = np.zeros(cells, np.int64), 0, np.zeros(1, np.int32)
    for cell in range(cells):
        here[0] = cell
        if board[cell] == 0 or board[cell] == 3:
            chosen[cell] = blind_move(board, here, (moves,))
        if board[cell] == 2:
            script[cell] = best[cell] = 1.0
        if board[cell] == 3:
            start = cell
    for _ in range(steps):
        before, best_before = script.copy(), best.copy()
        for cell in range(cells):
            if board[cell] != 0 and board[cell] != 3:
                continue
            best[cell] = 0.0
            for action in range(4):
                place = 12 * cell + 3 * action
                to, left, right = moves[place], moves[place + 1], moves[place + 2]
                chance = straight * best_before[to] + aside * (best_before[left] + best_before[right])
                best[cell] = max(best[cell], chance)
                if action == chosen[cell]:
                    script[cell] = straight * before[to] + aside * (before[left] + before[right])
        if (best == best_before).all() and (script == before).all():
            break  # all further moves change nothing
    return bool(script[start] < best[start] / 2)


@kernel
def _layout(height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.uint64]:
    """What places the cells, in row order, on a board.

    Returns:
        the cell of each byte of a board (uint8), what the bytes between its rows hold (uint8), the byte of each cell
        (uint8), and the bits of the first column.
    """
    cells = height * (width + 1) - 1
    cell_of, edge, byte_of = np.zeros(cells, np.uint8), np.zeros(cells, np.uint8), np.zeros(height * width, np.uint8)
    first = _0
    for byte in range(cells):
        row, column = byte // (width + 1), byte % (width + 1)
        if column == width:
            edge[byte] = 255
        else:
            cell_of[byte], byte_of[row * width + column] = row * width + column, byte
    for row in range(height):
        first |= _1 << np.uint64(row * width)
    return cell_of, edge, byte_of, first


@kernel
def fill_bitboards(
    keys: np.ndarray,
    boards: np.ndarray,
    size: tuple[int, int],
    chance: np.uint64,
    min_path: int,
    random_start: bool,
    split: SplitKey,
    tries: int,
    beyond: Beyond,
) -> int:
    """``fill_arrays`` for boards of up to 64 cells: the same lakes, faster."""
    (height, width), (moves, straight, steps) = size, beyond
    cell_of, edge, byte_of, first = _layout(height, width)
    lakes = np.empty((_ROWS, _GROUP), np.uint64)
    rows, drawn = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64)
    held, begun = 0, 0  # lakes in the group, and rows that have come to it
    while held or begun < keys.shape[0]:
        while held < _GROUP and begun < keys.shape[0]:
            lakes[_KEY, held], rows[held], drawn[held] = keys[begun], begun, 0
            held, begun = held + 1, begun + 1
        _draw_ends(lakes, held, np.uint64(height * width), random_start)
        _draw_ice(lakes, held, height * width, chance)
        _find_paths(lakes, held, ~first, ~(first << np.uint64(width - 1)), np.uint64(width))
        drawn_before, held = held, 0
        for k in range(drawn_before):
            good = lakes[_MOVES, k] >= np.uint64(min_path)
            if good:
                board, water = boards[rows[k]], ~lakes[_ICE, k]
                for byte in range(board.shape[0]):
                    board[byte] = edge[byte] | np.uint8((water >> np.uint64(cell_of[byte])) & _1)
                board[byte_of[lakes[_START, k]]], board[byte_of[lakes[_GOAL, k]]] = 3, 2
                good = in_split(board, split, height, width)
                good = good and (steps == 0 or beyond_blind(board, moves, straight, steps))
            if not good:  # it stays in the group, for another draw
                if drawn[k] + 1 == tries:
                    return int(rows[k])
                lakes[_KEY, held], rows[held], drawn[held] = lakes[_KEY, k], rows[k], drawn[k] + 1
                held += 1
    return -1


@kernel
def _path(board: np.ndarray, start: int, goal: int, stride: int, distance: np.ndarray, queue: np.ndarray) -> int:
    """Moves on a shortest path over cells that are not holes (1) or edges (255), or -1: breadth-first search."""
    cells = board.shape[0]
    distance[:] = -1
    distance[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for offset in (-1, 1, -stride, stride):
            target = cell + offset
            if 0 <= target < cells and distance[target] < 0 and board[target] != 1 and board[target] != 255:
                distance[target] = distance[cell] + 1
                if target == goal:
                    return int(distance[target])
                queue[tail] = target
                tail += 1
    return -1


@kernel
def _draw(
    lake: np.ndarray, board: np.ndarray, stride: int, chance: np.uint64, random_start: bool, queues: tuple[Any, Any]
) -> int:
    """Draw a lake of any size onto ``board``; the moves on a shortest path, or -1.

    ``lake`` is a group of one, see ``_KEY``.
    """
    cells, width = board.shape[0], stride - 1
    left, drawn, ice = cells + 1 - (cells + 1) // stride, 0, np.uint64(0)
    _draw_ends(lake, 1, np.uint64(left), random_start)
    for byte in range(cells):
        if byte % stride == width:
            board[byte] = 255
            continue
        if not drawn & 63:
            _draw_ice(lake, 1, min(64, left - drawn), chance)
            ice = lake[_ICE, 0]
        board[byte] = np.uint8((~ice >> np.uint64(drawn & 63)) & _1)
        drawn += 1
    start, goal = int(lake[_START, 0]), int(lake[_GOAL, 0])
    start, goal = start + start // width, goal + goal // width
    board[start], board[goal] = 3, 2
    return _path(board, start, goal, stride, queues[0], queues[1])


@kernel
def fill_arrays(
    keys: np.ndarray,
    boards: np.ndarray,
    size: tuple[int, int],
    chance: np.uint64,
    min_path: int,
    random_start: bool,
    split: SplitKey,
    tries: int,
    beyond: Beyond,
) -> int:
    """Write one lake a row; the index of the first row that could not be written in ``tries`` draws, or -1.

    Args:
        keys: uint64 (n,), the lakes' generator keys.
        boards: uint8 (n, cells), written.
        size: rows and columns of a board.
        chance: chance of ice, in units of 2**-32.
        min_path: the least number of moves from start to goal.
        random_start: whether start and goal are drawn, or the first cell and the last.
        split: ``ragen_gym.games.grid.GridGame.split_key``.
        tries: draws for each lake.
        beyond: the last arguments of ``beyond_blind``; 0 steps take any lake.
    """
    (height, width), (moves, straight, steps) = size, beyond
    queues = np.empty(boards.shape[1], np.int32), np.empty(boards.shape[1], np.int32)
    lake = np.zeros((_ROWS, 1), np.uint64)
    for i in range(keys.shape[0]):
        lake[_KEY, 0], found = keys[i], False
        for _ in range(tries):
            if _draw(lake, boards[i], width + 1, chance, random_start, queues) < min_path:
                continue
            if in_split(boards[i], split, height, width) and (
                steps == 0 or beyond_blind(boards[i], moves, straight, steps)
            ):
                found = True
                break
        if not found:
            return i
    return -1


def _fill_of(game: FrozenLake) -> Kernel[Any, int]:
    return fill_bitboards if game.height * game.width <= 64 else fill_arrays


@level_by_level(_fill_of)
def generate(game: FrozenLake, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
    """One lake for each key, uint8 (len(keys), cells).

    Raises:
        ValueError: no lake that meets the options was found in ``MAX_TRIES`` draws.
    """
    boards = np.empty((len(keys), game.cells), np.uint8)
    moves, straight, _ = game.params
    failed = _fill_of(game)(
        keys,
        boards,
        (game.height, game.width),
        np.uint64(round(game.frozen_prob * 2**32)),
        game.min_path,
        game.random_start,
        game.split_key(split),
        MAX_TRIES,
        (np.asarray(moves), straight, 4 * (game.height + game.width) * game.beyond_blind),
    )
    if failed >= 0:
        raise ValueError(
            f"FrozenLake: no level in {MAX_TRIES} draws has a path of min_path={game.min_path} moves or more "
            f"with height={game.height}, width={game.width}, frozen_prob={game.frozen_prob}, "
            f"random_start={game.random_start}, beyond_blind={game.beyond_blind}, "
            f"split={split!r}; ask for a shorter path, more ice or a larger board"
            f"{', or leave beyond_blind out' * game.beyond_blind}."
        )
    return boards


def can_draw(game: FrozenLake, board: Board) -> bool:
    """True if the generator may draw this board, of one start and one goal, for some split."""
    tiles, (moves, straight) = np.frombuffer(bytes(board), np.uint8), game.params[:2]
    start, goal = (int((tiles == tile).argmax()) for tile in (game.Tile.PLAYER, game.Tile.GOAL))
    if not game.random_start and (start, goal) != (0, len(tiles) - 1):
        return False
    if _path(tiles, start, goal, game.width + 1, *np.empty((2, len(tiles)), np.int32)) < game.min_path:
        return False
    steps = 4 * (game.height + game.width) * game.beyond_blind
    return not steps or beyond_blind(tiles, np.asarray(moves), straight, steps)


@kernel
def player_cells(boards: np.ndarray) -> np.ndarray:
    """Player's cell (tiles 3 to 5) on each board: uint8 (n, cells) -> int32 (n, 1)."""
    cells = np.zeros((boards.shape[0], 1), np.int32)
    for i in range(boards.shape[0]):
        cell = np.int32(0)
        for j in range(boards.shape[1]):  # without a break, so that it compiles to vector instructions
            cell |= np.int32(j) if (boards[i, j] >= 3) & (boards[i, j] <= 5) else np.int32(0)
        cells[i, 0] = cell
    return cells
