"""Losses: the pivot of each lost episode, the kind of mistake there, and what chance explains.

By the exact values of ``ragen_gym.games.values``, of the probability of success: an episode's outcome is the optimum at
its start less the regret of its moves plus what chance added. So of a lost episode, whose outcome is 0, the optimum at
the start is regret and chance, and over many episodes the share of chance is 1 - sum(regret) / sum(optimum).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import ReplayedEpisode, Replayer
from ragen_gym.bench.results import BenchResults
from ragen_gym.games.game import PLAYING, Game, Solution
from ragen_gym.games.values import TOLERANCE, TurnValue, pivot

#: What happens at a pivot, from the worst on. A game may have better words: ``Game.mistakes``.
KINDS: dict[str, str] = {
    "fatal": "ends the game",
    "unsolvable": "makes the level unsolvable",
    "risk": "takes a worse chance",
    "waste": "wastes moves",
    "malformed": "replies malformed, which forfeits moves",
    "short": "names too few moves, which forfeits the rest",
    "chance": "transition noise alone, without a mistake",
    "hopeless": "could not be won from the start",
}


@dataclass(frozen=True)
class Loss:
    """Place at which an episode was lost."""

    kind: str  # a key of ``KINDS``
    turn: int  # of the pivot, from 0
    move: int | None  # of the pivot within the turn, from 0; None where the turn as a whole gave moves away
    played: int  # moves played before the pivot
    optimum: float  # the highest probability of success at the start
    regret: float  # that the moves gave away of it, in all


def kind_name(game: Game, kind: str) -> str:
    """A kind of mistake in words, the game's own where it has them."""
    return game.mistakes.get(kind, KINDS[kind])


def find_loss(replayer: Replayer, replay: ReplayedEpisode) -> Loss | None:
    """Loss of a replayed episode; None where it was won, has no end, or values are unknown."""
    values = [turn.value for turn in replay.turns]
    known = [value for value in values if value is not None]
    if replay.success or not replay.over or not known or len(known) != len(values) or isnan(known[0].before.success):
        return None
    steps = [step for turn, value in enumerate(known) for step in _steps(turn, value)]
    optimum, regret = known[0].before.success, sum(value.regret.success for value in known)
    if optimum <= TOLERANCE:
        return Loss("hopeless", 0, None, 0, 0.0, 0.0)
    found = pivot([(lost, after) for _, _, lost, after in steps])
    if found is None:
        return None
    turn, move, lost, _ = steps[found]
    played = sum(len(value.moves) for value in known[:turn]) + (len(known[turn].moves) if move is None else move)
    return Loss(_kind(replayer, replay, turn, move, lost), turn, move, played, optimum, regret)


def _steps(turn: int, value: TurnValue) -> list[tuple[int, int | None, float, float]]:
    """(turn, move or None for what the turn forfeits, regret, V* after) of each step of a turn."""
    now, steps = value.before.success, list[tuple[int, int | None, float, float]]()
    for place, move in enumerate(value.moves):
        now += move.chance.success - move.regret.success
        steps.append((turn, place, move.regret.success, now))
    if value.forfeited.success > TOLERANCE:
        steps.append((turn, None, value.forfeited.success, value.after.success))
    return steps


def _kind(replayer: Replayer, replay: ReplayedEpisode, turn: int, move: int | None, lost: float) -> str:
    replayed = replay.turns[turn]
    if move is None:
        return "malformed" if replayed.problem else "short"
    if lost <= TOLERANCE:
        return "chance"
    if replayed.moves[move].over:
        return "fatal"
    game = replayer.env.game
    board = game.parse(replayed.moves[move].board, replayer.env.vocabulary)
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    if game.solve(board).winnable(board, state) is False:
        return "unsolvable"
    return "risk" if game.stochastic else "waste"


def oracle_line(game: Game, solution: Solution, board: bytes, left: int) -> list[int]:
    """Oracle's moves from a state on, as if every move went where it is meant to."""
    cells, state = bytearray(board), game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    line: list[int] = []
    while left > len(line):
        line.append(solution.action(cells, state, left - len(line)))
        if game.rule(cells, state, line[-1], 0.0, game.params)[1] != PLAYING:
            break
    return line


@dataclass(frozen=True)
class Losses:
    """Losses of a split."""

    lost: int  # episodes that were lost
    placed: int  # of which the pivot is known
    kinds: dict[str, int]  # how many of those have which kind of pivot, the most frequent first
    moves: float | None  # the median number of moves played before the pivot
    #: the share of what was possible at the start that chance took, not the agent: 1 - sum(regret) / sum(optimum); None
    #: where nothing was possible
    chance: float | None


def losses_of(replayer: Replayer, records: Iterable[EpisodeRecord]) -> Losses:
    """Losses of a split: the records that count, played again."""
    lost = [record for record in records if record.counted and not record.success]
    found = [loss for record in lost if (loss := find_loss(replayer, replayer.replay(record))) is not None]
    optimum, regret = sum(loss.optimum for loss in found), sum(loss.regret for loss in found)
    placed = [loss for loss in found if loss.kind != "hopeless"]
    return Losses(
        len(lost),
        len(found),
        dict(Counter(loss.kind for loss in found).most_common()),
        float(np.median([loss.played for loss in placed])) if placed else None,
        min(1.0, max(0.0, 1 - regret / optimum)) if optimum > TOLERANCE else None,
    )


def losses_by_split(
    runs: Sequence[BenchResults], replayers: Mapping[str, Replayer]
) -> Iterator[tuple[str, int, Losses]]:
    """(split, index of the run, its losses) of games with exact values, where an episode was lost, split by split.

    Args:
        runs: of one suite.
        replayers: by split, with ``valued``.
    """
    for name, replayer in replayers.items():
        for place, run in enumerate(runs):
            if not replayer.split.is_task and replayer.env.game.has_values:
                found = losses_of(replayer, [record for record in run.records if record.split == name])
                if found.lost:
                    yield name, place, found
