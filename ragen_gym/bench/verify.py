"""Whether a run is what it claims: every episode is replayed, and the summary is made again from the records.

A record holds what an episode needs: the level by its place in the suite, the seed of its luck, and the replies or
moves. So the game is played again by the package's own rules, and what comes out is compared with what was written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import Reading, Replay, Stage
from ragen_gym.bench.suite import Suite, noise_seed

__all__ = ["Difference", "check_episode", "check_summary", "verify_records"]

_CLOSE = 1e-9


@dataclass(frozen=True)
class Difference:
    """Something that a record claims and the replay denies.

    Attributes:
        where: the episode as ``split/index/rollout``, with ``turn n`` where it is one turn's; or the summary's entry.
        what: the field.
        claimed: what the file says.
        found: what the replay says.
    """

    where: str
    what: str
    claimed: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {_short(self.claimed)} in the file, {_short(self.found)} in the replay"


def verify_records(
    suite: Suite,
    records: Iterable[EpisodeRecord],
    reading: Callable[[Any], Reading] = Reading.of,
) -> Iterator[tuple[EpisodeRecord, list[Difference]]]:
    """Replay records one after the other; each with its differences, none where it is what it claims.

    Args:
        suite: what was played.
        records: its episodes.
        reading: from a split to how its replies are read and paid; the split's own unless the run was rescored.
    """
    stages = {split.name: (Stage(split), reading(split)) for split in suite.splits}
    seen: Counter[tuple[str, int, int]] = Counter()
    for record in records:
        where = name_of(record)
        if record.split not in stages:
            yield record, [Difference(where, "split", record.split, f"one of {', '.join(stages)}")]
            continue
        stage, own = stages[record.split]
        found = check_episode(suite, stage, record, own)
        seen[record.split, record.index, record.rollout] += 1
        if seen[record.split, record.index, record.rollout] == 2:
            found.append(Difference(where, "number of records", "several", 1))
        yield record, found


def check_episode(suite: Suite, stage: Stage, record: EpisodeRecord, reading: Reading) -> list[Difference]:
    """The differences between a record and its replay, in the order of the episode; nothing follows a first false turn.

    An episode that failed is compared up to where it failed.
    """
    where, levels = name_of(record), stage.split.levels
    if not 0 <= record.index < len(levels):
        return [Difference(where, "index", record.index, f"0 to {len(levels) - 1}")]
    found = []

    def compare(what: str, claimed: Any, replayed: Any, place: str = where) -> bool:
        same = math.isclose(claimed, replayed, abs_tol=_CLOSE) if isinstance(replayed, float) else claimed == replayed
        if not same:
            found.append(Difference(place, what, claimed, replayed))
        return same

    compare("level_id", record.level_id, levels[record.index].id)
    compare("noise_seed", record.noise_seed, noise_seed(suite, stage.split, record.index, record.rollout))
    try:
        replay = stage.replay(record, reading)
    except ValueError as error:
        return [*found, Difference(where, "actions", "a game that can be played", str(error))]
    if record.turns:
        compare("system", record.system, replay.system)
    for number, (claimed, turn) in enumerate(zip(record.turns, replay.turns, strict=False), 1):
        place = f"{where} turn {number}"
        compare("message", claimed.message, turn.message, place)
        compare("problem", claimed.problem, turn.reply.problem if turn.reply else None, place)
        if not compare("actions", claimed.actions, turn.actions, place):
            return found
        compare("reward", claimed.reward, turn.reward, place)
    if replay.after:
        found.append(Difference(where, "turns", len(record.turns), len(replay.turns)))
    _compare_end(record, replay, compare)
    return found


def _compare_end(record: EpisodeRecord, replay: Replay, compare: Callable[[str, Any, Any], bool]) -> None:
    compare("total_reward", record.total_reward, replay.total_reward)
    compare("success", record.success, replay.success)
    if record.failure is None:
        compare("terminated", record.terminated, replay.terminated)
        compare("truncated", record.truncated, replay.truncated)
        compare("last_board", record.last_board, replay.last_board)
        if not replay.over:
            compare("end", "the episode came to its end", "the episode goes on")


def check_summary(claimed: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Entries of a summary that differ from one made again, numbers by more than 1e-9."""
    return list(_unlike(claimed, found, "summary"))


def _unlike(claimed: Any, found: Any, where: str) -> Iterator[Difference]:
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*claimed, *found]):
            if name in claimed and name in found:
                yield from _unlike(claimed[name], found[name], f"{where}.{name}")
            else:
                yield Difference(where, name, claimed.get(name, "missing"), found.get(name, "missing"))
    elif isinstance(claimed, list | tuple) and isinstance(found, list | tuple) and len(claimed) == len(found):
        for place, pair in enumerate(zip(claimed, found, strict=True)):
            yield from _unlike(*pair, f"{where}.{place}")
    elif isinstance(claimed, float | int) and isinstance(found, float | int):
        if not math.isclose(claimed, found, rel_tol=_CLOSE, abs_tol=_CLOSE):
            yield Difference(where.rpartition(".")[0], where.rpartition(".")[2], claimed, found)
    elif claimed != found:
        yield Difference(where.rpartition(".")[0], where.rpartition(".")[2], claimed, found)


def name_of(record: EpisodeRecord) -> str:
    """An episode's place: ``split/index/rollout``."""
    return f"{record.split}/{record.index}/{record.rollout}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]} … {text[-30:]}"
