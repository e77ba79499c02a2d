"""Recorded replies parsed by another parser or rewarded differently, without calling the model again.

The game is replayed from what the other parser reads. As long as it reads the actions that were played, the model saw
these very boards, and its replies stand. Where it reads others, the episode diverges from the record: this turn is
played as it is parsed; if the game or a budget ends with it, the outcome is known, and otherwise what the model would
have replied next is not. Such an episode is *unknown*: it is left out of the new score, listed by name, and the success
rate is given between two bounds, with all unknown episodes failed and with all solved.

The messages state the reward of the last turn. Where rescoring changes that number, the replies are kept although they
answered the former message, and the episode is counted as *reworded*.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ragen_gym.bench.agents.python import find
from ragen_gym.bench.episode_plan import episode_key
from ragen_gym.bench.records import MOST, EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Parser, ReplayedEpisode, ReplayedTurn, Replayer, ReplyRules, TurnReward
from ragen_gym.bench.results import BenchResults, EpisodeLog, ResultsFolder
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import Split, Suite
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.validation import check_number, plain_number
from ragen_gym.envs.reply import Problem, Reply

__all__ = ["RescoredRun", "Rescoring", "Unknown", "bounds", "lenient_reply", "rescore", "save"]

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)(?:</answer>|\Z)", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")


def lenient_reply(text: str, action_names: Sequence[str]) -> Reply:
    """Parse a reply leniently: every name of an action, in order, wherever it stands in the answer.

    The answer is the text of the last ``<answer>``, closed or not; without one it is the last line that is not empty.
    Thoughts are left out, case and all other words do not matter, and the only problem is to name no action.
    """
    thoughts = "\n".join(_TAG.sub("", thought) for thought in _THOUGHT.findall(text)).strip()
    said = _THOUGHT.sub("", text)
    answers: list[str] = _ANSWER.findall(said)
    lines = [line for line in _TAG.sub("", said).splitlines() if line.strip()]
    answer = answers[-1] if answers else lines[-1] if lines else ""
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    longest_first = sorted(map(re.escape, action_names), key=len, reverse=True)
    names = tuple(re.findall(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", answer, re.IGNORECASE))
    actions = tuple(ids[name.casefold()] for name in names)
    problem = None if actions else Problem.NO_ACTION if answers else Problem.NO_ANSWER
    return Reply(text, thoughts or None, names, actions, problem)


@dataclass(frozen=True)
class Rescoring:
    """Changes to how replies are parsed and rewarded; None keeps the suite's own.

    Raises:
        ValueError: two of them contradict each other, or a module or its callable cannot be found.
    """

    parser: str | None = None  # None, ``"lenient"`` (see ``lenient_reply``), or ``"module:callable"``, a ``Parser``
    think: bool | None = None  # whether a reply must think before it answers; of the suite's own parser alone
    format_penalty: float | None = None  # added to the reward of a turn whose reply has a problem
    reward: str | None = None  # None, or ``"module:callable"``, a ``TurnReward``

    def __post_init__(self) -> None:
        if self.parser is not None and self.think is not None:
            raise ValueError(f"parser={self.parser!r} parses thoughts in its own way: leave out think={self.think!r}.")
        if self.reward is not None and self.format_penalty is not None:
            raise ValueError(f"reward={self.reward!r} rewards turns in its own way: leave out format_penalty.")
        if self.format_penalty is not None:
            check_number("rescore", "format_penalty", self.format_penalty)
        for name in (self.parser, self.reward):
            if name not in (None, "lenient"):
                _load(str(name))

    @classmethod
    def of(cls, info: Mapping[str, Any], *, run_code: bool = False) -> Rescoring:
        """Rules by which a run was rescored, from its ``run.json``; nothing for a run as it was played.

        Args:
            info: what ``run.json`` says, which anyone may have written.
            run_code: whether the functions that it names may be imported.

        Raises:
            ValueError: it names a function and ``run_code`` is False, or it says something else than a rescoring.
        """
        rescored = info.get("settings", {}).get("rescored", {"by": {}})
        by = rescored.get("by") if isinstance(rescored, dict) else None
        types: dict[str, Any] = {"parser": str, "think": bool, "format_penalty": (int, float), "reward": str}
        if not isinstance(by, dict) or any(not isinstance(by[name], types.get(name, ())) for name in by):
            raise ValueError(f"run.json says that it was rescored by {reprlib.repr(by)}: that is no rescoring.")
        named = [by[name] for name in ("parser", "reward") if by.get(name) not in (None, "lenient")]
        if named and not run_code:
            raise ValueError(
                f"run.json names {' and '.join(named)}, by which the run was rescored: give --run-code to import "
                "it, if you trust who wrote it."
            )
        return cls(**by)

    def name(self, agent: str) -> str:
        """Name of an agent in a run that was rescored so."""
        by = {name: value for name, value in asdict(self).items() if value is not None}
        return f"{agent} ({', '.join(f'{name}={value}' for name, value in by.items()) or 'as it was'})"

    @property
    def changes_nothing(self) -> bool:
        """True if all is the suite's own."""
        return self == Rescoring()

    def reply_rules(self, split: Split) -> ReplyRules:
        """Rules by which replies of a split are parsed and rewarded.

        Raises:
            ValueError: the split wants parts of the thinking, and replies are to be parsed without any.
        """
        if split.is_task:  # which alone reads and rewards its replies
            return ReplyRules()
        changed = {"think": self.think, "format_penalty": self.format_penalty}
        options: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
        parser = None if self.parser is None else lenient_reply if self.parser == "lenient" else _load(self.parser)
        return ReplyRules(
            turn_config=replace(split.turn_config, **options),
            parser=parser and _checked(parser),
            reward=None if self.reward is None else _paying(_load(self.reward)),
        )

    def replayers(self, suite: Suite) -> dict[str, Replayer]:
        """Replayers of each split's episodes by these rules."""
        return {split.name: Replayer(split, self.reply_rules(split)) for split in suite.splits}


def _checked(parser: Parser) -> Parser:
    """The parser; a ValueError if it returns something else than a reply."""

    def parse(text: str, names: Sequence[str]) -> Reply:
        reply = parser(text, names)
        if not isinstance(reply, Reply):
            raise ValueError(f"the parser must return a ragen_gym.envs.reply.Reply, not {reply!r}.")
        return reply

    return parse


def _paying(reward: TurnReward) -> TurnReward:
    """The reward as a float; a ValueError if it returns something else than a number that a record can hold."""

    def pay(reply: Reply, rewards: tuple[float, ...]) -> float:
        paid = plain_number(reward(reply, rewards))
        check_number("the reward of a turn", "what it returns", paid, -MOST, MOST)
        return float(paid)

    return pay


def _load(name: str) -> Any:
    """The callable of ``"module:callable"``."""
    found = find(name)
    if not callable(found):
        raise ValueError(f"{name!r} is not a function but {found!r}.")
    return found


@dataclass(frozen=True)
class Unknown:
    """An episode whose rest cannot be known."""

    split: str  # its split
    index: int  # its instance
    rollout: int  # its rollout
    turn: int  # the turn, from 1, that reads as other actions than were played
    played: tuple[str, ...]  # what was played there
    read: tuple[str, ...]  # what the other parser reads
    turns: int  # how many turns were recorded in all
    success: bool  # how the episode ended as it was played

    def __str__(self) -> str:
        played, read = (", ".join(names) or "nothing" for names in (self.played, self.read))
        return f"{self.split}/{self.index}/{self.rollout}: turn {self.turn} reads {read} where {played} was played"


@dataclass(frozen=True)
class RescoredRun:
    """A run, rescored."""

    identity: dict[str, Any]  # of the new run, for its ``run.json``
    records: tuple[EpisodeRecord, ...]  # the episodes whose outcome is known, under new keys
    unknown: tuple[Unknown, ...]  # the others
    changed: int  # episodes among ``records`` that read as other actions in their last turn, so that it ended them
    reworded: int  # episodes among ``records`` in which a message would have stated another reward


def rescore(
    run: BenchResults, rescoring: Rescoring, progress: Callable[[int], None] = lambda done: None
) -> RescoredRun:
    """Parse or reward the replies of a run differently.

    Episodes of an agent that moves have no replies, failures of the infrastructure no outcome, and a text task reads
    and rewards replies itself: all these stay as they are.

    Args:
        run: see ``load_results``.
        rescoring: what is changed.
        progress: called with how many episodes are done.

    Raises:
        ValueError: a record is not of the run's suite, a parser returns something else than a ``Reply``, a reward
            something else than a number, or all splits play text tasks.
    """
    if all(split.is_task for split in run.suite.splits) and not rescoring.changes_nothing:
        raise ValueError(
            f"the suite {run.suite.name} plays text tasks alone, which read and reward replies themselves: there is "
            "nothing to rescore."
        )
    identity = _identity(run, rescoring)
    replayers = rescoring.replayers(run.suite)
    records, unknown, changed, reworded = [], [], 0, 0
    for done, record in enumerate(run.records, 1):
        if record.split not in replayers or record.split not in identity["prompts"]:
            raise ValueError(f"{run.path}: the suite or run.json has no split {record.split!r}: verify the run first.")
        replay = replayers[record.split].replay(record)
        if replay.diverged_at is not None and not replay.over and record.counted:
            unknown.append(_unknown(record, replay))
        else:
            records.append(_record(record, replay, episode_key(identity, *record.place)))
            changed += replay.diverged_at is not None
            # Rewards as the messages write them; none that was answered states that of the last turn.
            turns = zip(record.turns[:-1], replay.turns[:-1], strict=False)
            reworded += any(new.reply is not None and f"{old.reward:g}" != f"{new.reward:g}" for old, new in turns)
        progress(done)
    return RescoredRun(identity, tuple(records), tuple(unknown), changed, reworded)


def bounds(rescored: RescoredRun) -> dict[str, dict[str, Any]]:
    """For each split: episodes that count and are known, those unknown, and success if all of these fail or succeed."""
    names = {*(record.split for record in rescored.records), *(each.split for each in rescored.unknown)}
    found = {}
    for name in sorted(names, key=list(rescored.identity["prompts"]).index):
        known = [record for record in rescored.records if record.split == name and record.counted]
        unknown = sum(each.split == name for each in rescored.unknown)
        solved, total = sum(record.success for record in known), len(known) + unknown
        found[name] = {
            "known": len(known),
            "unknown": unknown,
            "rate": solved / len(known) if known else None,
            "least": solved / total if total else None,
            "most": (solved + unknown) / total if total else None,
        }
    return found


def _record(record: EpisodeRecord, replay: ReplayedEpisode, key: str) -> EpisodeRecord:
    """The record, rescored; a turn that was not played again, after a failure, is none of it."""
    turns = tuple(_turn(old, new) for old, new in zip(record.turns, replay.turns, strict=False))
    same = replace(record, key=key, turns=turns, total_reward=replay.total_reward)
    if record.failure is not None and not replay.over:
        return same
    return replace(
        same,
        success=replay.success,
        terminated=replay.terminated,
        truncated=replay.truncated,
        last_board=replay.last_board,
        failure=None,
        detail="",
    )


def _turn(old: TurnRecord, new: ReplayedTurn) -> TurnRecord:
    if new.reply is None:
        return old
    problem = None if new.reply.problem is None else str(new.reply.problem)
    return replace(old, actions=new.actions, reward=new.reward, problem=problem)


def _unknown(record: EpisodeRecord, replay: ReplayedEpisode) -> Unknown:
    assert replay.diverged_at is not None
    turn, old = replay.turns[replay.diverged_at], record.turns[replay.diverged_at]
    played, read = (tuple(turn.names[action] for action in each) for each in (old.actions, turn.actions))
    return Unknown(*record.place, replay.diverged_at + 1, played, read, len(record.turns), record.success)


def _identity(run: BenchResults, rescoring: Rescoring) -> dict[str, Any]:
    """That of the run, and what it was rescored by: so no session of the run can be taken for one of the new one."""
    if "rescored" in run.info["settings"]:
        raise ValueError(f"{run.path} was rescored already: rescore the run that was played.")
    same = {name: value for name, value in run.info.items() if name not in ("sessions", "settings")}
    by = {name: value for name, value in asdict(rescoring).items() if value is not None}
    rescored = {"agent": run.info["agent"], "by": by}
    return {**same, "agent": rescoring.name(run.agent), "settings": {**run.info["settings"], "rescored": rescored}}


def save(run: BenchResults, rescored: RescoredRun, path: Path) -> None:
    """Write a rescored run as a folder that reports and ``verify`` read as any other, with its ``unknown.jsonl``.

    Attempts that were made again are those of the run, so that ``verify`` asks of both runs the same; an attempt at an
    episode that is unknown now is left out with it.

    Args:
        run: what was rescored.
        rescored: see ``rescore``.
        path: the new folder; it appears whole or not at all.

    Raises:
        ValueError: there is something at ``path``.
    """
    if path.exists():
        raise ValueError(f"{path} exists: choose another folder for the rescored run.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as parent:
        folder = ResultsFolder(Path(parent) / path.name)
        for session in run.info["sessions"]:
            folder.begin(rescored.identity, session)
        keys = {record.place: record.key for record in rescored.records}
        retried = tuple(replace(each, key=keys[each.place]) for each in run.retried if each.place in keys)
        with EpisodeLog(folder) as log:
            for record in (*retried, *rescored.records):
                log.append(record)
        lines = (json.dumps(asdict(each), ensure_ascii=False) for each in rescored.unknown)
        write_atomic(folder.path / "unknown.jsonl", "".join(f"{line}\n" for line in lines))
        if run.seen is not None:
            folder.add_seen(run.seen)
        if rescored.records:
            results = replace(run, info=folder.info, agent=rescored.identity["agent"], records=rescored.records)
            folder.write_summary(score_results(replace(results, retried=retried)))
        folder.path.rename(path)
