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
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.values import TurnValue
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.recorder import what_happened

__all__ = ["Move", "ReplayedEpisode", "ReplayedTurn", "Replayer"]


@dataclass(frozen=True)
class Move:
    """One action."""

    action: int  # its id
    reward: float  # what it earned
    board: str  # the board after it, as text in the split's vocabulary, always as a grid
    note: str  # what happened, in words


@dataclass(frozen=True)
class ReplayedTurn:
    """One turn."""

    message: str  # the user message, or the text of the board, that was to be answered
    reply: Reply | None  # what the reply says, or None where the recorded moves were replayed
    moves: tuple[Move, ...]  # what was played
    reward: float  # of the turn
    names: tuple[str, ...]  # the names of the actions
    problem: str | None  # what is wrong with the reply, as recorded
    ended: bool  # whether its last move was the end of the game
    left: int  # moves left before it
    value: TurnValue | None  # what it gave away, where the replay was asked for it
    image: Pixels | None = None  # the picture in the message, uint8 (height, width, 3); None where there is none

    @property
    def actions(self) -> tuple[int, ...]:
        """Ids of the actions that were played."""
        return tuple(move.action for move in self.moves)


@dataclass(frozen=True)
class ReplayedEpisode:
    """An episode played again."""

    level_id: str  # content hash of the level
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
    """Replays the episodes of a split. The replies of a text task are always given to the task again.

    Args:
        split: what was played.
        parses: whether to play what the replies say; if not, the recorded actions.
        valued: whether to value what each turn gave away, in games that have exact values.
    """

    def __init__(self, split: Split, *, parses: bool = False, valued: bool = False) -> None:
        self.split, self.parses, self.valued = split, parses, valued
        self._envs: dict[bool, _ReplayEnv] = {}
        self._task: ReplyEnv | None = None

    def parse(self, text: str) -> Reply:
        """Parsed form of a reply; of a text task just its text."""
        return Reply(text) if self.split.is_task else TurnEnv.parse(self._env(False), text)

    @property
    def env(self) -> StepEnv:
        """An environment of the split, for its game and its vocabulary."""
        return self._env(False).moves

    @property
    def success_means(self) -> str:
        """See ``Game.success_means``; empty for a text task."""
        return "" if self.split.is_task else self._env(False).game.success_means

    def replay(self, record: EpisodeRecord, reseed: tuple[int, int] | None = None) -> ReplayedEpisode:
        """Play a record again.

        Args:
            record: of an episode.
            reseed: (turn, noise seed) of an episode whose transition noise is another seed's from a turn on.

        Raises:
            ValueError: the split has no such instance, the record names an action that the game does not have, or the
                text task raises an error.
        """
        if not 0 <= record.index < len(self.split.levels):
            raise ValueError(
                f"split {self.split.name!r} has instances 0 to {len(self.split.levels) - 1}, not {record.index}."
            )
        if self.split.is_task:
            return self._replay_task(record)
        by_moves = bool(record.turns) and all(turn.reply is None for turn in record.turns)
        env = self._env(by_moves)
        _, info = self.split.begin(env, record.index, record.noise_seed)
        first, names = env.moves.grid_text(), env.action_names
        turns: list[ReplayedTurn] = []
        terminated, truncated, diverged_at = False, False, None
        for turn in record.turns:
            if env.over or diverged_at is not None:
                break
            if reseed and reseed[0] == len(turns):
                env.reseed_noise(reseed[1])
            left = env.actions_left
            before = env.moves.text if by_moves else env.message_text
            image = env.images[-1] if env.images else None
            parsed = self.parse(turn.reply) if self.parses and turn.reply is not None else None
            env.reply = parsed or _recorded_reply(turn, len(names))
            _, reward, terminated, truncated, info = env.step(turn.reply or "")
            moves = env.moves.take()
            ended = terminated and env.moves.over
            value = info.get("turn_value")
            turns.append(ReplayedTurn(before, parsed, moves, reward, names, turn.problem, ended, left, value, image))
            if turns[-1].actions != turn.actions:
                diverged_at = len(turns) - 1
        return ReplayedEpisode(
            level_id=info["level_id"],
            system="" if by_moves else env.instructions,
            board=first,
            turns=tuple(turns),
            success=bool(info["success"]),
            terminated=terminated,
            truncated=truncated,
            last_board=env.board,
            diverged_at=diverged_at,
            surplus=0 if diverged_at is not None else len(record.turns) - len(turns),
        )

    def _replay_task(self, record: EpisodeRecord) -> ReplayedEpisode:
        try:
            env = self._task or self.split.make_env()
            self._task = env
            first, info = self.split.begin(env, record.index, record.noise_seed)
            system, turns = env.instructions, list[ReplayedTurn]()
            terminated = truncated = False
            for turn in record.turns:
                if env.over or turn.reply is None or turn.actions:  # a task has no moves
                    break
                message = env.message_text
                _, reward, terminated, truncated, info = env.step(turn.reply)
                left = env.max_turns - len(turns)
                turns.append(ReplayedTurn(message, None, (), reward, (), None, terminated, left, None))
        except Exception as error:
            raise ValueError(f"{self.split.env}: {type(error).__name__}: {error}") from error
        return ReplayedEpisode(
            level_id=info["level_id"],
            system=system,
            board=first,
            turns=tuple(turns),
            success=bool(info["success"]),
            terminated=terminated,
            truncated=truncated,
            last_board=env.message_text,
            diverged_at=None,
            surplus=len(record.turns) - len(turns),
        )

    def _env(self, by_moves: bool) -> _ReplayEnv:
        """The environment of replies, or of an agent that moves: as many moves, each a turn of its own."""
        if by_moves not in self._envs:
            config = self.split.turn_config
            if by_moves:
                most = config.action_budget
                config = TurnConfig(max_turns=most, max_actions_per_turn=1, max_actions=most)
            # The levels are given so that a reset generates none.
            options = {**self.split.env_options, "levels": list(self.split.boards)}
            moves = _MoveRecorder(self.split.env, **options)
            if self.valued and moves.game.has_values:
                moves = _MoveRecorder(self.split.env, **options | {"regret": config.action_budget})
            self._envs[by_moves] = _ReplayEnv(moves, config)
            self._envs[by_moves].reset(seed=0)
        return self._envs[by_moves]


class _MoveRecorder(StepEnv):
    """A ``StepEnv`` that keeps what each move did."""

    def __init__(self, name: str, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._moves: list[Move] = []
        #: Whether the game was over with the last move.
        self.over = False

    def grid_text(self) -> str:
        """The board as it stands, as a grid in the vocabulary of the environment."""
        return self.game.formatter(self.vocabulary, "grid")(self.state[0])

    def take(self) -> tuple[Move, ...]:
        """The moves since the last call or reset."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See ``StepEnv.reset``."""
        self._moves, self.over = [], False
        return super().reset(**arguments)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See ``StepEnv.step``."""
        before = self.state[0]
        result = super().step(action)
        after, reward = self.state[0], float(result[1])
        self.over = result[2]
        note = what_happened(self.game, before, action, after, reward)
        self._moves.append(Move(action, reward, self.grid_text(), note))
        return result


class _ReplayEnv(TurnEnv):
    """A ``TurnEnv`` that plays the parsed ``reply`` it was given, whatever the text says."""

    def __init__(self, moves: _MoveRecorder, config: TurnConfig) -> None:
        super().__init__(moves, config)
        self.moves, self.reply = moves, Reply("")

    def parse(self, text: str) -> Reply:
        """The reply that was given."""
        return self.reply


def _recorded_reply(turn: TurnRecord, n_actions: int) -> Reply:
    """A reply that plays the recorded actions and has the recorded problem."""
    for action in turn.actions:
        if not 0 <= action < n_actions:
            raise ValueError(f"a record plays action {action!r}; the game has 0 to {n_actions - 1}.")
    problem = next((problem for problem in Problem if problem == turn.problem), None)
    return Reply(turn.reply or "", actions=turn.actions, problem=problem)
