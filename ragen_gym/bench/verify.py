"""Verification: every episode of a run is replayed, and its summary computed again.

The game is played again by the package's own rules from the level, the noise seed and the recorded replies or moves,
and the outcome is compared with the record. There are three verdicts:

- *false*: something differs: a reward, outcome or message that the replay does not give; another level or noise seed
  than the suite's; an episode recorded as a failure although it came to its end; two records of one episode; a record
  that no session asked for; a summary that the records do not give.
- *incomplete*: nothing differs, but an episode that was asked for is missing or failed for reasons of infrastructure,
  or there is no summary. The rate of such a run is of a part of the episodes, which the agent may have chosen.
- *verified*: every episode that was asked for is there, and nothing differs.

A replay cannot show that the replies are a model's, that the agent did not look at the game, or that the run is not the
best of many. Success above the interval of optimal play, and attempts that were made again, are ``Verdict.doubts``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ragen_gym.bench.episode_plan import episode_key
from ragen_gym.bench.records import MOST, EpisodeRecord
from ragen_gym.bench.replay import ReplayedEpisode, Replayer
from ragen_gym.bench.report.tables import above_optimal
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import SUITES, Suite, load_suite, noise_seed
from ragen_gym.core.failures import Failure

_CLOSE = 1e-9

#: Exit codes of ``ragen-gym bench verify`` by verdict; 2 is for bad input.
EXIT_CODES = {"verified": 0, "false": 1, "incomplete": 3}


@dataclass(frozen=True)
class Mismatch:
    """Something in which a file and what it should be differ."""

    where: str  # the episode as ``split/index/rollout``, and its ``turn n``; or a part of a file
    what: str  # the field
    claimed: Any  # what the file says
    found: Any  # what the replay says, or the other records

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {_short(self.claimed)} in the file and should be {_short(self.found)}"


@dataclass
class Verdict:
    """Result of a run's verification."""

    episodes: int = 0  # how many were replayed
    agreed: int = 0  # how many of them are as recorded
    asked: int = 0  # how many the sessions of the run asked for
    missing: int = 0  # how many of these there is no record of
    excluded: int = 0  # how many failed for reasons of infrastructure, and are out of the score
    retried: int = 0  # attempts that failed so and were made again
    above_optimal: list[str] = field(default_factory=list)  # splits with success above optimal play's interval
    differences: list[Mismatch] = field(default_factory=list)  # of the episodes and of the summary
    has_summary: bool = True  # whether there is a ``summary.json``

    @property
    def verdict(self) -> str:
        """``"verified"``, ``"incomplete"`` or ``"false"``; see the module."""
        if self.differences:
            return "false"
        return "incomplete" if self.lacks else "verified"

    @property
    def lacks(self) -> list[str]:
        """Missing parts that verification of the run needs."""
        return [
            *["there is no episode"] * (not self.episodes),
            *[f"{self.missing:,} of {self.asked:,} episodes that were asked for are missing"] * bool(self.missing),
            *[f"{self.excluded:,} failed for reasons of infrastructure, out of the score"] * bool(self.excluded),
            *["there is no summary.json (ragen-gym bench score RUN --write writes it)"] * (not self.has_summary),
        ]

    @property
    def doubts(self) -> list[str]:
        """Events that a replay cannot judge and that may have chosen among outcomes, even where the run is verified."""
        return [
            *[f"attempts made again: {self.retried:,}"] * bool(self.retried),
            *[f"success above the interval of optimal play: {split}" for split in self.above_optimal],
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"verdict": self.verdict, **asdict(self)}


def verify(run: BenchResults, progress: Callable[[int], None] = lambda done: None) -> Verdict:
    """Replay every episode of a run, and make its summary again.

    Args:
        run: see ``load_results``.
        progress: called with how many episodes are done.
    """
    asked = run.asked

    def is_asked(split: str, index: int, rollout: int) -> bool:
        return 0 <= index < len(asked.get(split, ())) and 0 <= rollout < asked[split][index]

    wanted, places = sum(map(sum, asked.values())), Counter(record.place for record in run.records)
    verdict = Verdict(
        asked=wanted,
        missing=wanted - sum(is_asked(*place) for place in places),
        excluded=sum(not record.counted for record in run.records),
        retried=len(run.retried),
        has_summary=run.summary_json is not None,
    )
    replayers = {split.name: Replayer(split, parses=True) for split in run.suite.splits}
    places.update(record.place for record in run.retried if record.counted)
    for record in run.records:
        found = []
        if record.split not in replayers:
            found.append(Mismatch(record.path, "split", record.split, f"one of {', '.join(replayers)}"))
        else:
            found += check_episode(run.suite, replayers[record.split], record)
            key = episode_key(run.info, *record.place)
            if record.key != key:
                found.append(Mismatch(record.path, "key", record.key, key))
        if places[record.place] > 1:
            found.append(Mismatch(record.path, "number of records", places[record.place], 1))
        if not is_asked(*record.place):
            found.append(Mismatch(record.path, "episode", "played", "none: no session asked for it"))
        verdict.differences += found
        verdict.episodes, verdict.agreed = verdict.episodes + 1, verdict.agreed + (not found)
        progress(verdict.episodes)
    own = load_suite(run.suite.name).hash if run.suite.name in SUITES else run.suite.hash
    if own != run.suite.hash:
        verdict.differences.append(Mismatch(run.suite.name, "hash", run.suite.hash, own))
    try:
        scored = score_results(run)
    except ValueError as error:  # a record of another suite, which is among the differences
        verdict.differences.append(Mismatch("summary.json", "score", "a score of the records", str(error)))
        return verdict
    verdict.above_optimal = above_optimal(scored)
    if run.summary_json is not None:
        try:
            verdict.differences += differences(json.loads(run.summary_json), json.loads(json.dumps(scored)))
        except (ValueError, RecursionError) as error:
            verdict.differences.append(Mismatch("summary.json", "content", "a summary", str(error)))
    return verdict


def check_episode(suite: Suite, replayer: Replayer, record: EpisodeRecord) -> list[Mismatch]:
    """The differences between a record and its replay, in the order of the episode, up to the first other actions.

    An episode that failed is compared up to where it failed.

    Args:
        suite: what was played.
        replayer: of the record's split, which parses the replies.
        record: an episode.
    """
    where, levels = record.path, replayer.split.levels
    if not 0 <= record.index < len(levels):
        return [Mismatch(where, "index", record.index, f"0 to {len(levels) - 1}")]
    seed = noise_seed(suite, replayer.split, record.index, record.rollout)
    given = {"level_id": levels[record.index].id, "noise_seed": seed}
    found = _compared(where, {name: (getattr(record, name), value) for name, value in given.items()})
    try:
        replay = replayer.replay(record)
    except ValueError as error:
        return [*found, Mismatch(where, "actions", "actions of the game", str(error))]
    if record.turns:
        found += _compared(where, {"system": (record.system, replay.system)})
    if (moves := sum(turn.reply is None for turn in record.turns)) not in (0, len(record.turns)):
        found.append(Mismatch(where, "turns without a reply", moves, f"none, or all {len(record.turns)}"))
    for number, (claimed, turn) in enumerate(zip(record.turns, replay.turns, strict=False)):
        names = ("message", "problem", "actions", *["reward"] * (number != replay.diverged_at))
        pairs = {name: (getattr(claimed, name), getattr(turn, name)) for name in names}
        found += _compared(f"{where} turn {number + 1}", pairs)
    return found if replay.diverged_at is not None else found + _compared(where, _ends(record, replay))


def _ends(record: EpisodeRecord, replay: ReplayedEpisode) -> dict[str, tuple[Any, Any]]:
    """(Claimed, replayed) of what is known at the end of an episode."""
    ends: dict[str, tuple[Any, Any]] = {
        "number of turns": (len(record.turns), len(record.turns) - replay.surplus),
        "total_reward": (record.total_reward, replay.total_reward),
    }
    if record.failure is not Failure.ENVIRONMENT_ERROR:
        ends["last_board"] = record.last_board, replay.last_board
    if record.failure is not None:
        failed = "none: the episode came to its end" if replay.over else str(record.failure)
        return ends | {
            "success of an episode that failed": (record.success, False),
            "failure": (record.failure, failed),
        }
    ends |= {name: (getattr(record, name), getattr(replay, name)) for name in ("success", "terminated", "truncated")}
    return ends | {
        "end": ("the episode came to its end", "the episode came to its end" if replay.over else "it goes on")
    }


def _compared(where: str, pairs: Mapping[str, tuple[Any, Any]]) -> list[Mismatch]:
    return [Mismatch(where, name, *pair) for name, pair in pairs.items() if not _same(*pair)]


def _same(claimed: Any, found: Any) -> bool:
    if isinstance(claimed, int | float) and isinstance(found, float) and abs(claimed) <= MOST:
        return math.isclose(claimed, found, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return bool(claimed == found)


def differences(claimed: Any, found: Any, where: str = "summary") -> list[Mismatch]:
    """The entries in which two JSON values differ, numbers by more than 1e-9.

    Sentences are left out: another version of the package may word them otherwise.
    """
    pairs: list[tuple[Any, Any, Any]] | None = None
    if isinstance(claimed, dict) and isinstance(found, dict):
        names = [name for name in dict.fromkeys([*claimed, *found]) if name != "sentence"]
        pairs = [(name, claimed.get(name, "missing"), found.get(name, "missing")) for name in names]
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        pairs = [(place, *pair) for place, pair in enumerate(zip(claimed, found, strict=True))]
    if pairs is not None:
        return [each for name, one, other in pairs for each in differences(one, other, f"{where}.{name}")]
    place, _, name = where.rpartition(".")
    return [] if _same(claimed, found) else [Mismatch(place or where, name, claimed, found)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]} … {text[-30:]}"
