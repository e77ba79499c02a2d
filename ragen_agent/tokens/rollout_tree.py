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
        over = {row: parent for row, parent in parents.items() if turn and len(past[parent]) <= turn}
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
    found, size = [], prod(branches)
    for row, episode in enumerate(episodes):
        sharing, shared = size, 0  # turns that an earlier episode holds
        while row % sharing:
            sharing //= branches[shared]
            shared += bool(row % sharing)
        own = episode.sampled.copy()
        if shared:
            own[: episode.turn_ends[shared - 1] + 1 if shared <= len(episode.turn_ends) else None] = False
        found.append(own)
    return found


def _replies(episode: Trajectory, noise_seed: int) -> list[PastReply]:
    """The replies of an episode; none of one that failed."""
    if episode.failure is not None:
        return []
    before = episode.sampled.cumsum()[list(episode.turn_ends)][:-1]
    ids, log_probs = (np.split(part[episode.sampled], before) for part in (episode.ids, episode.log_probs))
    return [PastReply(said.tolist(), p.tolist(), noise_seed) for said, p in zip(ids, log_probs, strict=True)]
