"""Recorded episodes played again: the same level, the same luck, and what the replies say or the moves that were made.

Everything that looks back at a run stands on this: `verify` compares, `rescore` reads the replies in another way,
`report` draws the boards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.suite import Split
from ragen_gym.envs.reply import SEPARATOR, Reply, parse_reply
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.render.recorder import what_happened

__all__ = ["Move", "Parser", "Reading", "Replay", "ReplayedTurn", "Stage", "TurnReward"]

Parser = Callable[[str, Sequence[str]], Reply]
"""From a reply and the names of the actions to what the reply says."""

TurnReward = Callable[[Reply, tuple[float, ...]], float]
"""From a parsed reply and the rewards of the moves that it played to the reward of the turn."""


@dataclass(frozen=True)
class Reading:
    """How replies are read and paid.

    Attributes:
        parser: see `Parser`.
        reward: see `TurnReward`.
    """

    parser: Parser
    reward: TurnReward

    @classmethod
    def of(cls, split: Split) -> Reading:
        """The split's own."""
        think, penalty = split.budgets.think, split.budgets.format_penalty
        return cls(
            lambda text, names: parse_reply(text, names, think=think),
            lambda reply, rewards: sum(rewards) + (penalty if reply.problem else 0.0),
        )


@dataclass(frozen=True)
class Move:
    """One action.

    Attributes:
        action: its id.
        reward: what it earned.
        board: the board that it left, as text in the split's vocabulary, always as a grid.
        note: what happened, in words.
    """

    action: int
    reward: float
    board: str
    note: str


@dataclass(frozen=True)
class ReplayedTurn:
    """One turn.

    Attributes:
        message: what was to be answered.
        reply: how the reply reads, or None where the turn was replayed by its moves.
        moves: what was played.
        reward: of the turn.
        names: the names of the actions.
    """

    message: str
    reply: Reply | None
    moves: tuple[Move, ...]
    reward: float
    names: tuple[str, ...]

    @property
    def actions(self) -> tuple[int, ...]:
        """Ids of the actions that were played."""
        return tuple(move.action for move in self.moves)


@dataclass(frozen=True)
class Replay:
    """An episode played again.

    Attributes:
        level_id: content hash of the level.
        system: the system message.
        board: the first board, as in `Move`.
        turns: as many as were recorded, fewer if the episode was over before that or left the record.
        success: whether the goal was reached.
        terminated: the game was over.
        truncated: a budget was spent.
        last_board: the board at the end, as the model saw it.
        left_at: the turn, from 0, whose reply reads as other actions than were recorded; None if there is none. The
            turn is played as it reads, and is the last.
        after: turns that were recorded after the episode was over.
    """

    level_id: str
    system: str
    board: str
    turns: tuple[ReplayedTurn, ...]
    success: bool
    terminated: bool
    truncated: bool
    last_board: str
    left_at: int | None
    after: int

    @property
    def total_reward(self) -> float:
        """The sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def over(self) -> bool:
        """Whether the episode came to its end."""
        return self.terminated or self.truncated


class Stage:
    """The environment of a split, which replays any of its episodes.

    Args:
        split: what was played.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self._envs: dict[bool, tuple[TurnEnv, _Film]] = {}

    def replay(self, record: EpisodeRecord, reading: Reading | None = None) -> Replay:
        """Play a record again.

        Args:
            record: an episode of this split.
            reading: how its replies are read and paid; None plays the recorded moves, for the split's rewards.

        Raises:
            ValueError: the split has no such instance, or the record names an action that the game does not have.
        """
        if not 0 <= record.index < len(self.split.levels):
            raise ValueError(
                f"split {self.split.name!r} has instances 0 to {len(self.split.levels) - 1}, not {record.index}."
            )
        by_moves = bool(record.turns) and all(turn.reply is None for turn in record.turns)
        env, film = self._env(by_moves)
        options = {"level": self.split.levels[record.index], "noise_seed": record.noise_seed}
        message, info = env.reset(options=options)
        first, names = film.shown(), env.action_names
        turns: list[ReplayedTurn] = []
        terminated, truncated, left = False, False, None
        for turn in record.turns:
            if env.over or left is not None:
                break
            asked = film.text if by_moves else message
            reply = reading.parser(turn.reply, names) if reading and turn.reply is not None else None
            actions, problem = (reply.actions, reply.problem) if reply else (turn.actions, turn.problem)
            message, reward, terminated, truncated, info = env.step(
                _plain(actions, bool(problem), names, env.config.think)
            )
            moves = film.cut()
            if reading and reply:
                reward = reading.reward(reply, tuple(move.reward for move in moves))
            turns.append(ReplayedTurn(asked, reply, moves, reward, names))
            if turns[-1].actions != turn.actions:
                left = len(turns) - 1
        return Replay(
            level_id=info["level_id"],
            system="" if by_moves else env.instructions,
            board=first,
            turns=tuple(turns),
            success=bool(info["success"]),
            terminated=terminated,
            truncated=truncated,
            last_board=env.board,
            left_at=left,
            after=0 if left is not None else len(record.turns) - len(turns),
        )

    def _env(self, by_moves: bool) -> tuple[TurnEnv, _Film]:
        """The environment of replies, or of an agent that moves: as many moves, each a turn of its own."""
        if by_moves not in self._envs:
            b = self.split.budgets
            most = min(b.max_actions, b.max_turns * b.max_actions_per_turn)
            turns, a_turn, actions = (
                (most, 1, most) if by_moves else (b.max_turns, b.max_actions_per_turn, b.max_actions)
            )
            # The levels are given so that a reset generates none.
            film = _Film(self.split.env, levels=list(self.split.levels), **self.split.knobs)
            env = TurnEnv(
                film,
                max_turns=turns,
                max_actions_per_turn=a_turn,
                max_actions=actions,
                format_penalty=b.format_penalty,
                think=b.think,
            )
            env.reset(seed=0)
            self._envs[by_moves] = env, film
        return self._envs[by_moves]


class _Film(StepEnv):
    """A `StepEnv` that remembers what each move did."""

    def __init__(self, name: str, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._moves: list[Move] = []
        self._grid_text = self.game.formatter(self.vocabulary, "grid")

    def shown(self) -> str:
        """The board as it stands, as a grid in the vocabulary in play."""
        return self._grid_text(self.state[0])

    def cut(self) -> tuple[Move, ...]:
        """The moves since the last cut or reset."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See `StepEnv.reset`."""
        self._moves = []
        return super().reset(**arguments)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `StepEnv.step`."""
        before = self.state[0]
        result = super().step(action)
        after, reward = self.state[0], float(result[1])
        note = what_happened(self.game, before, action, after, reward)
        self._moves.append(Move(action, reward, self._grid_text(after), note))
        return result


def _plain(actions: Sequence[int], problem: bool, names: Sequence[str], think: bool) -> str:
    """A reply that plays these actions, and is penalised if it is to have a problem."""
    if not actions:
        return ""
    for action in actions:
        if not 0 <= action < len(names):
            raise ValueError(f"a record plays action {action!r}; the game has 0 to {len(names) - 1}.")
    # No game can name an action so: tags end an answer, and arms may not contain these characters.
    said = [names[action] for action in actions] + ["<none>"] * problem
    return "<think></think>" * think + f"<answer>{f' {SEPARATOR} '.join(said)}</answer>"
