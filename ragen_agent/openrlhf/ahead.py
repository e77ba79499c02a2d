"""Playing ahead of training (``openrlhf.staleness``): who plays when, and what it saves, by simulation.

With a staleness of s the engines play iteration n + s while the models train on iteration n: its episodes come from the
weights after n updates, and are trained on when there are n + s. The weights are sent out between two iterations' play,
never during one, so all episodes of an iteration come from the same weights, and staleness is exactly s from iteration
s on (less where an iteration updated nothing). That is what OpenRLHF's asynchronous trainer does with a queue of s
iterations, whose staleness is s at most; its loops are not used, since they know no filter, no reason to stop and no
evaluation of ours.

``Training.correction`` makes up for the older weights, with the log-probs that the engines noted: PPO's ratio is to the
policy before the update, and a truncated weight leads there from the one that sampled (decoupled PPO: AReaL, arXiv
2505.24298).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from statistics import median
from typing import Any, Generic, TypeVar

__all__ = ["Phases", "PlayAhead", "Played", "Split", "describe_gain", "splits"]

T = TypeVar("T")

GPUS = 8  # that a gain is simulated for


@dataclass(frozen=True)
class Played(Generic[T]):
    """What an iteration played, and how long that took."""

    found: T
    seconds: float


class PlayAhead(Generic[T]):
    """Plays iterations in their order, up to ``staleness`` of them ahead; at most one at a time.

    Args:
        play: plays an iteration; called in another thread, but for a staleness of 0.
        end: one past the last iteration.
        staleness: at least 0.
    """

    def __init__(self, play: Callable[[int], T], end: int, staleness: int) -> None:
        self._play, self._end, self._staleness = play, end, staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._begun: dict[int, Future[Played[T]]] = {}

    def take(self, iteration: int) -> Played[T]:
        """What an iteration played; before it waits for that, it sees to it that those ahead are played too.

        Raises:
            Exception: what ``play`` raised.
        """
        if not self._staleness:
            return self._timed(iteration)
        first = max(self._begun, default=iteration - 1) + 1
        for number in range(first, min(iteration + self._staleness + 1, self._end)):
            self._begun[number] = self._thread.submit(self._timed, number)
        return self._begun.pop(iteration).result()

    def wait(self) -> None:
        """Returns when nothing is being played."""
        wait(self._begun.values())

    def close(self) -> None:
        """Plays nothing further, and returns when nothing is being played; what was played ahead is dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._begun.clear()

    def _timed(self, iteration: int) -> Played[T]:
        began = time.monotonic()
        return Played(self._play(iteration), time.monotonic() - began)


@dataclass(frozen=True)
class Phases:
    """Seconds of the parts of an iteration, in the median over a run's iterations."""

    play: float  # all episodes
    update: float  # scores of the models and steps of the optimiser
    send: float  # the weights, to the engines

    @classmethod
    def measured(cls, records: Sequence[Mapping[str, Any]]) -> Phases | None:
        """Those of the lines of ``metrics.jsonl`` of a run with OpenRLHF; None where none of them updated anything."""
        whole = [record for record in records if "seconds_synchronise" in record]
        if not whole:
            return None
        return cls(
            median(record["seconds_rollout"] for record in whole),
            median(record["seconds_score"] + record["seconds_train"] for record in whole),
            median(record["seconds_synchronise"] for record in whole),
        )


@dataclass(frozen=True)
class Split:
    """Seconds of an iteration where some GPUs play and the rest train."""

    playing: int
    training: int
    in_turn: float
    ahead: float


def splits(phases: Phases, playing: int, training: int, gpus: int) -> list[Split]:
    """What an iteration would take on ``gpus`` GPUs, however they are divided, from what it took on others.

    The model: playing and updating are divided evenly among their GPUs, so that twice as many take half as long;
    sending the weights takes as long as it did. In turn, an iteration is play + update + send. Ahead, it is
    max(play, update) + send: the engines are idle while weights arrive, and the slower side sets the pace. What the
    model leaves out makes the saving smaller (the longest episode of an iteration does not get shorter with more
    GPUs) or larger (iterations that differ).

    Args:
        phases: measured.
        playing: GPUs that played then.
        training: GPUs that trained then.
        gpus: at least 2.

    Returns:
        One row for each way to divide them, 1 playing GPU first.
    """
    found = []
    for players in range(1, gpus):
        play = phases.play * playing / players
        update = phases.update * training / (gpus - players)
        both = (play + update + phases.send, max(play, update) + phases.send)
        found.append(Split(players, gpus - players, *both))
    return found


def describe_gain(phases: Phases, playing: int, training: int) -> list[str]:
    """The simulation in sentences: the best division played in turn and ahead, and all GPUs shared."""
    found = splits(phases, playing, training, GPUS)
    turn, ahead = min(found, key=lambda row: row.in_turn), min(found, key=lambda row: row.ahead)
    shared = (phases.play * playing + phases.update * training) / GPUS + phases.send
    return [
        f"Measured, in the median iteration: {phases.play:.2f} s playing on {playing}, {phases.update:.2f} s scoring "
        f"and training on {training}, {phases.send:.2f} s sending the weights.",
        f"Simulated for {GPUS} GPUs, if work divides evenly among them: in turn {turn.in_turn:.2f} s an iteration "
        f"({turn.playing} play, {turn.training} train); ahead (openrlhf.staleness=1) {ahead.ahead:.2f} s "
        f"({ahead.playing} play, {ahead.training} train), {turn.in_turn / ahead.ahead:.2f} times as fast.",
        f"All {GPUS} shared in turn (openrlhf.colocate) would take {shared:.2f} s, if models moved on and off the GPUs "
        "in no time and the longest episode shrank with the number of engines: how far neither is so is what playing "
        "ahead can gain over that.",
    ]
