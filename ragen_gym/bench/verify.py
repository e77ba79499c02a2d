"""Verification: every episode of a run is replayed, and its summary computed again.

A record holds what an episode needs: the level by its place in the suite, the noise seed, and the replies or moves. The
game is played again by the package's own rules, and the outcome is compared with the record. There are three verdicts:

- *false*: something differs. A reward, outcome or message that the replay does not give; another level or noise seed
  than the suite's; an episode recorded as a failure although it came to its end; two records of one episode; a record
  that no session asked for; a cost that prices and tokens do not give; an unknown field; a summary that the records do
  not give; another record of the levels seen in training than ``run.json`` names.
- *incomplete*: nothing differs, but an episode that was asked for is missing or failed for reasons of infrastructure,
  or there is no summary. The rate of a run that lacks episodes is of a part of them, which the agent may have chosen:
  one that raises an error where it expects to lose leaves the score.
- *verified*: every episode that was asked for is there, and nothing differs.

Success above the interval of optimal play is a doubt (``Verdict.doubts``): the agent saw the transition noise to come.

The replay cannot find out whether the replies are really a model's, whether the agent looked at the game in its own
process, whether the run is the best of many, or whether the folder's owner left out sessions. The sentences of a
summary are compared where this version of the package played the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ragen_gym import __version__
from ragen_gym.bench.episode_plan import Prices, RunOptions, episode_key
from ragen_gym.bench.records import MOST, EpisodeRecord
from ragen_gym.bench.replay import ReplayedEpisode, Replayer
from ragen_gym.bench.report.tables import above_optimal
from ragen_gym.bench.rescore import Rescoring
from ragen_gym.bench.results import RUN_ENTRIES, SESSION_ENTRIES, BenchResults, code_versions, parse_json
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import SUITES, Suite, load_suite, noise_seed
from ragen_gym.core.failures import Failure

__all__ = ["EXIT_CODES", "Mismatch", "Verdict", "check_episode", "differences", "verify"]

_CLOSE = 1e-9

#: Exit codes of ``ragen-gym bench verify`` by verdict; 2 is for bad input.
EXIT_CODES = {"verified": 0, "false": 1, "incomplete": 3}


@dataclass(frozen=True)
class Mismatch:
    """Something in which a file and what it should be differ."""

    #: the episode as ``split/index/rollout``, with ``turn n`` where it is one turn's; or a file, or a part of one
    where: str
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
    retried_in_play: int = 0  # those of them that failed after the agent was first asked
    code_versions: int = 0  # of the agent's code, in sessions that say it
    above_optimal: list[str] = field(default_factory=list)  # splits with success above optimal play's interval
    differences: list[Mismatch] = field(default_factory=list)  # of the episodes and of the files
    summary: list[Mismatch] | None = None  # of ``summary.json``; None where there is none

    @property
    def verdict(self) -> str:
        """``"verified"``, ``"incomplete"`` or ``"false"``; see the module."""
        if self.differences or self.summary:
            return "false"
        return "incomplete" if self.lacks else "verified"

    @property
    def holds(self) -> bool:
        """True if the run is verified."""
        return self.verdict == "verified"

    @property
    def lacks(self) -> list[str]:
        """Missing parts that verification of the run needs."""
        return [
            *["there is no episode"] * (not self.episodes),
            *[f"{self.missing:,} of {self.asked:,} episodes that were asked for are missing"] * bool(self.missing),
            *[f"{self.excluded:,} failed for reasons of infrastructure, out of the score"] * bool(self.excluded),
            *["there is no summary.json (ragen-gym bench score RUN --write writes it)"] * (self.summary is None),
        ]

    @property
    def doubts(self) -> list[str]:
        """Events that a replay cannot judge and that may have chosen among outcomes, even where the run is verified."""
        again = f"attempts made again: {self.retried:,} ({self.retried_in_play:,} after play began)"
        return [
            *[again] * bool(self.retried),
            *[f"versions of the agent's code: {self.code_versions:,}"] * (self.code_versions > 1),
            *[f"success above the interval of optimal play: {split}" for split in self.above_optimal],
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"verdict": self.verdict, "holds": self.holds, **asdict(self)}


def verify(
    run: BenchResults, progress: Callable[[int], None] = lambda done: None, *, run_code: bool = False
) -> Verdict:
    """Replay every episode of a run, and make its summary again.

    Args:
        run: see ``load_results``.
        progress: called with how many episodes are done.
        run_code: whether the functions may be imported by which ``run.json`` says that the run was rescored.

    Raises:
        ValueError: the run was rescored by such functions, and ``run_code`` is False.
    """
    suite, asked = run.suite, run.asked
    verdict = Verdict(
        excluded=sum(not record.counted for record in run.records),
        retried=len(run.retried),
        retried_in_play=sum(record.in_play for record in run.retried),
        code_versions=code_versions(run.info),
    )
    rescoring = Rescoring.of(run.info, run_code=run_code)
    replayers = rescoring.replayers(suite)
    seen: set[tuple[str, int, int]] = set()
    for record in run.records:
        if record.split in replayers:
            found = check_episode(suite, replayers[record.split], record, messages=rescoring.changes_nothing)
            found += _check_key(run.info, record, seen, asked) + _check_cost(run.info, record)
        else:
            found = [Mismatch(record.path, "split", record.split, f"one of {', '.join(replayers)}")]
        verdict.differences += found
        verdict.episodes, verdict.agreed = verdict.episodes + 1, verdict.agreed + (not found)
        progress(verdict.episodes)
    verdict.asked = sum(map(sum, asked.values()))
    verdict.missing = verdict.asked - sum(_is_asked(place, asked) for place in seen)
    verdict.differences += (
        _check_name(run.info, rescoring) + _check_suite(suite) + _check_fields(run) + _check_retried(run)
    )
    if run.seen_differs:
        verdict.differences.append(Mismatch("seen.npy", "the record of levels seen in training", *run.seen_differs))
    scored: dict[str, Any] | ValueError
    try:
        scored = score_results(run)
    except ValueError as error:
        scored = error
    else:
        verdict.above_optimal = above_optimal(scored)
    verdict.summary = _check_summary(run, scored)
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
    if (moves := sum(turn.reply is None for turn in record.turns)) not in (0, len(record.turns)):
        found.append(Mismatch(where, "turns without a reply", moves, f"none, or all {len(record.turns)}"))
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
    if record.failure is not Failure.ENVIRONMENT_ERROR:
        compare("last_board", record.last_board, replay.last_board)
    if record.failure is not None:
        compare("success of an episode that failed", record.success, False)
        if replay.over:
            compare("failure", str(record.failure), "none: the episode came to its end")
        return
    compare("success", record.success, replay.success)
    compare("terminated", record.terminated, replay.terminated)
    compare("truncated", record.truncated, replay.truncated)
    if not replay.over:
        compare("end", "the episode came to its end", "it goes on")


def _check_key(
    info: Mapping[str, Any], record: EpisodeRecord, seen: set[tuple[str, int, int]], asked: dict[str, list[int]]
) -> list[Mismatch]:
    """Mismatches unless the record is named after what was asked, is the only one of its place, and was asked for."""
    found = []
    if record.place in seen:
        found.append(Mismatch(record.path, "number of records", "several", 1))
    seen.add(record.place)
    if not _is_asked(record.place, asked):
        found.append(Mismatch(record.path, "episode", "played", "none: no session asked for it"))
    sessions = len(info["sessions"])
    if record.session is None or not 0 <= record.session < sessions:
        found.append(Mismatch(record.path, "session", record.session, f"one of the {sessions} of run.json"))
    try:
        key = episode_key(dict(info), *record.place)
    except KeyError as missing:
        return [*found, Mismatch("run.json", str(missing.args[0]), "missing", "there: it names the episodes")]
    return found if key == record.key else [*found, Mismatch(record.path, "key", record.key, key)]


def _check_cost(info: Mapping[str, Any], record: EpisodeRecord) -> list[Mismatch]:
    """Mismatches unless the cost is that of the tokens by the prices of the record's session."""
    number, sessions = record.session, info["sessions"]
    if number is None or not 0 <= number < len(sessions):  # which ``_check_key`` finds
        return []
    prices, cost = sessions[number].get("prices"), None
    if prices:
        each = [prices.get(name) for name in ("prompt", "completion")]
        if len(prices) != 2 or any(type(price) not in (int, float) or not 0 <= price <= MOST for price in each):
            return [Mismatch(f"run.json, session {number}", "prices", prices, "a price of each kind of token")]
        cost = Prices(*each).of(list(record.turns))
    if cost is None or record.cost is None:
        return [] if cost is record.cost else [Mismatch(record.path, "cost", record.cost, cost)]
    return (
        []
        if math.isclose(record.cost, cost, rel_tol=_CLOSE, abs_tol=_CLOSE)
        else [Mismatch(record.path, "cost", record.cost, cost)]
    )


def _is_asked(place: tuple[str, int, int], asked: dict[str, list[int]]) -> bool:
    split, index, rollout = place
    return split in asked and index < len(asked[split]) and rollout < asked[split][index]


def _check_name(info: Mapping[str, Any], rescoring: Rescoring) -> list[Mismatch]:
    """Mismatches unless the agent of a rescored run is called so, by which reports and tables show that it was."""
    if (rescored := info.get("settings", {}).get("rescored")) is None:
        return []
    name = rescoring.name(str(rescored.get("agent")))
    return [] if info["agent"] == name else [Mismatch("run.json", "agent", info["agent"], name)]


def _check_suite(suite: Suite) -> list[Mismatch]:
    """Mismatches unless a suite that has the name of one of the package's is that one."""
    own = load_suite(suite.name).hash if suite.name in SUITES else suite.hash
    return [] if own == suite.hash else [Mismatch(suite.name, "hash", suite.hash, own)]


def _check_fields(run: BenchResults) -> list[Mismatch]:
    """Entries of ``run.json`` that nothing writes."""
    info = run.info
    of_session = {*SESSION_ENTRIES, *(option.name for option in fields(RunOptions))}
    tables: list[tuple[str, Mapping[str, Any], Iterable[str]]] = [("run.json", info, RUN_ENTRIES)]
    tables += [(f"run.json, session {i}", each, of_session) for i, each in enumerate(info["sessions"])]
    return [
        Mismatch(where, name, table[name], "no field of a run")
        for where, table, known in tables
        for name in table
        if name not in known
    ]


def _check_retried(run: BenchResults) -> list[Mismatch]:
    """Earlier records of an episode: only an attempt that failed is made again, and what it took counts."""
    counted = [Mismatch(record.path, "number of records", "several", 1) for record in run.retried if record.counted]
    kept = {record.key: record for record in run.records}
    copies = [record for record in run.retried if not record.counted and kept.get(record.key) == record]
    costs = [found for record in run.retried for found in _check_cost(run.info, record)]
    return [*counted, *costs, *(Mismatch(record.path, "record", "there twice", "there once") for record in copies)]


def _check_summary(run: BenchResults, scored: dict[str, Any] | ValueError) -> list[Mismatch] | None:
    """The differences between ``summary.json`` and the score of the records, or the error in making it."""
    if run.summary_json is None:
        return None
    try:
        claimed = parse_json(run.summary_json)
        if not isinstance(claimed, dict) or not isinstance(claimed.get("splits"), dict):
            raise ValueError("it is no summary")
        if isinstance(scored, ValueError):
            raise scored
        again = json.loads(json.dumps(scored))
    except (ValueError, RecursionError) as error:
        return [Mismatch("summary", "summary.json", "a summary of the records", str(error))]
    versions = [session.get("versions", {}).get("ragen_gym") for session in run.info["sessions"][-1:]]
    if versions != [__version__]:  # which may word its sentences otherwise
        for entry in (*claimed["splits"].values(), *again["splits"].values()):
            if isinstance(entry, dict):
                entry.pop("sentence", None)
    return differences(claimed, again)


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
        same = abs(claimed) <= MOST and math.isclose(claimed, found, rel_tol=_CLOSE, abs_tol=_CLOSE)
    else:
        same = claimed == found
    place, _, name = where.rpartition(".")
    return [] if same else [Mismatch(place or where, name, claimed, found)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]} … {text[-30:]}"
