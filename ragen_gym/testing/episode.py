"""What must hold at every step of an episode."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, pairwise
from math import isclose
from typing import Any, get_args

import numpy as np

from ragen_gym.core.levels import Level
from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.games.game import OVER, PLAYING, SUCCESS, Game, Solution
from ragen_gym.testing.brute_force import Search, intervals, thresholds
from ragen_gym.testing.strategies import Play

__all__ = ["CLOSE", "check_episode", "require"]

CLOSE = 1e-9


def require(condition: Any, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def _check_level(game: Game, board: bytes) -> None:
    level = game.level(board)
    again = game.board(Level(level.game, level.text))
    require(
        again == board, f"{game.name}: a level's text reads back as another board:\n{level}\n{game.own_text(again)}"
    )


def _check_text(game: Game, board: bytes) -> None:
    for vocabulary, text_format in _writings(game):
        text = game.formatter(vocabulary, text_format)(board)
        label = f"{game.name}, vocabulary {vocabulary.name!r}, text_format {text_format!r}"
        read = game.parse(text, vocabulary, text_format)
        require(read == board, f"{label}: the text does not read back as its board, but as {read!r}:\n{text}")
        characters, shortest, longest = game.charset(vocabulary, text_format)
        strange = set(text) - characters
        require(not strange, f"{label}: charset lacks {sorted(strange)}:\n{text}")
        require(
            shortest <= len(text) <= longest,
            f"{label}: charset says {shortest} to {longest} characters, this text has {len(text)}:\n{text}",
        )


def _writings(game: Game) -> list[tuple[Vocabulary, TextFormat]]:
    """The vocabularies and formats that the game can write."""
    found: list[tuple[Vocabulary, TextFormat]] = []
    for vocabulary in game.vocabularies.values():
        for text_format in get_args(TextFormat):
            try:
                game.formatter(vocabulary, text_format)
            except ValueError:
                continue
            found.append((vocabulary, text_format))
    return found


def check_episode(game: Game, play: Play, actions_left: int) -> None:
    """Play an episode and hold every step of it to the interface; the oracle is asked with ``actions_left``."""
    _check_level(game, play.board)
    fast, solution = _compiled(game.rule), game.solve(play.board)
    board = bytearray(play.board)
    state = game.starts(np.frombuffer(play.board, np.uint8)[None])[0].tolist()
    conserved, outcome = game.conserved(play.board), PLAYING
    for count, (action, u) in enumerate(play.moves, 1):
        _check_text(game, bytes(board))
        _check_mask(game, bytes(board), tuple(state))
        _check_values(game, solution, bytes(board), tuple(state), actions_left)
        before, cells, integers = bytes(board), np.frombuffer(bytes(board), np.uint8).copy(), np.array(state, np.int32)
        middle, middle_state = bytearray(board), list(state)
        reward, outcome = game.rule(board, state, action, u, game.params)
        label = f"{game.name}: action {action} with u={u!r} on\n{game.own_text(before)}\n"
        require(
            (type(reward), type(outcome)) == (float, int) and outcome in (PLAYING, OVER, SUCCESS),
            f"{label}returns {reward!r}, {outcome!r}; it must return a float and {PLAYING}, {OVER} or {SUCCESS}.",
        )
        result = reward, outcome, bytes(board), state
        part = intervals(game)[bisect_right(thresholds(game), u) if game.stochastic else 0]
        same = *game.rule(middle, middle_state, action, part[1], game.params), bytes(middle), middle_state
        require(
            same == result,
            f"{label}does something else than with u={part[1]!r}: a rule may compare u only with numbers in params.",
        )
        try:
            batch = *fast(cells, integers, action, u, game.params), cells.tobytes(), integers.tolist()
        except Exception as error:
            raise AssertionError(f"{game.name}: numba cannot compile the rule, or run it compiled: {error}") from error
        require(batch == result, f"{label}gives {result} as Python and {batch} compiled.")
        require(
            _is_sum(reward, game), f"{label}pays {reward!r}, which no rewards of the table add up to: {game.rewards()}."
        )
        now = game.conserved(bytes(board))
        require(now == conserved, f"{label}changes what the game conserves from {conserved} to {now}.")
        require(
            outcome != PLAYING or not game.over(board),
            f"{label}goes on, though `over` says of the new board that the game is over:\n{game.own_text(board)}",
        )
        if outcome:
            break
        require(
            game.longest is None or count < game.longest, f"{label}is move {count} and goes on; longest={game.longest}."
        )
    _check_text(game, bytes(board))


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from ragen_gym.games._jit import compiled

    return compiled(function)


def _check_mask(game: Game, board: bytes, state: Sequence[int]) -> None:
    mask = game.action_mask(board, state)
    require(
        isinstance(mask, np.ndarray),
        f"{game.name}.action_mask gives a {type(mask).__name__}; it must be an array, int8 ({len(game.Action)},).",
    )
    require(
        mask.dtype == np.int8 and mask.shape == (len(game.Action),),
        f"{game.name}.action_mask gives {mask.dtype} {mask.shape}; it must be int8 ({len(game.Action)},).",
    )
    search = Search(game)
    truth = [
        any((after[0], after[1]) != (board, tuple(state)) for _, after in search.outcomes(board, state, action))
        for action in game.Action
    ]
    require(
        mask.tolist() == [int(able) for able in truth],
        f"{game.name}.action_mask is {mask.tolist()}; the actions that can change the state are "
        f"{[int(able) for able in truth]}:\n{game.own_text(board)}",
    )
    bits = sum(int(able) << action for action, able in enumerate(truth))
    for form in (game.legal, game.legal and _compiled(game.legal)):
        said = bits if form is None else form(np.frombuffer(board, np.uint8), np.array(state, np.int32), game.params)
        require(said == bits, f"{game.name}.legal says {said:#b}, action_mask {bits:#b}:\n{game.own_text(board)}")
    mask[:] = 7
    again = 7 in game.action_mask(board, state)
    mask[:] = truth
    require(not again, f"{game.name}.action_mask gives one array twice: give a fresh one.")


def _check_values(game: Game, solution: Solution, board: bytes, state: Sequence[int], actions_left: int) -> None:
    """What holds of an oracle anywhere: its chance is one, it grows with the actions left, its action exists."""
    chances = [solution.success(board, state, left) for left in range(actions_left + 1)]
    action = solution.action(board, state, actions_left)
    require(
        all(0 <= low <= high + CLOSE and high <= 1 + CLOSE for low, high in pairwise(chances)),
        f"{game.name}: the oracle's chance of success must grow with the actions left, within 0 and 1; "
        f"it says {chances} of\n{game.own_text(board)}",
    )
    require(action in set(game.Action), f"{game.name}: the oracle's action {action!r} is not one of the game's.")


def _is_sum(reward: float, game: Game) -> bool:
    """Whether some of the documented rewards, each at most once, add up to this one."""
    values = [value for _, value in game.rewards()]
    sums = (sum(chosen) for size in range(len(values) + 1) for chosen in combinations(values, size))
    return any(isclose(reward, total, abs_tol=CLOSE) for total in sums)
