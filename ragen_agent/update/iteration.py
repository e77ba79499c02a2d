"""One iteration's episodes: scores, filter, advantages and record.

``ragen_agent.run.loop`` makes an ``Iteration`` of the episodes played. The policy is updated on ``Iteration.rows`` with
``Iteration.groups.advantages``; ``Iteration.figures`` and ``Iteration.episode_records`` are written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import ADVANTAGE_RULES, FILTER_STATISTICS, GROUPINGS
from ragen_agent.tokens.rollout_tree import own_tokens
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.advantages import task_scale, turn_advantages, weighted, with_turn_advantages
from ragen_agent.update.metrics import reply_figures
from ragen_agent.update.shaping import budget_rewards, overlong, shaped, with_rewards
from ragen_gym.core.failures import Failure, failure_kind

RECORDED = 2  # episodes of each iteration that are always recorded


class ScoredGroups(NamedTuple):
    """The compared episodes of an iteration, one row per group."""

    advantages: Tensor
    """float (groups, group size), by the rule ``Training.algo``; unused with a critic."""
    kept: Tensor
    """bool (groups, group size): the episodes that the filter keeps. Failed ones are never kept."""
    return_std: Tensor
    """float (groups,): the standard deviation of the returns."""


def undecided(played: Sequence[Trajectory], settings: Training) -> Tensor:
    """The first ``Training.groups`` groups with different returns in the game, int64 (up to groups,).

    Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) trains on these alone, and plays further levels, in at most
    ``Training.refills`` rounds, to replace the others.
    """
    shape = (-1, settings.group_size)
    counted = torch.tensor([t.failure is None for t in played]).view(shape)
    std = algo.group_std(torch.tensor([t.total_reward for t in played]).view(shape), counted)
    return (std > 0).nonzero().flatten()[: settings.groups]


def score(
    trajectories: Sequence[Trajectory],
    settings: Training,
    seed: int = 0,
    chosen: Tensor | None = None,
    games: Sequence[str] | None = None,
) -> ScoredGroups:
    """Compares the episodes of each group, which are adjacent.

    ``seed`` seeds a random filter, ``chosen``, int64, are the groups that the filter chooses from, None for all, and
    ``games`` the game of each group, which only rules that compare within a game need.
    """
    shape = (-1, settings.group_size)
    returns = torch.tensor([t.total_reward for t in trajectories]).view(shape)
    counted = torch.tensor([t.failure is None for t in trajectories]).view(shape)
    return_std = algo.group_std(returns, counted)
    filtered_by = resolve_name(FILTER_STATISTICS[settings.filter_statistic].function)(returns, counted)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.arange(len(filtered_by)) if chosen is None else chosen
    groups = torch.zeros_like(filtered_by, dtype=torch.bool)
    groups[chosen] = algo.keep_groups(filtered_by[chosen], settings.filter_rule, settings.keep, generator)
    advantages = algo.normalised(returns, "arpo" if settings.critic else settings.algo, counted=counted, games=games)
    return ScoredGroups(advantages, groups[:, None] & counted, return_std)


def teaches_nothing(groups: ScoredGroups, settings: Training, learned: Sequence[Trajectory] = ()) -> bool:
    """True if no kept episode has a non-zero advantage.

    Only kept episodes enter the loss: without an advantage among them, a step would follow the entropy bonus and the KL
    term alone. A critic's advantages only need an episode, not differences within groups. ``learned``: the episodes, if
    their turns are compared.
    """
    if settings.critic:
        return not bool(groups.kept.any())
    if GROUPINGS[settings.groups_by].turns:
        kept = groups.kept.flatten().tolist()
        return not any(any(turn_advantages(t)) for t, keep in zip(learned, kept, strict=True) if keep)
    if ADVANTAGE_RULES[settings.algo].compares_groups:
        return not bool(groups.return_std[groups.kept.any(1)].any())
    return not bool(groups.advantages[groups.kept].any())


@dataclass(frozen=True)
class Iteration:
    """The episodes of one iteration, scored and filtered; the episodes of a group are adjacent."""

    number: int  # from 0
    played: Sequence[Trajectory]  # with the environment's rewards
    #: with the rewards for learning, see ``overlong`` and ``shaped``, and the advantages of their turns, if
    #: ``Training.groups_by`` compares them
    learned: Sequence[Trajectory]
    games: Sequence[str]  # the game of each group
    groups: ScoredGroups  # advantages, filter and weights
    stagnant: bool  # see ``teaches_nothing``
    counts: Mapping[str, float]  # of dynamic sampling and overlong shaping, see figures
    settings: Training
    past_entropies: Sequence[float] = ()  # ``entropy_sampled`` of the iterations before, nats a token

    @classmethod
    def score_and_filter(
        cls,
        number: int,
        played: Sequence[Trajectory],
        games: Sequence[str],
        settings: Training,
        seed: int,
        limit: int | None = None,
        past_entropies: Sequence[float] = (),
    ) -> Iteration:
        """Scores and filters episodes.

        ``seed`` seeds a random filter. ``limit`` is ``turns.max_tokens_per_turn``, needed by overlong shaping, and
        ``past_entropies`` the ``entropy_sampled`` of the iterations before. With ``Training.refills`` there may be more
        groups than ``Training.groups``: see ``undecided``.
        """
        counts: dict[str, float] = {}
        learned, chosen = list(played), None
        if settings.overlong_buffer:
            assert limit is not None, "overlong shaping is before a limit"
            costs = overlong(learned, settings, limit)
            counts["overlong"] = _mean([cost < 0 for turns in costs for cost in turns])
            learned = with_rewards(learned, costs)
        if settings.budget_reward:
            stated = budget_rewards(learned, settings)
            whole = [sum(turns) for t, turns in zip(played, stated, strict=True) if t.failure is None]
            counts["budget_reward"] = _mean(whole)
            learned = with_rewards(learned, stated)
        if settings.refills:
            chosen = undecided(played, settings)
            counts |= {"refilled": len(games) - settings.groups, "lacking": settings.groups - len(chosen)}
        groups = score(learned, settings, seed, chosen, games)
        learned = shaped(learned, settings)  # after the filter, which ranks groups by their unshaped returns
        learned = with_turn_advantages(learned, groups.advantages, settings)
        stagnant = teaches_nothing(groups, settings, learned)
        return cls(number, played, learned, games, groups, stagnant, counts, settings, past_entropies)

    @property
    def kept(self) -> list[int]:
        """The episodes that the filter keeps, as indices."""
        rows: list[int] = self.groups.kept.flatten().nonzero().flatten().tolist()
        return rows

    @cached_property
    def own_tokens(self) -> list[NDArray[np.bool_]]:
        """The sampled tokens of each episode that no episode before it holds, bool (T,) each."""
        return own_tokens(self.played, self.settings.branches)

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens; those that the branches of a tree share count once."""
        return sum(int(each.sum()) for each in self.own_tokens)

    @property
    def entropy_sampled(self) -> float:
        """The rollouts' entropy by sampling, in nats a token: minus the mean log-prob of the sampled tokens."""
        whole = [t for t in self.played if t.failure is None]
        surprise = -sum(float(t.log_probs.sum(dtype="float64")) for t in whole)
        return surprise / max(1, sum(int(t.sampled.sum()) for t in whole))

    @property
    def average_entropy(self) -> float:
        """The mean entropy of the run's rollouts so far, in nats a token, for ``Training.entropy_smoothing``."""
        return _mean([*self.past_entropies, self.entropy_sampled])

    @property
    def rows(self) -> list[int]:
        """Indices of the episodes to update on: the kept ones, or none if they teach nothing."""
        return [] if self.stagnant else self.kept

    @property
    def update_on(self) -> tuple[list[Trajectory], Tensor]:
        """The episodes of ``rows``, and their advantages, float (rows,); both weighted, see ``weighted``."""
        episodes, advantages = [self.learned[row] for row in self.rows], self.groups.advantages.flatten()[self.rows]
        return weighted(episodes, advantages, self.task_scale, self.settings)

    @property
    def task_scale(self) -> float:
        """Factor of all advantages, from 0 to 1: see ``ragen_agent.update.advantages.task_scale``."""
        return task_scale(int(self.groups.kept.any(1).sum()), self.settings)

    def figures(self, piece: Callable[[int], str] | None) -> dict[str, Any]:
        """Figures of the episodes, under the keys of ``metrics.jsonl``; ``piece`` gives the text of a token id.

        ``return_std`` is the mean return std of all groups, ``return_std_kept`` and ``return_std_dropped`` of the kept
        and the dropped ones; ``groups`` holds of each group its return std and 1 if the filter keeps it, else 0.
        ``overflowed`` counts the episodes cut by ``turns.max_tokens_per_episode``; they are truncated, and learned
        from. It and ``failures`` count an episode once that stands in several places of a tree. With dynamic sampling,
        ``refilled`` counts the levels played beyond ``Training.groups`` to replace decided ones, and ``lacking`` the
        decided levels without a replacement, which the update lacks; ``success`` counts all episodes. With overlong
        shaping, ``overlong`` is the share of penalised replies; with stated budgets, ``budget_reward`` is the mean of
        their rewards over the episodes.
        """
        whole = [t for t in self.played if t.failure is None]
        distinct = {id(t): t for t in self.played}.values()
        kinds = Counter(failure_kind(t.failure) for t in distinct if t.failure is not None)
        kept, std = self.groups.kept.any(1), self.groups.return_std
        return {
            "success": _mean([t.success for t in whole]),
            **self._success_by_game(),
            "return": _mean([t.total_reward for t in self.played if t.failure is None]),
            "return_std": float(std.mean()),
            "return_std_kept": float(std[kept].mean()) if bool(kept.any()) else 0.0,
            "return_std_dropped": float(std[~kept].mean()) if bool((~kept).any()) else 0.0,
            "groups": [[round(value, 6), int(keep)] for value, keep in zip(std.tolist(), kept.tolist(), strict=True)],
            "kept": len(self.kept),
            "kept_share": float(kept.float().mean()),
            "failed": kinds.total(),
            "failures": {str(kind): kinds[kind] for kind in Failure if kinds[kind]},
            "overflowed": sum(t.overflowed for t in distinct if t.failure is None),
            "entropy_sampled": self.entropy_sampled,
            **self.counts,
            **reply_figures(self.learned, piece, self.own_tokens),
        }

    def episode_records(
        self, noise_seeds: Sequence[int | None], advantages: Sequence[Sequence[float]] = ()
    ) -> dict[int, dict[str, Any]]:
        """The episodes to record, by index: the first ones, and the best and worst of the most uncertain kept group.

        That group has the largest return std among the kept. A record also holds the noise seed, for replay, None
        for an episode that no one seed replays, whether the filter kept the episode, and the advantages of its sampled
        tokens if it was learned from: ``advantages`` of the episodes ``rows``, none where nothing was.
        """
        rows, size = list(range(min(RECORDED, len(self.played)))), self.groups.kept.shape[1]
        if kept := self.kept:
            returns = [t.total_reward for t in self.played]
            best = max(sorted({row // size for row in kept}), key=self.groups.return_std.tolist().__getitem__)
            mine = [row for row in kept if row // size == best]
            rows += [max(mine, key=returns.__getitem__), min(mine, key=returns.__getitem__)]
        used = dict(zip(self.rows, advantages, strict=False))
        return {
            row: {
                "phase": "train",
                "iteration": self.number,
                **self.played[row].to_dict(),
                "noise_seed": noise_seeds[row],
                "kept": row in kept,
                **({"advantages": [round(a, 4) for a in used[row]]} if row in used else {}),
            }
            for row in dict.fromkeys(rows)
        }

    def _success_by_game(self) -> dict[str, float]:
        """The success in each game of a mixture with at least one finished episode."""
        if len(set(self.games)) < 2:
            return {}
        players = np.repeat(self.games, self.groups.kept.shape[1])
        of: dict[str, list[bool]] = {}
        for trajectory, game in zip(self.played, players, strict=True):
            if trajectory.failure is None:
                of.setdefault(str(game), []).append(trajectory.success)
        return {f"success/{game}": _mean(wins) for game, wins in sorted(of.items())}


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
