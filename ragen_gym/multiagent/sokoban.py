"""Sokoban with several workers in one warehouse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Stream, stream_key, uniforms
from ragen_gym.core.text import Vocabulary
from ragen_gym.games.game import PLAYING, SUCCESS, Board, Boards, NotSolvedError
from ragen_gym.games.sokoban import Sokoban, rules
from ragen_gym.games.sokoban.solve import find_plan
from ragen_gym.multiagent.parallel import ParallelGame, with_others

#: Further levels drawn for one episode before the environment gives up finding room for all workers.
MAX_TRIES = 200
#: Nodes that the solver may look at for one level; a level that needs more counts as one without room.
MAX_NODES = 200_000


class Action(IntEnum):
    """Sokoban's actions, and to wait for others."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3
    STAY = 4


class Tile(IntEnum):
    """Sokoban's tiles, and the other workers'."""

    WALL = 0
    FLOOR = 1
    TARGET = 2
    BOX_ON_TARGET = 3
    BOX = 4
    PLAYER = 5
    PLAYER_ON_TARGET = 6
    OTHER = 7
    OTHER_ON_TARGET = 8


_OTHERS = (Tile.OTHER, Tile.OTHER_ON_TARGET)
_ALONE = bytes.maketrans(bytes(_OTHERS), bytes([Tile.FLOOR, Tile.TARGET]))

# What a worker adds to the code of the ground below it.
_PLAYER, _OTHER = Tile.PLAYER - Tile.FLOOR, Tile.OTHER - Tile.FLOOR


def alone(board: Board) -> bytes:
    """The board without the other workers."""
    return bytes(board).translate(_ALONE)


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Walk, push or stay; see ``ragen_gym.games.game.Rule``. To stay costs what any action costs."""
    return (-0.1, PLAYING) if action == Action.STAY else rules.step(board, state, action, u, params)


@dataclass(frozen=True)
class SharedSokoban(Sokoban):
    """Sokoban with tiles for other workers. A level is identified without them: id and split are Sokoban's own."""

    # Enums with members cannot be subclassed, so the types are not Sokoban's.
    Action = Action  # type: ignore[assignment]
    Tile = Tile  # type: ignore[assignment]
    rule = staticmethod(step)
    vocabularies: ClassVar[dict[str, Vocabulary]] = with_others(Sokoban.vocabularies, Tile)
    painter = "ragen_gym.multiagent.frames:SHARED_SOKOBAN"
    description = (
        "You and others work in a warehouse. Push every box onto a target. You push a box by walking into it, if the "
        "cell beyond it is free; you cannot pull a box, you cannot push two at once, and nobody can be pushed."
    )

    def level(self, board: Board) -> Level:
        """The level, without the other workers."""
        return super().level(alone(board))

    def ids(self, boards: Boards) -> list[str]:
        """``Level.id`` of each board, without the other workers."""
        return super().ids(np.frombuffer(alone(boards.tobytes()), np.uint8).reshape(boards.shape))

    def family(self, board: Board) -> int:
        """The family of the level, without the other workers."""
        return super().family(alone(board))

    def check(self, board: bytes) -> None:
        """As in Sokoban; other workers may stand anywhere."""
        super().check(alone(board))

    def action_mask(self, board: Board, state: Sequence[int]) -> npt.NDArray[np.int8]:
        """1 for the actions that move the player, and for staying."""
        mask = super().action_mask(board, state)
        mask[Action.STAY] = 1
        return mask


class SokobanTeam(ParallelGame):
    """Sokoban with 1 to 4 workers on one board.

    ## Description
    Several workers have Sokoban's moves and may stay. The moves of a cycle are played in the order of the agents'
    numbers, each by Sokoban's rule against the board as it then stands, where the other workers are like walls: nobody
    walks into a worker or pushes a box into one. So of two that want one cell the lower number gets it, and a cell that
    a lower number leaves is free for the higher ones.

    ## Observation Space
    A worker sees itself as Sokoban's player, the others as ``OTHER`` and ``OTHER_ON_TARGET``.

    ## Starting State
    Sokoban's levels. Player 0 starts where the level says. The others are placed by the level's stream on floor that
    player 0 can walk to and that a move-optimal plan of player 0 alone never touches: while they stay, that plan still
    works. A level without room for that is drawn again; if the caller gave it, that is an error. A level's text may
    place the others itself. ``level_id`` is the id of the level without them.

    ## Rewards
    The same for all: the sum of what Sokoban's rule gives for each worker's move, to stay costing 0.1 like any action.
    The move that puts the last box on a target ends the cycle: later moves of that cycle are not played.

    ## Episode End
    Terminated for all when every box is on a target (success for all). Truncated after ``max_cycles``.

    ## Information
    ``action_mask`` is about the board as it is before anybody moves; to stay is always allowed.
    """

    most = 4
    shared = "ragen_gym.multiagent.sokoban:SharedSokoban"
    game: Sokoban

    def _begin(self, board: bytes, state: list[int], level_key: int, *, fixed: bool) -> None:
        others = self._others(board, state, level_key)
        tries = 0
        while others is None:
            if fixed or tries == MAX_TRIES:
                raise ValueError(self._no_room(fixed))
            tries += 1
            key = stream_key(tries << 64 | level_key, Stream.LEVEL)
            boards = self.game.generate(np.array([key], np.uint64), self.split)
            board, state = boards[0].tobytes(), self.game.starts(boards)[0].tolist()
            self._level_id = self.game.ids(boards)[0]
            others = self._others(board, state, level_key)
        self._start, self._board = board, bytearray(alone(board))
        self._cells, self._boxes_off_target = [state[0], *others], state[1]
        self._board[state[0]] -= _PLAYER

    def _others(self, board: bytes, state: list[int], level_key: int) -> list[int] | None:
        """The cells of the other workers: where the level says, else drawn; None where it has no room for them."""
        given = [cell for cell, tile in enumerate(board) if tile in _OTHERS]
        if given and len(given) != self.players - 1:
            raise ValueError(
                f"Sokoban: the level places {len(given)} other workers, with players={self.players} there are "
                f"{self.players - 1}; place them all, or none to have them placed."
            )
        return given or place(self.game, board, state, self.players - 1, level_key)

    def _no_room(self, fixed: bool) -> str:
        if fixed:
            return (
                f"Sokoban: no room for players={self.players} was found on this level next to the plan of player 0; "
                "place the others in its text, or ask for fewer."
            )
        return (
            f"Sokoban: none of {MAX_TRIES} levels has room for players={self.players} next to the plan of player 0 "
            f"with height={self.game.height}, width={self.game.width}; ask for fewer players or a larger board."
        )

    def _play(self, moves: dict[int, int], draws: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
        total, outcome = 0.0, PLAYING
        for worker, move in moves.items():
            with self._acting(worker) as state:
                reward, outcome = self.game.rule(self._board, state, move, 0.0, self.game.params)
            total += reward
            if outcome == SUCCESS:
                break
        return dict.fromkeys(moves, total), dict.fromkeys(moves, outcome)

    @contextmanager
    def _acting(self, worker: int) -> Iterator[list[int]]:
        """The board as Sokoban's rule knows it while this worker acts, the others being walls; yields its state."""
        board, cells = self._board, self._cells
        others = [(cell, board[cell]) for i, cell in enumerate(cells) if i != worker]
        for cell, _ in others:
            board[cell] = Tile.WALL
        board[cells[worker]] += _PLAYER
        state = [cells[worker], self._boxes_off_target]
        yield state
        cells[worker], self._boxes_off_target = state
        board[cells[worker]] -= _PLAYER
        for cell, ground in others:
            board[cell] = ground

    def _view(self, player: int) -> bytearray:
        board = bytearray(self._board)
        for worker, cell in enumerate(self._cells):
            board[cell] += _PLAYER if worker == player else _OTHER
        return board

    def _picture(self) -> tuple[bytearray, list[int | None]]:
        board = bytearray(self._board)
        for cell in self._cells:
            board[cell] += _PLAYER
        return board, [*self._cells]

    def _mask(self, player: int) -> npt.NDArray[np.int8]:
        with self._acting(player) as state:
            return self.game.action_mask(self._board, state)


def place(game: Sokoban, board: Board, state: Sequence[int], others: int, level_key: int) -> list[int] | None:
    """Cells for ``others`` further workers, drawn uniformly by the level's key; None where the level has no room.

    They are floor that the player can walk to and that a move-optimal plan of the player alone never touches.
    """
    if not others:
        return []
    try:
        free = sorted(walkable_cells(game, board, state[0]) - touched_cells(game, board, state))
    except NotSolvedError:
        return None
    if len(free) < others:
        return None
    # A key of its own, so that the draws of the generator are not used twice.
    key = np.array([stream_key(level_key, Stream.LEVEL)], np.uint64)
    return [free.pop(int(u * len(free))) for u in uniforms(key, 0, others)[0].tolist()]


def touched_cells(game: Sokoban, board: Board, state: Sequence[int]) -> set[int]:
    """The cells that change at any time while the player carries out a move-optimal plan; none without a plan.

    Raises:
        NotSolvedError: the search for the plan was left undecided.
    """
    plan = find_plan(board, game.width, max_nodes=MAX_NODES)
    now, rest = bytearray(board), list(state)
    touched = {state[0]}
    for action in plan.actions if plan else ():
        before = bytes(now)
        game.rule(now, rest, action, 0.0, game.params)
        touched |= {cell for cell, tile in enumerate(now) if tile != before[cell]}
    return touched


def walkable_cells(game: Sokoban, board: Board, start: int) -> set[int]:
    """The cells of bare floor that the player can reach without pushing."""
    reached, edge = {start}, [start]
    while edge:
        cell = edge.pop()
        new = {cell + offset for offset in game.params if board[cell + offset] in (Tile.FLOOR, Tile.TARGET)} - reached
        reached |= new
        edge += new
    return {cell for cell in reached if board[cell] == Tile.FLOOR}
