"""The episodes of a run by split and by instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.suite import Split, Suite

__all__ = ["Tally", "by_split", "tally"]


@dataclass(frozen=True)
class Tally:
    """What counts of the episodes of a split, by instance.

    Attributes:
        indices: the instances with an episode that counts, in order, integers (played,).
        levels: the id of the level of each, (played,).
        rollouts: how many of its episodes count, from 1 on, integers (played,).
        successes: how many of these succeeded, integers (played,).
        returns: mean sum of their rewards, floats (played,).
        episodes: all episodes that count.
    """

    indices: npt.NDArray[np.intp]
    levels: tuple[str, ...]
    rollouts: npt.NDArray[np.intp]
    successes: npt.NDArray[np.intp]
    returns: npt.NDArray[np.float64]
    episodes: tuple[EpisodeRecord, ...]


def by_split(suite: Suite, records: Iterable[EpisodeRecord]) -> list[tuple[Split, list[EpisodeRecord]]]:
    """The records of each split that has any, in the order of the suite; of several of one rollout, the last.

    Raises:
        ValueError: a record is not of this suite.
    """
    last = {(record.split, record.index, record.rollout): record for record in records}
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


def tally(records: Sequence[EpisodeRecord]) -> Tally:
    """Count the episodes of a split."""
    episodes = tuple(record for record in records if record.counted)
    indices, first, which = np.unique(
        np.array([record.index for record in episodes], np.intp), return_index=True, return_inverse=True
    )
    rollouts = np.bincount(which, minlength=len(indices))
    totals = np.bincount(which, [record.total_reward for record in episodes], len(indices))
    return Tally(
        indices=indices,
        levels=tuple(episodes[i].level_id for i in first),
        rollouts=rollouts,
        successes=np.bincount(which, [record.success for record in episodes], len(indices)).astype(np.intp),
        returns=totals / np.maximum(rollouts, 1),
        episodes=episodes,
    )
