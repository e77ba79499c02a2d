"""Small decision processes of which everything is known: every episode with its chance, so that values are plain sums.

What is right is said by definition alone, without any recursion over time: the value V of a prefix is the mean return
of the episodes that begin with it, and a perfect critic says just that before each sampled token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import CREDITS
from ragen_agent.tokens.trajectory import Trajectory

Discount = Callable[[int, int, int], float]
"""By which a reward is discounted: from the token that the return is of, the token that it stands at, and the turns
between them; tokens are counted as they are sampled."""


@dataclass(frozen=True)
class Episode:
    """Its pieces are (observation, reply) a turn; a token's id says which choice it is."""

    chance: float
    turns: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    rewards: tuple[float, ...]

    @property
    def ids(self) -> list[int]:
        return [token for seen, said in self.turns for token in (*seen, *said)]

    @property
    def sampled(self) -> list[bool]:
        return [flag for seen, said in self.turns for flag in [False] * len(seen) + [True] * len(said)]

    @property
    def ends(self) -> list[int]:
        lengths = [len(seen) + len(said) for seen, said in self.turns]
        return [sum(lengths[: turn + 1]) - 1 for turn in range(len(lengths))]

    @property
    def starts(self) -> list[int]:
        """The first sampled token of each turn."""
        return [end + 1 - len(said) for end, (_, said) in zip(self.ends, self.turns, strict=True)]


GOOD, BAD, END = 10, 11, 1  # the first token of a reply decides, the last one decides nothing


def two_turns(chance_of_good: float = 0.5, luck: bool = False) -> list[Episode]:
    """Two turns, each with a good reply that earns 1 and a bad one, longer, that earns 0.

    With ``luck`` the second observation is a rich or a poor one, evenly, and a good reply earns 3 or 1 after it.
    """
    replies = {True: (GOOD, END), False: (BAD, 12, END)}
    prizes = {20: 3.0, 21: 1.0} if luck else {20: 1.0}
    episodes = []
    for (first, second), (seen, prize) in product(product((True, False), repeat=2), prizes.items()):
        chance = 1 / len(prizes)
        for good in (first, second):
            chance *= chance_of_good if good else 1 - chance_of_good
        turns = (((0,), replies[first]), ((seen, 22), replies[second]))
        episodes.append(Episode(chance, turns, (float(first), prize * second)))
    return episodes


def bandit() -> list[Episode]:
    """One pull: the safe arm pays 1/4, the risky one 1 or 0 evenly. Both are pulled as often."""
    pulls = [(0.5, GOOD, 0.25), (0.25, BAD, 1.0), (0.25, BAD, 0.0)]
    return [Episode(chance, (((0,), (arm, END)),), (paid,)) for chance, arm, paid in pulls]


def returns(episode: Episode, discount: Discount) -> dict[int, float]:
    """The return from each sampled token on, by its index."""
    places = [place for place, flag in enumerate(episode.sampled) if flag]
    found = {}
    for number, place in enumerate(places):
        turn = sum(end < place for end in episode.ends)
        found[place] = sum(
            discount(number, places.index(end), later - turn) * reward
            for later, (end, reward) in enumerate(zip(episode.ends, episode.rewards, strict=True))
            if later >= turn
        )
    return found


class Known:
    """Mean returns of a process: of a prefix, hence of a state (V) or of an action in it (Q)."""

    def __init__(self, episodes: Sequence[Episode], discount: Discount = lambda *_: 1.0) -> None:
        self.episodes = list(episodes)
        self._returns = [returns(episode, discount) for episode in self.episodes]

    def mean_return(self, prefix: Sequence[int], place: int) -> float:
        """From the token at ``place`` on, of the episodes that begin with ``prefix``."""
        rows = [row for row, episode in enumerate(self.episodes) if episode.ids[: len(prefix)] == list(prefix)]
        weights = [self.episodes[row].chance for row in rows]
        return sum(w * self._returns[row][place] for w, row in zip(weights, rows, strict=True)) / sum(weights)

    def value(self, ids: Sequence[int], place: int) -> float:
        """V before the token at ``place`` is sampled."""
        return self.mean_return(ids[:place], place)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """V before each sampled token, float64 (episodes, T), 50 elsewhere; and ``sampled``."""
        width = max(len(episode.ids) for episode in self.episodes)
        values = torch.full((len(self.episodes), width), 50.0, dtype=torch.float64)
        sampled = torch.zeros(values.shape, dtype=torch.bool)
        for row, episode in enumerate(self.episodes):
            for place, flag in enumerate(episode.sampled):
                if flag:
                    sampled[row, place] = True
                    values[row, place] = self.value(episode.ids, place)
        return values, sampled


def trajectory_of(episode: Episode) -> Trajectory:
    """The record of an episode, as a rollout makes it."""
    sampled = np.array(episode.sampled)
    return Trajectory(
        ids=np.array(episode.ids, np.int64),
        sampled=sampled,
        log_probs=np.where(sampled, -0.5, 0).astype(np.float32),
        turn_ends=tuple(episode.ends),
        turn_rewards=episode.rewards,
        terminated=True,
        seed=0,
    )


def whitened_credit(credit: str, lam: float) -> tuple[list[Episode], Known, list[list[float]]]:
    """Good and bad replies in two turns, evenly: episodes as ``credit`` has them, a perfect critic of them, and right.

    What is right stands at each sampled token, whitened as the trainers whiten: over turns, where their tokens share
    an advantage, and over tokens otherwise. With lambda 1 it is the return less V; with lambda 0, of whole turns,
    1/2 for a good reply and -1/2 for a bad one. By single tokens with lambda 0 there is no such number.
    """
    plain = Known(two_turns())
    by_turn = CREDITS[credit].recursion == "turns"
    assert lam == 1 or by_turn
    right: list[list[float]] = []
    compared: list[float] = []
    for episode in plain.episodes:
        row = [0.0] * len(episode.ids)
        for turn, (start, end) in enumerate(zip(episode.starts, episode.ends, strict=True)):
            for place in range(start, end + 1):
                row[place] = sum(episode.rewards[turn:]) - plain.value(episode.ids, start if by_turn else place)
                if not lam:
                    row[place] = 0.5 if episode.ids[start] == GOOD else -0.5
            compared += [row[end]] if by_turn else row[start : end + 1]
        right.append(row)
    mean, std = fmean(compared), stdev(compared)
    white = [
        [(x - mean) / std if flag else 0.0 for x, flag in zip(row, episode.sampled, strict=True)]
        for row, episode in zip(right, plain.episodes, strict=True)
    ]
    episodes = shaped(plain.episodes) if CREDITS[credit].shaped else plain.episodes
    return episodes, Known(episodes), white


KNOWN_CREDIT = [*((credit, 1.0) for credit in CREDITS), ("turn", 0.0), ("regret", 0.0)]
"""The credits and lambdas of ``whitened_credit``."""


def credit_settings(credit: str, lam: float) -> Training:
    """Without any discount."""
    by_turn: dict[str, Any] = {} if CREDITS[credit].recursion == "tokens" else {"gamma_turn": 1.0}
    return Training(algo="ppo", credit=credit, gae_lambda=lam, **by_turn)


def shaped(episodes: Sequence[Episode], gamma_turn: float = 1.0) -> list[Episode]:
    """The two turns as credit ``regret`` has them: the potential is the most that can be earned from a turn on."""
    prizes: dict[tuple[int, ...], float] = {}
    for episode in episodes:
        seen = episode.turns[1][0]
        prizes[seen] = max(prizes.get(seen, 0.0), episode.rewards[1])
    before = 1 + gamma_turn * sum(prizes.values()) / len(
        prizes
    )  # the first turn; the second observation is drawn evenly
    changed = []
    for episode in episodes:
        potentials = [before, prizes[episode.turns[1][0]]]
        rewards = algo.shaped_rewards(episode.rewards, potentials, gamma_turn)
        changed.append(replace(episode, rewards=tuple(rewards)))
    return changed
