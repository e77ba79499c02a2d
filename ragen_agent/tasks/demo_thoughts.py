"""Thoughts of the demonstrator, by name.

A thought is derived from the demonstrator's next answer and is true of the board: ``plan`` plays the moves on a copy of
the state by the game's own rule and describes the effect of each, ``relative`` gives positions as seen from the player,
which decide a good move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragen_gym.envs.policies import expected_rewards, reply_for
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import OVER, PLAYING, SUCCESS

_ENOUGH = 10_000  # moves: more than any playable level takes

Thought = Callable[[TurnEnv, Sequence[int]], str]
"""(environment, the actions that the reply will name) -> the thought."""


def direction(env: TurnEnv, actions: Sequence[int]) -> str:
    """Direction from the player to the goal, such as ``down right``, in any text format.

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
    return " ".join(word for _, word in _steps(env, player, goal))


def plan(env: TurnEnv, actions: Sequence[int]) -> str:
    """Effect of each action if no move slips; rows and columns count from 0.

    For example ``I am at row 0, column 0. Right: to row 0, column 1. Down: to the goal.``, or in a game without a
    player ``Phoenix: more on average.``
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


def relative(env: TurnEnv, actions: Sequence[int]) -> str:
    """Positions as seen from the player at the start of the turn; places are (row,column), as in the text "coord".

    With a goal: ``I am at (3,1). The goal is at (1,2): 2 up and 1 right. A hole is left.``, with the holes next to the
    player. With boxes: ``I am at (3,1). The box is at (2,2): 1 up and 1 right. The target is at (2,4): 2 right of it.
    Push it right from (2,1): 1 up.``, for the box that the oracle pushes next and its target. Without a solution: the
    nearest box and its nearest target, without a push. In a bandit: ``Trader pays more on average than Teacher.``

    Raises:
        ValueError: the game has neither a player with a goal or boxes, nor arms.
    """
    game, board = env.game, env.env.state[0]
    if game.layout == "arms":
        return _compared(env)
    here = _player(env, board)
    if here is None or not (game.goal_tiles or game.box_tiles):
        raise ValueError(
            f"demonstrations.thought is 'relative', but {game.name} has no player with a goal or boxes, and no arms; "
            "give --set demonstrations.thought=none."
        )
    sentences = [f"I am at {_point(env, here)}."]
    if game.goal_tiles:
        goal = _cells(board, game.goal_tiles)[0]
        sentences.append(f"The goal is at {_point(env, goal)}: {_offset(env, here, goal)}.")
    if game.box_tiles:
        sentences += _box_and_target(env, here)
    holes = _fatal_moves(env)
    if holes:
        sentences.append(f"{'A hole is' if len(holes) == 1 else 'Holes are'} {' and '.join(holes)}.")
    return " ".join(sentences)


#: Thoughts of the demonstrator, by name.
THOUGHTS: dict[str, Thought] = {
    "none": lambda env, actions: "",
    "direction": direction,
    "choose": lambda env, actions: f"{env.action_names[0]} or {env.action_names[1]}?",
    "plan": plan,
    "relative": relative,
}

#: Every word of a thought but the names of arms, for the small tokenizer.
WORDS = {
    "direction": "up left,down right,left up,right down",
    "choose": "Up or Down?",
    "plan": "I am at row 0, column 0. Up: nowhere. Down: to row 0, column 0. Left: to a hole. Right: to the goal. "
    "Up: push a box. Up: push a box onto a target. Up: push a box off a target. Up: push the last box onto a target. "
    "Up: more on average. Up: less on average.",
    "relative": "I am at (0,0). The goal is at (0,0): 1 up and 1 right. The goal is at (0,0): 1 down and 1 left. "
    "A hole is up. Holes are down and left and right. The box is at (0,0): 1 up. The target is at (0,0): 1 up of it. "
    "The next box is at (0,0): 1 up. Its target is at (0,0): 1 up of it. Push it up from (0,0): 1 up. "
    "Push it right from here. It is on a target. "
    "Up pays more on average than Down. Up and Down pay the same on average.",
}


def thinking(env: TurnEnv, thought: str, actions: Sequence[int] = ()) -> str:
    """The part of a reply before its answer: the thought in its tags, and the budget of optimal play in its own.

    Either is left out where the environment does not ask for it. If it requires the board, the true board precedes the
    thought, and the board after the actions (if no move slips) follows it.

    Raises:
        ValueError: an unknown thought.
    """
    if thought not in THOUGHTS:
        raise ValueError(f"demonstrations.thought is {thought!r}; choose one of {', '.join(THOUGHTS)}.")
    said = THOUGHTS[thought](env, actions) if env.config.think else ""
    return reply_for(env, list(actions), said).partition("<answer>")[0]


def _deed(env: TurnEnv, before: bytes, after: bytes, outcome: int) -> str:
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
    return [cell for cell, code in enumerate(board) if code in tiles]


def _player(env: TurnEnv, board: bytes | bytearray) -> int | None:
    """The player's cell; None in a game without one."""
    cells = _cells(board, env.game.player_tiles)
    return cells[0] if cells else None


def _place(env: TurnEnv, cell: int) -> str:
    row, column = divmod(cell, env.game.width + 1)
    return f"row {row}, column {column}"


def _point(env: TurnEnv, cell: int) -> str:
    row, column = divmod(cell, env.game.width + 1)
    return f"({row},{column})"


def _steps(env: TurnEnv, start: int, end: int) -> list[tuple[int, str]]:
    """Rows up or down and columns left or right; zeros are left out."""
    stride = env.game.width + 1
    down, right = (b - a for a, b in zip(divmod(start, stride), divmod(end, stride), strict=True))
    both = ((abs(down), "down" if down > 0 else "up"), (abs(right), "right" if right > 0 else "left"))
    return [(distance, word) for distance, word in both if distance]


def _offset(env: TurnEnv, start: int, end: int) -> str:
    return " and ".join(f"{distance} {word}" for distance, word in _steps(env, start, end))


def _fatal_moves(env: TurnEnv) -> list[str]:
    """The directions of moves that, if they do not slip, end the game without success."""
    game, (board, state) = env.game, env.env.state
    return [
        env.action_names[action].lower()
        for action in game.Action
        if game.rule(bytearray(board), list(state), int(action), 0.0, game.params)[1] == OVER
    ]


def _box_and_target(env: TurnEnv, here: int) -> list[str]:
    """Positions of the box pushed next, of its target, and of the player for the push."""
    game, board = env.game, env.env.state[0]
    push = _next_push(env)
    if push:
        box, target = push[:2]
    else:
        free = _cells(board, game.target_tiles - game.box_tiles)
        box = min(_cells(board, game.box_tiles - game.target_tiles), key=lambda cell: _distance(env, here, cell))
        target = min(free, key=lambda cell: _distance(env, box, cell))
    several = len(_cells(board, game.box_tiles)) > 1
    names = ("The next box", "Its target") if several else ("The box", "The target")
    sentences = [f"{names[0]} is at {_point(env, box)}: {_offset(env, here, box)}."]
    if box == target:
        sentences.append("It is on a target.")
    else:
        sentences.append(f"{names[1]} is at {_point(env, target)}: {_offset(env, box, target)} of it.")
    if push:
        _, _, stand, action = push
        place = "here" if stand == here else f"{_point(env, stand)}: {_offset(env, here, stand)}"
        sentences.append(f"Push it {env.action_names[action].lower()} from {place}.")
    return sentences


def _next_push(env: TurnEnv) -> tuple[int, int, int, int] | None:
    """The oracle's next push: the box's cell, the cell where the plan leaves it, the player's cell, and the action.

    None if the board has no solution.
    """
    game, solution = env.game, env.solution()
    board, state = env.env.state
    cells, integers = bytearray(board), list(state)
    if not solution.success(cells, integers, _ENOUGH):
        return None
    push: tuple[int, int, int] | None = None
    box, outcome = -1, PLAYING
    while outcome == PLAYING:
        before, stand = bytes(cells), _player(env, cells)
        action = solution.action(cells, integers, _ENOUGH)
        outcome = game.rule(cells, integers, action, 0.0, game.params)[1]
        moved = set(_cells(before, game.box_tiles)) ^ set(_cells(cells, game.box_tiles))
        if not moved:
            continue
        (start,) = moved.intersection(_cells(before, game.box_tiles))
        if push is None:
            assert stand is not None
            push, box = (start, stand, action), start
        if start == box:
            (box,) = moved - {start}
    assert push is not None
    return push[0], box, push[1], push[2]


def _distance(env: TurnEnv, start: int, end: int) -> int:
    return sum(distance for distance, _ in _steps(env, start, end))


def _compared(env: TurnEnv) -> str:
    worth = expected_rewards(env.env)
    if max(worth) - min(worth) < 1e-9:
        return f"{' and '.join(env.action_names)} pay the same on average."
    best = env.solution().action(*env.env.state, env.actions_left)
    others = [name for action, name in enumerate(env.action_names) if action != best]
    return f"{env.action_names[best]} pays more on average than {' and '.join(others)}."
