"""What a demonstrator writes as its thought, by name.

A thought is written from what the demonstrator is about to answer, and every word of it is true of the board: ``plan``
plays the moves on a copy of the state by the game's own rule and says what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragen_gym.envs.policies import reply_for
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import OVER, PLAYING, SUCCESS

__all__ = ["THOUGHTS", "WORDS", "thinking"]

Thought = Callable[[TurnEnv, Sequence[int]], str]
"""(environment, the actions that the reply will name) -> the thought."""


def direction(env: TurnEnv, actions: Sequence[int]) -> str:
    """Where the goal lies as seen from the player, such as ``down right``, whatever the text format.

    Raises:
        ValueError: the game has no player or no goal.
    """
    game = env.game
    if not (game.player_tiles and game.goal_tiles):
        raise ValueError(
            f"demonstrations.thought is 'direction', but {game.name} has no player and goal; "
            "give --set demonstrations.thought=none."
        )
    board = env.env.state[0]
    player, goal = (_cells(board, tiles)[0] for tiles in (game.player_tiles, game.goal_tiles))
    (row, column), (goal_row, goal_column) = divmod(player, game.width + 1), divmod(goal, game.width + 1)
    down, right = goal_row - row, goal_column - column
    words = ((down, "down" if down > 0 else "up"), (right, "right" if right > 0 else "left"))
    return " ".join(word for distance, word in words if distance)


def plan(env: TurnEnv, actions: Sequence[int]) -> str:
    """What each of the actions does, as if every move went where it is meant to; rows and columns count from 0.

    Such as ``I am at row 0, column 0. Right: to row 0, column 1. Down: to the goal.``, in a game without a player
    ``Phoenix: more on average.``
    """
    game = env.game
    board, state = env.env.state
    cells, integers = bytearray(board), list(state)
    here = _player(env, cells)
    sentences = [] if here is None else [f"I am at {_place(env, here)}."]
    for action in actions:
        before = bytes(cells)
        outcome = game.rule(cells, integers, action, 0.0, game.params)[1]
        sentences.append(f"{env.action_names[action]}: {_deed(env, before, bytes(cells), outcome)}.")
    return " ".join(sentences)


#: What a demonstrator writes as its thought, by name.
THOUGHTS: dict[str, Thought] = {
    "none": lambda env, actions: "",
    "direction": direction,
    "choose": lambda env, actions: f"{env.action_names[0]} or {env.action_names[1]}?",
    "plan": plan,
}

#: Every word of a thought that may not come up on the few levels from which the small tokenizer is made.
WORDS = {
    "plan": "I am at row 0, column 0. Up: nowhere. Down: to row 0, column 0. Left: to a hole. Right: to the goal. "
    "Up: push a box. Up: push a box onto a target. Up: push a box off a target. Up: push the last box onto a target. "
    "Up: more on average. Up: less on average."
}


def thinking(env: TurnEnv, thought: str, actions: Sequence[int] = ()) -> str:
    """The thought in its tags, or nothing in an environment without thinking.

    Where the environment asks for the board, the true one stands before the thought, and after it the one that the
    actions lead to if every move goes where it is meant to.

    Raises:
        ValueError: there is no such thought.
    """
    if thought not in THOUGHTS:
        raise ValueError(f"demonstrations.thought is {thought!r}; choose one of {', '.join(THOUGHTS)}.")
    if not env.config.think:
        return ""
    return reply_for(env, list(actions), THOUGHTS[thought](env, actions)).partition("<answer>")[0]


def _deed(env: TurnEnv, before: bytes, after: bytes, outcome: int) -> str:
    """What one move did to the board."""
    here = _player(env, after)
    if here is None:
        return "more on average" if outcome == SUCCESS else "less on average"
    if before == after and outcome == PLAYING:
        return "nowhere"
    boxes = env.game.box_tiles
    if _cells(before, boxes) != _cells(after, boxes):
        loose = [len(_cells(board, boxes - env.game.target_tiles)) for board in (before, after)]
        if loose[1] < loose[0]:
            return f"push {'the last' if outcome == SUCCESS else 'a'} box onto a target"
        return "push a box off a target" if loose[1] > loose[0] else "push a box"
    if outcome != PLAYING:
        return "to a hole" if outcome == OVER else "to the goal"
    return f"to {_place(env, here)}"


def _cells(board: bytes | bytearray, tiles: frozenset[int]) -> list[int]:
    """The cells that hold one of these tiles."""
    return [cell for cell, code in enumerate(board) if code in tiles]


def _player(env: TurnEnv, board: bytes | bytearray) -> int | None:
    """The player's cell; None in a game without one."""
    cells = _cells(board, env.game.player_tiles)
    return cells[0] if cells else None


def _place(env: TurnEnv, cell: int) -> str:
    row, column = divmod(cell, env.game.width + 1)
    return f"row {row}, column {column}"
