"""Scores of stated budgets against exact truth: the entry ``budget`` of a split whose replies state them.

Two truths stand side by side. ``optimal`` is the distribution of the moves to go under optimal play from the state in
which a budget was stated, exact. ``own`` is what the agent's own play came to: the moves until its success, or none.
A reply that states no budget counts as the interval of every number, which says nothing. The entry holds

- ``stated``: {rate, n}, the share of replies with a budget.
- ``optimal``, ``own``: each {``coverage``: {rate, low, high, n}, the probability of the moves to go in the interval,
  for which ``COVERAGE`` was asked; ``score``: {mean, low, high, n}, the interval score in moves, lower is better;
  ``constant`` and ``clock``: {score, excess: {mean, low, high, n}}, the best constant interval in hindsight, one for
  all statements and one for each number of moves left, and the score above it, negative where the agent is better;
  ``brier``: {mean, low, high, n}, of ``impossible`` as a forecast of no success, 0 or 1}.
- ``width``: {mean, low, high, n} of the intervals in moves; ``impossible`` has width 0.
- ``impossible``: {said, lost, precision, recall, at_pivot}: statements that say it, statements in a lost state, their
  overlap as a share of each, and recall at an episode's first lost state, where it began or after the move that lost
  it. A rate without a statement is None. A state is lost where an honest optimal player would say ``impossible``: it
  cannot be won in the moves left, or on slippery ice with less than the chance (1 - ``COVERAGE``) / 2.
- ``stopping``: if the agent had stopped where it first said ``impossible``: {episodes, replies, replies_of_failed,
  tokens, successes_lost}: in how many episodes, the share saved of all replies, of those of failed episodes, of all
  tokens (None if unknown), and the share of all episodes that succeeded after it. In ``budget-v1`` a reply is a move.
- ``optimism``: of statements of an interval in episodes that failed: {n, not_seeing, chance, not_planning}, which add
  up to 1: the share in lost states, and of the others what chance did and what the agent's later moves gave away of
  the optimum (the sum of their regret, at most 1); None for a game without exact values.

All intervals are clustered by the family of the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.suites import Split
from ragen_gym.core.stats import clustered_mean, clustered_rate
from ragen_gym.envs.budget import IMPOSSIBLE, Budget, Chances, covered, honest_budget, interval_score, within
from ragen_gym.envs.policies import moves_to_go
from ragen_gym.envs.turn import make_turn

_Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statement:
    """A reply's budget beside what is true of the state in which it was stated."""

    family: int  # of the level
    episode: int  # place of the episode among those scored
    left: int  # moves left before the reply
    budget: Budget | None  # None where the reply states none
    optimal: Chances  # moves to go under optimal play
    own: Chances  # moves to go as they were played: 1 at one number
    tokens: int | None  # of the reply, as counted by the agent
    regret: float  # that the reply gave away of the highest chance of success; NaN where that is unknown

    @property
    def counted(self) -> Budget:
        """The budget, or the interval of every number."""
        return (0, self.left + 1) if self.budget is None else self.budget

    @property
    def impossible(self) -> bool:
        """True if the whole interval lies above the moves left."""
        return within(self.counted, self.left)[0] > self.left

    @property
    def lost(self) -> bool:
        """True if ``impossible`` is the honest statement of optimal play."""
        return honest_budget(self.optimal) == IMPOSSIBLE


def statements_of(split: Split, episodes: Sequence[EpisodeRecord]) -> list[Statement]:
    """The statements of recorded episodes, each replayed; moves of a ``StepAgent`` state nothing."""
    env, found = split.make_game(), list[Statement]()
    if env.game.has_values:
        sizes = split.one_of_each_size
        env = make_turn(split.env, split.turn_config, levels=sizes, regret=True, **split.env_options)
    known: dict[Any, Chances] = {}
    for place, record in enumerate(episodes):
        split.begin(env, record.index, record.noise_seed)
        to_go = record.moves
        for turn in record.turns:
            if turn.reply is None or env.over:
                break
            left = env.actions_left
            state = record.level_id, *env.env.state, left
            if state not in known:
                known[state] = moves_to_go(env.env, left)
            own = np.zeros(left + 2)
            own[to_go if record.success else left + 1] = 1.0
            budget = env.parse(turn.reply).budget
            family = split.families[record.index]
            info = env.step(turn.reply)[4]
            regret = info["turn_value"].regret.success if "turn_value" in info else nan
            found.append(Statement(family, place, left, budget, known[state], own, turn.completion_tokens, regret))
            to_go -= len(turn.actions)
    return found


def score_budgets(split: Split, episodes: Sequence[EpisodeRecord]) -> dict[str, Any] | None:
    """The entry of a split; see the module. None without a reply."""
    said = statements_of(split, episodes)
    if not said:
        return None
    families = [each.family for each in said]
    stated, widths = [each.budget is not None for each in said], [within(each.counted, each.left) for each in said]
    return {
        "stated": {"rate": float(np.mean(stated)), "n": len(said)},
        "optimal": _against(said, [each.optimal for each in said], families),
        "own": _against(said, [each.own for each in said], families),
        "width": clustered_mean([high - low for low, high in widths], families).to_dict("mean"),
        "impossible": _impossible(said),
        "stopping": _stopping(said, episodes),
        "optimism": _optimism(said, episodes),
    }


def _against(said: Sequence[Statement], truth: Sequence[Chances], families: Sequence[int]) -> dict[str, Any]:
    scores = np.array([interval_score(each.counted, chances) for each, chances in zip(said, truth, strict=True)])
    hits = [covered(each.counted, chances) for each, chances in zip(said, truth, strict=True)]
    missed = [1 - c[-1] if each.impossible else c[-1] for each, c in zip(said, truth, strict=True)]
    entry: dict[str, Any] = {
        "coverage": clustered_rate(hits, families, len(hits)).to_dict("rate"),
        "score": clustered_mean(scores, families).to_dict("mean"),
        "brier": clustered_mean(missed, families).to_dict("mean"),
    }
    for name, groups in (("constant", [0] * len(said)), ("clock", [each.left for each in said])):
        best = best_constants(truth, groups)
        excess = clustered_mean(scores - best, families)
        entry[name] = {"score": float(best.mean()), "excess": excess.to_dict("mean")}
    return entry


def best_constants(truth: Sequence[Chances], groups: Sequence[int]) -> _Scores:
    """The score of each statement if those of a group all stated the interval that is best for the group.

    The score is a sum of a function of the low end and one of the high end, so each end is chosen by itself.
    """
    scores, most = np.zeros(len(truth)), max(map(len, truth))
    for group in set(groups):
        own = [place for place, each in enumerate(groups) if each == group]
        low = np.array([[interval_score((end, most), truth[place]) for end in range(most)] for place in own])
        high = np.array([[interval_score((0, end), truth[place]) for end in range(most)] for place in own])
        ends = int(low.mean(0).argmin()), int(high.mean(0).argmin())
        scores[own] = [interval_score(ends, truth[place]) for place in own]
    return scores


def _rate(statements: Sequence[Statement], hits: Sequence[bool]) -> dict[str, float | None] | None:
    if not statements:
        return None
    return clustered_rate(np.array(hits, float), [each.family for each in statements], len(hits)).to_dict("rate")


def _impossible(said: Sequence[Statement]) -> dict[str, Any]:
    says, lost = [each for each in said if each.impossible], [each for each in said if each.lost]
    first = {each.episode: each for each in reversed(lost)}
    return {
        "said": len(says),
        "lost": len(lost),
        "precision": _rate(says, [each.lost for each in says]),
        "recall": _rate(lost, [each.impossible for each in lost]),
        "at_pivot": _rate([*first.values()], [each.impossible for each in first.values()]),
    }


def _stopping(said: Sequence[Statement], episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    first = {each.episode: at for at, each in reversed([*enumerate(said)]) if each.impossible}
    saved = [each for at, each in enumerate(said) if at >= first.get(each.episode, len(said))]
    failed = [each for each in said if not episodes[each.episode].success]
    tokens = [each.tokens for each in said]
    known = [each for each in tokens if each is not None]
    lost = sum(episodes[episode].success for episode in first)
    return {
        "episodes": len(first),
        "replies": len(saved) / len(said),
        "replies_of_failed": sum(not episodes[each.episode].success for each in saved) / len(failed)
        if failed
        else None,
        "tokens": sum(each.tokens or 0 for each in saved) / sum(known)
        if len(known) == len(said) and any(known)
        else None,
        "successes_lost": lost / len(episodes),
    }


def _optimism(said: Sequence[Statement], episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    hopeful = [at for at, each in enumerate(said) if not each.impossible and not episodes[each.episode].success]
    if not hopeful or any(isnan(each.regret) for each in said):
        return {"n": len(hopeful), "not_seeing": None, "chance": None, "not_planning": None}
    later, total = [0.0] * len(said), 0.0
    for at in reversed(range(len(said))):
        if at + 1 < len(said) and said[at + 1].episode != said[at].episode:
            total = 0.0
        total += said[at].regret
        later[at] = total
    lost = float(np.mean([said[at].lost for at in hopeful]))
    planning = float(np.mean([0.0 if said[at].lost else min(1.0, later[at]) for at in hopeful]))
    return {"n": len(hopeful), "not_seeing": lost, "chance": 1 - lost - planning, "not_planning": planning}
