"""Checks and Hypothesis strategies for the games of this suite and for anyone's own.

In a test of a new game::

    from ragen_gym.testing import check_env, check_game

    def test_game():
        check_game(MyGame(size=3))

    def test_env():
        check_env("ragen/MyGame-v0", size=3)

Both raise an AssertionError that says what is wrong, with the smallest episode that shows it; ``check_task`` does the
same for a text task. ``options``, ``games``,
``boards``, ``levels``, ``plays``, ``states``, ``action_sequences`` and ``replies`` are Hypothesis strategies for tests
of one's own; ``replay`` repeats an episode from its id, options, seed and actions.

What the checks ask of a rule beyond ``ragen_gym.games.game.Rule``: it may compare its random number only with numbers
that stand in ``Game.params``. That makes its outcomes countable, so chances are added up and not estimated.

This package needs Hypothesis (``pip install hypothesis``).
"""

from __future__ import annotations

try:
    import hypothesis as _hypothesis  # noqa: F401  # only to say what to install
except ImportError as error:
    raise ImportError(
        "ragen_gym.testing needs Hypothesis: pip install hypothesis, or pip install 'ragen-gym[test]' for all tests."
    ) from error

from ragen_gym.testing.envs import check_env, replay
from ragen_gym.testing.games import check_game
from ragen_gym.testing.strategies import (
    Play,
    action_sequences,
    boards,
    games,
    levels,
    options,
    plays,
    replies,
    states,
)
from ragen_gym.testing.tasks import check_task

__all__ = [
    "Play",
    "action_sequences",
    "boards",
    "check_env",
    "check_game",
    "check_task",
    "games",
    "levels",
    "options",
    "plays",
    "replay",
    "replies",
    "states",
]
