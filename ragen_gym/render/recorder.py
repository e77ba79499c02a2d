"""Events of an episode, recorded for its pictures, and as words for captions. Imports no pygame."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen_gym.games.game import PLAYING, Board, Game


@dataclass
class Recording:
    """An episode so far.

    Attributes:
        board: the board as it stands; the environment's own.
        before: the board before the last move.
        moves: (action, reward) of every move.
        outcome: what the rule said last: PLAYING, OVER or SUCCESS.
    """

    board: bytes | bytearray
    before: bytes = b""
    moves: list[tuple[int, float]] = field(default_factory=list)
    outcome: int = PLAYING

    def last_move(self, game: Game) -> str:
        """The last move in words."""
        if not self.moves:
            return "Start"
        action, reward = self.moves[-1]
        return what_happened(game, self.before, action, self.board, reward)

    @property
    def total(self) -> float:
        """The sum of the rewards."""
        return sum(reward for _, reward in self.moves)


#: (rows, columns) that an action of this name moves.
DIRECTIONS: dict[str, tuple[int, int]] = {"LEFT": (0, -1), "DOWN": (1, 0), "RIGHT": (0, 1), "UP": (-1, 0)}

#: Keys of an action of this name; every other action has the key of its place: a digit, 0 last, or a letter.
_KEYS: dict[str, str] = {"LEFT": "a", "DOWN": "s", "RIGHT": "d", "UP": "w"}
_PLACES = "1234567890bcefghijklmoprtuvxyz"  # without the keys above, and without n and q, which `ragen-gym play` takes


def key_names(game: Game) -> tuple[str, ...]:
    """The key of each action, in the order of their ids; its number, such as ``31``, where all keys are taken."""
    places = [*_PLACES, *map(str, range(len(_PLACES) + 1, len(game.Action) + 1))]
    return tuple(_KEYS.get(action.name, place) for action, place in zip(game.Action, places, strict=False))


def player_cell(game: Game, board: Board) -> tuple[int, int] | None:
    """(row, column) of the player, or None where the game has none."""
    for cell, tile in enumerate(board):
        if tile in game.player_tiles:
            return divmod(cell, game.width + 1)
    return None


def what_happened(game: Game, before: Board, action: int, board: Board, reward: float) -> str:
    """One line on a move: which it was, where it led, what it pushed or paid.

    Args:
        game: the game.
        before: the board on which the action was chosen.
        action: its id.
        board: the board that it left.
        reward: what it earned.
    """
    name = game.action_names(before)[action]
    start, end = player_cell(game, before), player_cell(game, board)
    intended = DIRECTIONS.get(game.Action(action).name)
    if start is None or end is None or intended is None:
        return f"{name} paid {reward:g}"
    moved = end[0] - start[0], end[1] - start[1]
    if moved == intended:
        return f"{name}, pushing a box" if _boxes(game, before) != _boxes(game, board) else name
    if moved == (0, 0):
        ahead = start[0] + intended[0], start[1] + intended[1]
        inside = 0 <= ahead[0] < game.height and 0 <= ahead[1] < game.width
        return f"{name}, slipped against the edge" if game.stochastic and inside else f"{name}, blocked"
    slipped = [f", slipped {direction.capitalize()}" for direction, step in DIRECTIONS.items() if step == moved]
    return name + "".join(slipped)  # nothing where a game of one's own moves its player further than to the next cell


def _boxes(game: Game, board: Board) -> list[int]:
    return [cell for cell, tile in enumerate(board) if tile in game.box_tiles]
