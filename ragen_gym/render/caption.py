"""What an action did, in words: for captions under pictures and for the terminal. Imports no pygame."""

from __future__ import annotations

from ragen_gym.games.game import Board, Game

__all__ = ["DIRECTIONS", "KEYS", "key_names", "player_cell", "what_happened"]

#: (rows, columns) that an action of this name moves.
DIRECTIONS: dict[str, tuple[int, int]] = {"LEFT": (0, -1), "DOWN": (1, 0), "RIGHT": (0, 1), "UP": (-1, 0)}

#: Keys of an action of this name; every other action has the digit of its place, from 1 on.
KEYS: dict[str, str] = {"LEFT": "a", "DOWN": "s", "RIGHT": "d", "UP": "w"}


def key_names(game: Game) -> tuple[str, ...]:
    """The key of each action, in the order of their ids."""
    return tuple(KEYS.get(action.name, str(place)) for place, action in enumerate(game.Action, 1))


def player_cell(game: Game, board: Board) -> tuple[int, int] | None:
    """(row, column) of the player, or None where the game has none."""
    tiles = [tile.value for tile in game.Tile if tile.name.startswith("PLAYER")]
    for cell, tile in enumerate(board):
        if tile in tiles:
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
    actual = next(direction for direction, step in DIRECTIONS.items() if step == moved)
    return f"{name}, slipped {actual.capitalize()}"


def _boxes(game: Game, board: Board) -> list[int]:
    tiles = [tile.value for tile in game.Tile if tile.name.startswith("BOX")]
    return [cell for cell, tile in enumerate(board) if tile in tiles]
