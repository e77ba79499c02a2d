"""Groups of episodes that branch from each other: several replies from every state that a group reaches.

A tree is full: with ``branches`` (4, 2), four replies are drawn at the start, and two from each state after them. Its
leaves are the episodes of a group, in order, so that neighbours share their first replies. It is grown turn by turn: an
episode that branches at a turn plays the replies before it again, with their noise, and goes on with noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ragen_agent.tokens.rollout import Instance, PastReply
from ragen_agent.tokens.trajectory import Trajectory


def grow(
    instances: Sequence[Instance],
    branches: Sequence[int],
    play: Callable[[list[Instance], int], list[Trajectory]],
) -> list[Trajectory]:
    """Episodes in the order of the instances; one that ends before it branches stands in each of its places.

    Args:
        instances: the product of ``branches`` of each level, adjacent, each with a noise seed of its own unless all
            episodes of the level shall meet the same noise.
        branches: replies drawn from each state of turn 1, 2, ...; one after the last.
        play: plays the episodes that branch at a turn, counted from 0; with random numbers of its own for each turn.
    """
    found: dict[int, Trajectory] = {}
    past: dict[int, list[PastReply]] = {}  # while a later turn branches: as lists they take more than the episodes
    sharing = prod(branches)  # episodes with the same replies before this turn
    for turn, branch in enumerate(branches):
        parents = {
            row: row - row % sharing
            for row in range(0, len(instances), sharing // branch)
            if turn == 0 or row % sharing
        }
        # An episode that failed in this turn has reached the state at its start, from which the others go on.
        ended = {row for row, before in past.items() if len(before) < turn + (found[row].failure is None)}
        over = {row: parent for row, parent in parents.items() if parent in ended}
        begun = {row: past[parent][:turn] if turn else [] for row, parent in parents.items() if row not in over}
        played = play([replace(instances[row], past=before) for row, before in begun.items()], turn) if begun else []
        for (row, before), episode in zip(begun.items(), played, strict=True):
            found[row] = episode
            if sharing > branch:
                past[row] = [*before, *_replies(episode, instances[row].noise_seed)[turn:]]
        for row, parent in over.items():
            found[row], past[row] = found[parent], past[parent]
        sharing //= branch
    return [found[row] for row in range(len(instances))]


def own_tokens(episodes: Sequence[Trajectory], branches: Sequence[int]) -> list[NDArray[np.bool_]]:
    """The sampled tokens of each episode that no episode before it holds, bool (T,) each.

    Args:
        episodes: of groups that were grown, one after another.
        branches: see ``grow``; empty if no episodes branch, so that all sampled tokens are an episode's own.
    """
    found = []
    for row, episode in enumerate(episodes):
        own = episode.sampled.copy()
        if shared := _shared_turns(row, branches):
            own[: episode.turn_ends[shared - 1] + 1 if shared <= len(episode.turn_ends) else None] = False
        found.append(own)
    return found


def replay_seeds(
    episodes: Sequence[Trajectory], instances: Sequence[Instance], branches: Sequence[int]
) -> list[int | None]:
    """The noise seed of all turns of each episode; None for one that met the noise of several.

    The arguments are those of ``grow`` and what it returned; ``branches`` may be empty, as for ``own_tokens``.
    """
    found: dict[int, int | None] = {}
    for row, (episode, instance) in enumerate(zip(episodes, instances, strict=True)):
        first = instances[row - row % prod(branches)]
        alone = not _shared_turns(row, branches) or instance.noise_seed == first.noise_seed
        found.setdefault(id(episode), instance.noise_seed if alone else None)
    return [found[id(episode)] for episode in episodes]


def _shared_turns(row: int, branches: Sequence[int]) -> int:
    """Number of first turns of an episode that one before it in its group holds."""
    sharing, shared = prod(branches), 0
    while row % sharing:
        sharing //= branches[shared]
        shared += bool(row % sharing)
    return shared


def _replies(episode: Trajectory, noise_seed: int) -> list[PastReply]:
    """The replies of the turns that an episode played, without the reply that it failed in."""
    ends = episode.sampled.cumsum()[list(episode.turn_ends)]
    ids, log_probs = (np.split(part[episode.sampled], ends)[:-1] for part in (episode.ids, episode.log_probs))
    return [PastReply(said.tolist(), p.tolist(), noise_seed) for said, p in zip(ids, log_probs, strict=True)]
