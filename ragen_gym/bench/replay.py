"""Recorded episodes played again: the same level, the same noise, and the replies or moves that were recorded.

``verify`` compares records with their replays, ``report`` draws the boards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.suites import Split
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.values import TurnValue
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.recorder import what_happened


@dataclass(frozen=True)
class Move:
    """One action."""

    action: int  # its id
    reward: float  # what it earned
    board: str  # the board after it, as text in the split's vocabulary, always as a grid
    note: str  # what happened, in words
    over: bool  # whether it ended the game


@dataclass(frozen=True)
class ReplayedTurn:
    """One turn."""

    message: str  # the user message, or the text of the board, that was to be answered
    problem: str | None  # what is wrong with the reply
    moves: tuple[Move, ...]  # what was played
    reward: float  # of the turn
    left: int  # moves left before it
    value: TurnValue | None = None  # what it gave away, where the replay was asked for it
    image: Pixels | None = None  # the picture in the message, uint8 (height, width, 3); None where there is none

    @property
    def actions(self) -> tuple[int, ...]:
        """Ids of the actions that were played."""
        return tuple(move.action for move in self.moves)


@dataclass(frozen=True)
class ReplayedEpisode:
    """An episode played again."""

    system: str  # the system message
    board: str  # the first board, as in ``Move``
    #: as many as were recorded, fewer if the episode ended before that or diverged from the record
    turns: tuple[ReplayedTurn, ...]
    success: bool  # whether the goal was reached
    terminated: bool  # the game was over
    truncated: bool  # a budget was spent
    last_board: str  # the board at the end, as the model saw it
    #: the turn, from 0, whose reply says other actions than were recorded; None if there is none. The turn is played as
    #: it is parsed, and is the last.
    diverged_at: int | None
    surplus: int  # turns that were recorded after the episode was over

    @property
    def total_reward(self) -> float:
        """The sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def over(self) -> bool:
        """True if the episode came to its end."""
        return self.terminated or self.truncated


class Replayer:
    """Replays the episodes of a split.

    Args:
        split: what was played.
        parses: whether to play what the replies say; if not, the recorded actions. A text task is always given the
            replies.
        valued: whether to value what each turn gave away, in games that have exact values.
    """

    def __init__(self, split: Split, *, parses: bool = False, valued: bool = False) -> None:
        self.split, self.parses, self.valued = split, parses, valued
        self._envs: dict[bool, _GameReplay | TaskEnv] = {}

    def parse(self, text: str) -> Reply:
        """Parsed form of a reply; of a text task just its text."""
        env = self._env(by_moves=False)
        return Reply(text) if isinstance(env, TaskEnv) else TurnEnv.parse(env, text)

    @property
    def env(self) -> StepEnv:
        """An environment of the split, for its game and its vocabulary."""
        env = self._env(by_moves=False)
        assert isinstance(env, _GameReplay)
        return env.recorder

    def replay(self, record: EpisodeRecord) -> ReplayedEpisode:
        """The recorded episode, played again.

        Raises:
            ValueError: the record names an action that the game does not have, or the text task raises an error.
        """
        by_moves = bool(record.turns) and all(turn.reply is None for turn in record.turns)
        env = self._env(by_moves)
        try:
            first, info = self.split.begin(env, record.index, record.noise_seed)
            if isinstance(env, _GameReplay):
                first = env.recorder.grid_text()
            system, turns = "" if by_moves else env.instructions, list[ReplayedTurn]()
            terminated, truncated, diverged_at = False, False, None
            for number, turn in enumerate(record.turns):
                if env.over or diverged_at is not None:
                    break
                played, terminated, truncated, info = self._play(env, turn, by_moves)
                turns.append(played)
                if played.actions != turn.actions:
                    diverged_at = number
        except Exception as error:
            if isinstance(env, _GameReplay):
                raise
            raise ValueError(f"{self.split.env}: {type(error).__name__}: {error}") from error
        return ReplayedEpisode(
            system=system,
            board=first,
            turns=tuple(turns),
            success=bool(info["success"]),
            terminated=terminated,
            truncated=truncated,
            last_board=env.board if isinstance(env, TurnEnv) else env.message_text,
            diverged_at=diverged_at,
            surplus=0 if diverged_at is not None else len(record.turns) - len(turns),
        )

    def _play(
        self, env: _GameReplay | TaskEnv, turn: TurnRecord, by_moves: bool
    ) -> tuple[ReplayedTurn, bool, bool, dict[str, Any]]:
        """A turn, and the end of the episode as ``step`` gives it."""
        message, text = env.message_text, turn.reply or ""
        if isinstance(env, TaskEnv):
            left = env.max_turns - env.turn
            _, reward, terminated, truncated, info = env.step(text)
            return ReplayedTurn(message, None, (), reward, left), terminated, truncated, info
        left, image = env.actions_left, env.images[-1] if env.images else None
        if by_moves:
            message = env.recorder.text
        says = self.parses and turn.reply is not None
        env.reply = reply = self.parse(text) if says else _recorded_reply(turn, len(env.action_names))
        _, reward, terminated, truncated, info = env.step(text)
        moves, value = env.recorder.take(), info.get("turn_value")
        return ReplayedTurn(message, reply.problem, moves, reward, left, value, image), terminated, truncated, info

    def _env(self, by_moves: bool) -> _GameReplay | TaskEnv:
        """The environment of replies, or of an agent that moves: as many moves, each a turn of its own."""
        by_moves = by_moves and not self.split.is_task
        if by_moves not in self._envs:
            self._envs[by_moves] = env = self._task() if self.split.is_task else self._game(by_moves)
            env.reset(seed=0)
        return self._envs[by_moves]

    def _task(self) -> TaskEnv:
        env = self.split.make_env()
        assert isinstance(env, TaskEnv)
        return env

    def _game(self, by_moves: bool) -> _GameReplay:
        config = self.split.turn_config
        if by_moves:
            most = config.action_budget
            config = TurnConfig(max_turns=most, max_actions_per_turn=1, max_actions=most)
        # The levels are given so that a reset generates none.
        options = {**self.split.env_options, "levels": list(self.split.boards)}
        moves = _MoveRecorder(self.split.env, **options)
        if self.valued and moves.game.has_values:
            moves = _MoveRecorder(self.split.env, **options | {"regret": config.action_budget})
        return _GameReplay(moves, config)


class _MoveRecorder(StepEnv):
    """A ``StepEnv`` that keeps what each move did."""

    def __init__(self, name: str, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._moves: list[Move] = []

    def grid_text(self) -> str:
        """The board as it stands, as a grid in the vocabulary of the environment."""
        return self.game.formatter(self.vocabulary, "grid")(self.state[0])

    def take(self) -> tuple[Move, ...]:
        """The moves since the last call."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See ``StepEnv.step``."""
        before = self.state[0]
        result = super().step(action)
        after, reward = self.state[0], float(result[1])
        note = what_happened(self.game, before, action, after, reward)
        self._moves.append(Move(action, reward, self.grid_text(), note, result[2]))
        return result


class _GameReplay(TurnEnv):
    """A ``TurnEnv`` that plays the parsed ``reply`` it was given, whatever the text says."""

    def __init__(self, recorder: _MoveRecorder, config: TurnConfig) -> None:
        super().__init__(recorder, config)
        self.recorder, self.reply = recorder, Reply("")

    def parse(self, text: str) -> Reply:
        """The reply that was given."""
        return self.reply


def _recorded_reply(turn: TurnRecord, n_actions: int) -> Reply:
    """A reply that plays the recorded actions and has the recorded problem."""
    for action in turn.actions:
        if not 0 <= action < n_actions:
            raise ValueError(f"a record plays action {action!r}; the game has 0 to {n_actions - 1}.")
    problem = next((problem for problem in Problem if turn.reply is not None and problem == turn.problem), None)
    return Reply(turn.reply or "", actions=turn.actions, problem=problem)
