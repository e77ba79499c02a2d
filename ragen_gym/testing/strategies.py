"""Hypothesis strategies: options, games, levels, episodes, states, replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from math import nextafter
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ragen_gym.core.levels import Level
from ragen_gym.games.game import PLAYING, Game

#: Tags right and wrong, and what else a model may write around its moves.
_DEBRIS = ("<think>", "</think>", "<answer>", "</answer>", "<Answer>", "||", "|", " ", "\n", "", "no", "<", ">", "é")


@dataclass(frozen=True)
class Play:
    """An episode from its first board on: actions with their random numbers, up to the end of the game."""

    board: bytes  # the first
    moves: tuple[tuple[int, float], ...]  # (action, draw in [0, 1)) of each step


def options(game_class: type[Game], **overrides: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    """Options around their defaults that the class accepts.

    A whole number varies by two either way, one from 0 on no further than to 0, a number in [0, 1] over that interval,
    another number up to twice its size, a truth value both ways; any other option keeps its default. ``overrides`` are
    strategies for single options, and for those that have no default.
    """
    ranges = {
        name: _around(default) for name, default in game_class.options().items() if default is not Parameter.empty
    }
    return st.fixed_dictionaries({**ranges, **overrides}).filter(lambda drawn: _makes(lambda: game_class(**drawn)))


def games(game_class: type[Game], **overrides: SearchStrategy[Any]) -> SearchStrategy[Game]:
    """Games with drawn options that some level meets."""
    first = np.zeros(1, np.uint64)
    made = options(game_class, **overrides).map(lambda drawn: game_class(**drawn))
    return made.filter(lambda game: _makes(lambda: game.generate(first, None)))


def boards(game: Game, split: str | None = None) -> SearchStrategy[bytes]:
    """First boards from the game's generator."""

    def board(key: int) -> bytes:
        try:
            return bytes(game.generate(np.array([key], np.uint64), split)[0])
        except ValueError:  # options that few boards meet
            reject()

    return st.integers(0, 2**64 - 1).map(board)


def levels(game: Game, split: str | None = None) -> SearchStrategy[Level]:
    """Levels from the game's generator."""
    return boards(game, split).map(game.level)


def action_sequences(game: Game, max_size: int = 20) -> SearchStrategy[list[int]]:
    """Lists of actions."""
    return st.lists(st.sampled_from([int(action) for action in game.Action]), max_size=max_size)


def draws(game: Game) -> SearchStrategy[float]:
    """Random numbers of a step in [0, 1), often the very ones where the rule changes its mind."""
    anywhere = st.floats(0, 1, exclude_max=True)
    edges = [edge for number in game.noise_thresholds for edge in (number, nextafter(number, 0))]
    return st.sampled_from([0.0, *edges, nextafter(1, 0)]) | anywhere if game.stochastic else anywhere


@st.composite
def plays(draw: st.DrawFn, game: Game, max_steps: int = 20, split: str | None = None) -> Play:
    """Episodes of at most ``max_steps`` moves, cut where the game ends."""
    board = draw(boards(game, split))
    drawn = draw(st.lists(st.tuples(st.sampled_from([int(a) for a in game.Action]), draws(game)), max_size=max_steps))
    now, state = bytearray(board), first_state(game, board)
    for count, (action, u) in enumerate(drawn, 1):
        if game.rule(now, state, action, u, game.params)[1] != PLAYING or game.over(now):
            return Play(board, tuple(drawn[:count]))
    return Play(board, tuple(drawn))


def states(game: Game, max_steps: int = 12) -> SearchStrategy[tuple[bytes, tuple[int, ...]]]:
    """(board, state) of moments in an episode at which the game goes on."""

    def last(play: Play) -> tuple[bytes, tuple[int, ...]]:
        board, state = bytearray(play.board), first_state(game, play.board)
        before = play.board, tuple(state)
        for action, u in play.moves:
            before = bytes(board), tuple(state)
            if game.rule(board, state, action, u, game.params)[1] != PLAYING:
                return before
        return bytes(board), tuple(state)

    return plays(game, max_steps).map(last)


def replies(action_names: Sequence[str], *, think: bool = True) -> SearchStrategy[str]:
    """Replies of a model: well formed (with thoughts first if ``think``), nearly so, and not at all."""
    names = st.sampled_from([form for name in action_names for form in (name, name.upper(), f" {name.lower()} ")])
    answer = st.lists(names, min_size=1, max_size=4).map("||".join)
    good = st.builds("<think>{}</think><answer>{}</answer>".format, st.sampled_from(["", "It is near.", "\n"]), answer)
    if not think:
        good = answer.map("<answer>{}</answer>".format)
    debris = st.lists(st.sampled_from(_DEBRIS) | names, max_size=12).map("".join)
    return good | debris | st.builds("{}{}{}".format, debris, good, debris) | st.text(max_size=30)


def _around(default: Any) -> SearchStrategy[Any]:
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        return st.integers(max(0, default - 2) if default >= 0 else default - 2, default + 2)
    if isinstance(default, float):
        return st.floats(0, 1) if 0 <= default <= 1 else st.floats(*sorted((0.0, 2 * default)))
    return st.just(default)


def _makes(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except ValueError:
        return False
    return True


def first_state(game: Game, board: bytes) -> list[int]:
    """The integers of the state with which a board begins."""
    start: list[int] = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    return start
