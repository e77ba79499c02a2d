"""Verification: every episode of a run is replayed, and its summary is computed again from the records.

A record holds what an episode needs: the level by its place in the suite, the noise seed, and the replies or moves. The
game is played again by the package's own rules, and the outcome is compared with the record. This finds a changed
reward or outcome, moves that the replies do not say, another level or noise seed than the suite's, an episode recorded
as a failure of the infrastructure although it came to its end, and a summary that the records do not give. It cannot
find out whether the replies are really a model's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ragen_gym.bench.episode_plan import episode_key
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import ReplayedEpisode, Replayer
from ragen_gym.bench.rescore import Rescoring
from ragen_gym.bench.results import BenchResults, ResultsFolder
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import Suite, noise_seed

__all__ = ["Mismatch", "Verdict", "check_episode", "differences", "verify"]

_CLOSE = 1e-9


@dataclass(frozen=True)
class Mismatch:
    """Something in which a file and the replay differ."""

    #: the episode as ``split/index/rollout``, with ``turn n`` where it is one turn's; or a part of the summary
    where: str
    what: str  # the field
    claimed: Any  # what the file says
    found: Any  # what the replay says

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {_short(self.claimed)} in the file and {_short(self.found)} in the replay"


@dataclass
class Verdict:
    """What came of a run's verification."""

    episodes: int = 0  # how many were replayed
    agreed: int = 0  # how many of them are as recorded
    asked: int = 0  # how many the sessions of the run asked for
    missing: int = 0  # how many of these there is no record of
    excluded: int = 0  # how many failed for reasons of infrastructure, and are out of the score
    differences: list[Mismatch] = field(default_factory=list)  # of the episodes
    summary: list[Mismatch] | None = None  # of ``summary.json``; None where there is none

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return self.agreed == self.episodes and not self.summary

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"holds": self.holds, **asdict(self)}


def verify(run: BenchResults, progress: Callable[[int], None] = lambda done: None) -> Verdict:
    """Replay every episode of a run, and make its summary again.

    Args:
        run: see ``load_results``.
        progress: called with how many episodes are done.
    """
    suite, verdict = run.suite, Verdict(excluded=sum(not record.counted for record in run.records))
    rescoring = Rescoring.of(run.info)
    replayers = rescoring.replayers(suite)
    seen: set[tuple[str, int, int]] = set()
    for record in run.records:
        if record.split in replayers:
            found = check_episode(suite, replayers[record.split], record, messages=rescoring.changes_nothing)
            found += _check_key(run.info, record, seen)
        else:
            found = [Mismatch(record.path, "split", record.split, f"one of {', '.join(replayers)}")]
        verdict.differences += found
        verdict.episodes, verdict.agreed = verdict.episodes + 1, verdict.agreed + (not found)
        progress(verdict.episodes)
    asked = _asked(run)
    verdict.asked, verdict.missing = len(asked), len(asked - seen)
    verdict.summary = _check_summary(run)
    return verdict


def check_episode(suite: Suite, replayer: Replayer, record: EpisodeRecord, *, messages: bool = True) -> list[Mismatch]:
    """The differences between a record and its replay, in the order of the episode, up to the first other actions.

    An episode that failed is compared up to where it failed.

    Args:
        suite: what was played.
        replayer: of the record's split, which parses the replies.
        record: an episode.
        messages: whether the messages must be those of the replay; in a rescored run they state the former rewards.
    """
    where, levels = record.path, replayer.split.levels
    if not 0 <= record.index < len(levels):
        return [Mismatch(where, "index", record.index, f"0 to {len(levels) - 1}")]
    found: list[Mismatch] = []

    def compare(what: str, claimed: Any, replayed: Any, place: str = where) -> bool:
        same = math.isclose(claimed, replayed, abs_tol=_CLOSE) if isinstance(replayed, float) else claimed == replayed
        if not same:
            found.append(Mismatch(place, what, claimed, replayed))
        return same

    compare("level_id", record.level_id, levels[record.index].id)
    compare("noise_seed", record.noise_seed, noise_seed(suite, replayer.split, record.index, record.rollout))
    try:
        replay = replayer.replay(record)
    except ValueError as error:
        return [*found, Mismatch(where, "actions", "actions of the game", str(error))]
    if record.turns and messages:
        compare("system", record.system, replay.system)
    for number, (claimed, turn) in enumerate(zip(record.turns, replay.turns, strict=False), 1):
        place = f"{where} turn {number}"
        if messages:
            compare("message", claimed.message, turn.message, place)
        compare("problem", claimed.problem, turn.reply.problem if turn.reply else None, place)
        if not compare("actions", claimed.actions, turn.actions, place):
            return found
        compare("reward", claimed.reward, turn.reward, place)
    _compare_end(record, replay, compare)
    return found


def _compare_end(record: EpisodeRecord, replay: ReplayedEpisode, compare: Callable[[str, Any, Any], bool]) -> None:
    compare("number of turns", len(record.turns), len(record.turns) - replay.surplus)
    compare("total_reward", record.total_reward, replay.total_reward)
    if record.failure is not None:
        compare("success of an episode that failed", record.success, False)
        if replay.over:
            compare("failure", str(record.failure), "none: the episode came to its end")
        return
    compare("success", record.success, replay.success)
    compare("terminated", record.terminated, replay.terminated)
    compare("truncated", record.truncated, replay.truncated)
    compare("last_board", record.last_board, replay.last_board)
    if not replay.over:
        compare("end", "the episode came to its end", "it goes on")


def _check_key(info: Mapping[str, Any], record: EpisodeRecord, seen: set[tuple[str, int, int]]) -> list[Mismatch]:
    """Whether the record is named after what was asked, and is the only one of its place."""
    found = []
    if record.place in seen:
        found.append(Mismatch(record.path, "number of records", "several", 1))
    seen.add(record.place)
    try:
        key = episode_key(dict(info), *record.place)
    except KeyError as missing:
        return [*found, Mismatch("run.json", str(missing.args[0]), "missing", "needed to name the episodes")]
    return found if key == record.key else [*found, Mismatch(record.path, "key", record.key, key)]


def _asked(run: BenchResults) -> set[tuple[str, int, int]]:
    """The episodes that the sessions of the run asked for."""
    return {
        (split.name, index, rollout)
        for session in run.info.get("sessions", [])
        for split in run.suite.splits
        if not session.get("splits") or split.name in session["splits"]
        for index in range(len(split.levels[: session.get("limit")]))
        for rollout in range(session.get("rollouts", 1))
    }


def _check_summary(run: BenchResults) -> list[Mismatch] | None:
    path = ResultsFolder(run.path).summary
    if not path.is_file():
        return None
    try:
        claimed = json.loads(path.read_text(encoding="utf-8"))
        again = score(run.suite, run.records, run.agent)
    except ValueError as error:
        return [Mismatch("summary", path.name, "a summary of the records", str(error))]
    return differences(_comparable(claimed), _comparable(json.loads(json.dumps(again))))


def _comparable(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without its sentences, whose words change with versions, and with former names of entries replaced."""
    names = {"told_from_random": "differs_from_random"}
    splits = {
        split: {names.get(name, name): value for name, value in entries.items() if name != "sentence"}
        for split, entries in summary.get("splits", {}).items()
    }
    return {**summary, "splits": splits}


def differences(claimed: Any, found: Any, where: str = "summary") -> list[Mismatch]:
    """The entries in which two JSON values differ, numbers by more than 1e-9."""
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        names = dict.fromkeys([*claimed, *found])
        pairs = [(f"{where}.{name}", claimed.get(name, "missing"), found.get(name, "missing")) for name in names]
        return [difference for place, one, other in pairs for difference in differences(one, other, place)]
    if _is_list(claimed) and _is_list(found) and len(claimed) == len(found):
        pairs = [(f"{where}.{place}", *pair) for place, pair in enumerate(zip(claimed, found, strict=True))]
        return [difference for place, one, other in pairs for difference in differences(one, other, place)]
    if isinstance(claimed, int | float) and isinstance(found, int | float):
        same = math.isclose(claimed, found, rel_tol=_CLOSE, abs_tol=_CLOSE)
    else:
        same = claimed == found
    place, _, name = where.rpartition(".")
    return [] if same else [Mismatch(place or where, name, claimed, found)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]} … {text[-30:]}"
