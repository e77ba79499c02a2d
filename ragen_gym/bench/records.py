"""The record of an episode, one JSON object a line in ``episodes.jsonl``: enough to replay, verify and show it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.suites import Split, Suite
from ragen_gym.core.failures import INFRASTRUCTURE, Failure

#: The largest number of a record: every integer up to it is a float without rounding.
MOST = 2**53


@dataclass(frozen=True)
class TurnRecord:
    """One turn of a ``ReplyAgent``, or one move of a ``StepAgent``."""

    message: str  # the user message, or the text of the board, that was answered
    reply: str | None  # the reply as it came; None for a move
    actions: tuple[int, ...]  # ids of the actions that were played
    reward: float  # of the turn, with its format penalty
    problem: str | None = None  # a value of ``ragen_gym.envs.reply.Problem``, or None
    reasoning: str | None = None  # see ``Answer``, as for the next four
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    retries: int = 0
    seconds: float = 0.0  # from the question to the answer


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode."""

    #: hash of everything that decides what was asked: suite hash, split, index, rollout, agent and its settings
    key: str
    split: str  # name of the split
    index: int  # place of the instance in the split
    rollout: int  # which of its rollouts
    level_id: str  # content hash of the level
    noise_seed: int  # of the episode's transition noise
    turns: tuple[TurnRecord, ...]  # what happened
    success: bool  # whether the goal was reached
    total_reward: float  # sum of the turns' rewards
    terminated: bool  # the game was over
    truncated: bool  # a budget was spent
    last_board: str  # the board at the end, as text
    system: str = ""  # the system message; empty for a ``StepAgent``
    failure: Failure | None = None  # see ``Failure``; None where the episode came to its end
    detail: str = ""  # what exactly failed, or ""; where nothing else did, what the agent's ``end`` raised
    seconds: float = 0.0  # of the whole episode
    extra: dict[str, Any] = field(default_factory=dict)  # what else the agent or the runner wants to keep, plain JSON

    @property
    def place(self) -> tuple[str, int, int]:
        """The split, the instance and the rollout."""
        return self.split, self.index, self.rollout

    @property
    def path(self) -> str:
        """The place as ``split/index/rollout``."""
        return f"{self.split}/{self.index}/{self.rollout}"

    @property
    def moves(self) -> int:
        """Number of moves played."""
        return sum(len(turn.actions) for turn in self.turns)

    @property
    def counted(self) -> bool:
        """True if the episode is part of the score."""
        return self.failure not in INFRASTRUCTURE

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        # Not ``dataclasses.asdict``: it copies every value deeply, which takes longer than a scripted agent's episode.
        return {**vars(self), "turns": [{**vars(turn)} for turn in self.turns]}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> EpisodeRecord:
        """The record that ``to_dict`` wrote.

        Raises:
            ValueError: a field is missing, unknown, of another type, or a number out of its range.
        """
        try:
            turns = tuple(_turn(turn) for turn in record["turns"])
            failure = None if record.get("failure") is None else Failure(record["failure"])
            return cls(**check_values(cls, {**record, "turns": turns, "failure": failure}))
        except KeyError as missing:
            raise ValueError(f"not the record of an episode: lacks {missing}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the record of an episode: {str(error)[:200]}") from None


def _turn(turn: Any) -> TurnRecord:
    if not isinstance(turn, dict):
        raise TypeError(f"a turn is {reprlib.repr(turn)}")
    actions = turn["actions"]
    if not isinstance(actions, list | tuple) or not all(type(each) is int and 0 <= each <= MOST for each in actions):
        raise TypeError(f"actions are {reprlib.repr(actions)}")
    return TurnRecord(**check_values(TurnRecord, {**turn, "actions": tuple(actions)}))


def check_values(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values of fields, as they are.

    Raises:
        TypeError: one has another type than its field.
        ValueError: a number is beyond ``MOST``; anyone may have written a file.
    """
    for name, value in values.items():
        if not isinstance(value, _TYPES[cls].get(name, object)):
            raise TypeError(f"{name} is {reprlib.repr(value)}")
        if isinstance(value, int | float) and not -MOST <= value <= MOST:  # false for NaN, too
            raise ValueError(f"{name} is {reprlib.repr(value)}: it must be within 2**53")
    return values


def _types(hint: Any) -> tuple[type, ...]:
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return (*(get_origin(part) or part for part in parts), *[int] * (float in parts))


#: What the value of each field may be.
_TYPES: dict[type, dict[str, tuple[type, ...]]] = {
    cls: {name: _types(hint) for name, hint in get_type_hints(cls).items()} for cls in (TurnRecord, EpisodeRecord)
}


@dataclass(frozen=True)
class InstanceCounts:
    """The episodes of a split that count, by instance."""

    indices: npt.NDArray[np.intp]  # the instances with an episode that counts, in order, integers (played,)
    levels: tuple[str, ...]  # the id of the level of each, (played,)
    families: tuple[int, ...]  # the family of the level of each, (played,)
    rollouts: npt.NDArray[np.intp]  # how many of its episodes count, from 1 on, integers (played,)
    successes: npt.NDArray[np.intp]  # how many of these succeeded, integers (played,)
    returns: npt.NDArray[np.float64]  # mean sum of their rewards, floats (played,)
    episodes: tuple[EpisodeRecord, ...]  # all episodes that count


def group_by_split(suite: Suite, records: Iterable[EpisodeRecord]) -> list[tuple[Split, list[EpisodeRecord]]]:
    """The records of each split that has any, in the order of the suite; of several of one rollout, the last.

    Raises:
        ValueError: a record is not of this suite.
    """
    last = {record.place: record for record in records}
    of: dict[str, list[EpisodeRecord]] = {split.name: [] for split in suite.splits}
    for name, index, rollout in sorted(last):
        if name not in of:
            raise ValueError(f"suite {suite.name} has no split {name!r}: these episodes are of another suite.")
        of[name].append(last[name, index, rollout])
    for split in suite.splits:
        for record in of[split.name]:
            if not 0 <= record.index < len(split.levels) or split.levels[record.index].id != record.level_id:
                raise ValueError(
                    f"{split.name}/{record.index}: level {record.level_id} is not that instance of suite {suite.name} "
                    f"({suite.hash}): these episodes are of another version of it."
                )
    return [(split, of[split.name]) for split in suite.splits if of[split.name]]


def count_by_instance(split: Split, records: Sequence[EpisodeRecord]) -> InstanceCounts:
    """Count the episodes of a split."""
    episodes = tuple(record for record in records if record.counted)
    indices, first, which = np.unique(
        np.array([record.index for record in episodes], np.intp), return_index=True, return_inverse=True
    )
    rollouts = np.bincount(which, minlength=len(indices))
    totals = np.bincount(which, [record.total_reward for record in episodes], len(indices))
    return InstanceCounts(
        indices=indices,
        levels=tuple(episodes[i].level_id for i in first),
        families=tuple(split.families[i] for i in indices),
        rollouts=rollouts,
        successes=np.bincount(which, [record.success for record in episodes], len(indices)).astype(np.intp),
        returns=totals / np.maximum(rollouts, 1),
        episodes=episodes,
    )
