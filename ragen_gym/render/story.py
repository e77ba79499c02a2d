"""What happened in an episode, noted for its pictures. Imports no pygame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen_gym.games.game import PLAYING, Game, Rule
from ragen_gym.render.caption import what_happened

__all__ = ["Recorder", "Story"]


@dataclass
class Story:
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


class Recorder:
    """Stands before a rule and notes what goes through it.

    An environment that draws calls `rule` in place of its game's own, so one that does not draw loses no time.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._story: Story | None = None

    def story(self, board: bytes | bytearray) -> Story:
        """The story of the episode that is played on this very board; a new one where it is new."""
        if self._story is None or self._story.board is not board:
            self._story = Story(board)
        return self._story

    def rule(self, board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
        """The game's rule, noted."""
        story = self.story(board)
        story.before = bytes(board)
        reward, story.outcome = self._rule(board, state, action, u, params)
        story.moves.append((action, reward))
        return reward, story.outcome
