"""The score of a run: success beside random, blind and optimal play of the same levels.

``score`` gives plain JSON, which a run keeps as ``summary.json``::

    {"suite", "hash", "agent", "overall": {…}, "splits": {name: {…}}}

``overall`` holds means over the splits and sums of what they took; and ``suite_instances`` and ``unasked``, how many
instances the suite has and how many of them no session asked for.

A split's entry holds, of the episodes that count (one that failed for reasons of infrastructure does not):

- ``env``, ``about``, ``published``: as in ``Split``.
- ``instances``, ``played``, ``levels``, ``families``, ``rollouts``: instances of the split; those of which an episode
  counts; how many different levels these are, and of how many families (``ragen_gym.games.game.Game.family``), which
  alone are independent of each other; the most rollouts of one.
- ``seen``: how many of these levels are of a family that the agent saw in training; None where the run has no record
  of that (``ragen_gym.core.seen``).
- ``lacks``: of a text task that draws no random replies or has no oracle, a sentence on which rates are missing for it.
  The entries below that need them are left out, or None.
- ``success``: {rate, low, high, n}, the share of episodes that succeeded, with Wilson's interval, which takes every
  episode as independent.
- ``clustered``: {rate, low, high, n}, the same as a mean over instances (avg@k), with an interval clustered by the
  family of the level. Where ``n`` of ``success`` exceeds ``families``, this is the interval to read.
- ``random``: {rate, low, high, n}, uniformly random moves on the instances played.
- ``blind``: {rate, low, high, n}, the exact chance of success of the game's blind script (``Game.blind``), the mean
  over the instances played; left out where the game has none. A score that it reaches shows no planning.
- ``optimal``: {rate, low, high, n}, the oracle on the same instances and rollouts, with the same transition noise.
- ``optimal_expected``: the oracle's exact chance of success, the mean over the instances played; of a text task, the
  success of its optimal replies in one episode of each.
- ``optimal_as_good``: the probability that optimal play succeeds as often as the agent did. A tiny one is a doubt: the
  agent saw the transition noise to come, or the oracle is wrong.
- ``normalised``: {value, low, high}, ``success`` on the scale from ``random`` (0) to ``optimal`` (1); None where
  optimal play is no better than random play.
- ``above_blind``: {value, low, high}, ``success`` on the scale from ``blind`` (0) to ``optimal`` (1); None where there
  is no blind script, or optimal play is no better.
- ``differs_from_random``, ``sentence``: whether ``random`` lies outside the interval to read, and the same in words.
- ``return``, ``random_return``, ``blind_return``, ``optimal_return``: the mean sum of rewards: the agent's {mean, low,
  high, n}, the means of random play and of the blind script, and the highest that can be expected.
- ``regret``: {mean, low, high, n}, ``optimal_return`` less the agent's, instance by instance.
- ``pass_at``: {k: {rate, low, high, n}}, unbiased pass@k with intervals clustered as above.
- ``malformed``: {rate, n, problems}, the share of replies with a problem, and how many have which; None without
  replies, and of a text task, which alone reads its replies.
- ``common_problem``: {problem, n, cut, episode, turn, reply}, the most frequent of these problems: how many replies
  have it, how many of those were cut by a limit of tokens, and the first of them, its middle left out where it is long;
  None without one.
- ``turns``, ``actions``: their mean number in an episode.
- ``budget``: where replies state budgets, see ``ragen_gym.bench.budgets``.
- ``seconds``: {median, total}, of an answer, and of all episodes, with those that failed.
- ``tokens``: {prompt, completion} of the same episodes; None where nothing is known.
- ``failures``: {kind: number}, and ``excluded``: how many of these are out of the score.
- ``asked``, ``missing``: episodes that the run's sessions asked for, and how many of them there is no record of.
- ``bounds``: {least, most}, the success rate of all episodes asked for if those missing or excluded had all failed, and
  if they had all succeeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ragen_gym.bench.baselines import Baseline, baseline, oracle_episodes
from ragen_gym.bench.budgets import score_budgets
from ragen_gym.bench.records import EpisodeRecord, InstanceCounts, count_by_instance, group_by_split
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.suites import Split, Suite
from ragen_gym.core.stats import (
    Estimate,
    against_random,
    binomial_tail,
    clustered_mean,
    clustered_rate,
    pass_at,
    wilson,
)

SCALES = "normalised", "above_blind"  # of success
_SHOWN = 120  # characters of each end of a long reply that a summary quotes


def score_results(run: BenchResults, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The summary of a run, next to what its sessions asked for; ``progress`` is called after each split."""
    return score(run.suite, run.records, run.agent, run.asked, run.seen, progress)


def score(
    suite: Suite,
    records: Iterable[EpisodeRecord],
    agent: str,
    asked: Mapping[str, Sequence[int]] | None = None,
    seen: Collection[int] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The summary of a run; see the module. Splits of which there is no record, and none was asked for, are left out.

    Args:
        suite: what was played.
        records: the episodes.
        agent: who played.
        asked: for each split how many rollouts of each instance were asked for; None takes the records for all.
        seen: the families of levels that the agent saw in training, or None where that is not known.
        progress: called after each split of the suite.

    Raises:
        ValueError: a record is not of this suite.
        ragen_gym.games.game.NotSolvedError: a board is too hard for the oracle.
    """
    played = {split.name: own for split, own in group_by_split(suite, records)}
    splits, unasked = {}, 0
    for split in suite.splits:
        own, wanted = played.get(split.name, []), (asked or {}).get(split.name, ())
        if own or any(wanted):
            splits[split.name] = _score_split(suite, split, own, seen) | _effort(own) | _asked(own, wanted)
        met = {index for index, number in enumerate(wanted) if number} | {record.index for record in own}
        unasked += len(split.levels) - len(met)
        progress()
    instances = sum(len(split.levels) for split in suite.splits)
    return {
        "suite": suite.name,
        "hash": suite.hash,
        "agent": agent,
        "overall": _overall(list(splits.values())) | {"suite_instances": instances, "unasked": unasked},
        "splits": splits,
    }


def _asked(records: Sequence[EpisodeRecord], wanted: Sequence[int]) -> dict[str, Any]:
    """What was asked for of a split, and between which bounds its success lies."""
    more = sum(not wanted or record.rollout >= wanted[record.index] for record in records)
    asked, solved = sum(wanted) + more, sum(record.success for record in records if record.counted)
    unknown = asked - sum(record.counted for record in records)
    return {
        "asked": asked,
        "missing": asked - len(records),
        "bounds": {"least": solved / asked, "most": (solved + unknown) / asked},
    }


def _score_split(
    suite: Suite, split: Split, records: Sequence[EpisodeRecord], seen: Collection[int] | None
) -> dict[str, Any]:
    counts = count_by_instance(split, records)
    family_of = dict(zip(counts.levels, counts.families, strict=True))
    about: dict[str, Any] = {
        "env": split.env,
        "about": split.about,
        "published": dict(split.published),
        "instances": len(split.levels),
        "played": len(counts.indices),
        "levels": len(set(counts.levels)),
        "rollouts": int(counts.rollouts.max(initial=0)),
        "families": len(set(counts.families)),
        "seen": None if seen is None else sum(family in seen for family in family_of.values()),
    }
    replies = _replies(counts.episodes, reads=not split.is_task)
    if not counts.episodes:  # only failures of the infrastructure: nothing is known
        nothing = {"rate": None, "low": 0.0, "high": 1.0, "n": 0}
        return {**about, "success": nothing, **replies}
    scored = {**about, **_success(suite, split, counts), **_rewards(split, counts), **_passes(counts), **replies}
    if split.turn_config.budget and not split.is_task and (budget := score_budgets(split, counts.episodes)):
        scored["budget"] = budget
    return scored


def _success(suite: Suite, split: Split, counts: InstanceCounts) -> dict[str, Any]:
    env, expected = split.make_env(), baseline(split)
    successes, n = int(counts.successes.sum()), int(counts.rollouts.sum())
    success = wilson(successes, n)
    clustered = clustered_rate(counts.successes / counts.rollouts, counts.families, n)
    random = _random(expected, counts)
    optimal = _optimal(suite, split, counts)
    scored: dict[str, Any] = {"success": success.to_dict("rate"), "clustered": clustered.to_dict("rate")}
    if env.missing_rates:
        scored["lacks"] = env.missing_rates
    if random is not None:
        scored["random"] = random.to_dict("rate")
    blind = None
    if expected.blind_success is not None:
        chances = expected.blind_success[counts.indices]
        blind = wilson(float(chances.sum()), len(chances))
        scored["blind"] = blind.to_dict("rate")
    if optimal is not None and expected.optimal_success is not None:
        scored["optimal"] = optimal.to_dict("rate")
        scored["optimal_expected"] = float(expected.optimal_success[counts.indices].mean())
        chance = float(np.average(expected.optimal_success[counts.indices], weights=counts.rollouts))
        scored["optimal_as_good"] = binomial_tail(successes, n, chance)
    scored["normalised"] = _normalised(success, random.value, optimal.value) if random and optimal else None
    scored["above_blind"] = _normalised(success, blind.value, optimal.value) if blind and optimal else None
    if random is not None:
        read = clustered if n > len(set(counts.families)) else success
        scored["differs_from_random"], scored["sentence"] = against_random(read, random.value)
    return scored


def _random(expected: Baseline, counts: InstanceCounts) -> Estimate | None:
    if expected.random_success is None:
        return None
    rollouts = expected.random_rollouts
    successes = round(rollouts * float(expected.random_success[counts.indices].sum()))
    return wilson(successes, rollouts * len(counts.indices))


def _optimal(suite: Suite, split: Split, counts: InstanceCounts) -> Estimate | None:
    solved = 0
    for record in counts.episodes:
        played = oracle_episodes(suite, split, record.rollout)
        if played is None:
            return None
        solved += played[record.index].success
    return wilson(solved, len(counts.episodes))


def _normalised(success: Estimate, zero: float, optimal: float) -> dict[str, float] | None:
    """Success on the scale from the rate ``zero`` (0) to optimal play (1)."""
    if optimal <= zero:
        return None
    ends = ("value", success.value), ("low", success.low), ("high", success.high)
    return {name: (rate - zero) / (optimal - zero) for name, rate in ends}


def _rewards(split: Split, counts: InstanceCounts) -> dict[str, Any]:
    expected = baseline(split)
    rewards: dict[str, Any] = {"return": clustered_mean(counts.returns, counts.families).to_dict("mean")}
    if expected.random_return is not None:
        rewards["random_return"] = float(expected.random_return[counts.indices].mean())
    if expected.blind_return is not None:
        rewards["blind_return"] = float(expected.blind_return[counts.indices].mean())
    if expected.optimal_return is not None:
        best = expected.optimal_return[counts.indices]
        rewards["optimal_return"] = float(best.mean())
        rewards["regret"] = clustered_mean(best - counts.returns, counts.families).to_dict("mean")
    return rewards


def _passes(counts: InstanceCounts) -> dict[str, Any]:
    most = int(counts.rollouts.max())
    passes = {}
    for k in sorted({*(2**i for i in range(most.bit_length())), most}):
        enough = counts.rollouts >= k
        families = [family for family, kept in zip(counts.families, enough, strict=True) if kept]
        rollouts, successes = counts.rollouts[enough], counts.successes[enough]
        rate = clustered_rate(pass_at(successes, rollouts, k), families, int(rollouts.sum()))
        passes[str(k)] = rate.to_dict("rate")
    return {"pass_at": passes}


def _replies(episodes: Sequence[EpisodeRecord], *, reads: bool) -> dict[str, Any]:
    """How the agent answered in the episodes that count; ``reads``: whether anybody but a text task reads replies."""
    if not episodes:
        return {"malformed": None, "common_problem": None, "turns": None, "actions": None}
    problems = [turn.problem for record in episodes for turn in record.turns if reads and turn.reply is not None]
    found = Counter(str(problem) for problem in problems if problem is not None)
    rate = found.total() / max(len(problems), 1)
    malformed = {"rate": rate, "n": len(problems), "problems": dict(sorted(found.items()))}
    return {
        "malformed": malformed if problems else None,
        "common_problem": _common_problem(episodes, found.most_common(1)[0][0]) if found else None,
        "turns": float(np.mean([len(record.turns) for record in episodes])),
        "actions": float(np.mean([record.moves for record in episodes])),
    }


def _common_problem(episodes: Sequence[EpisodeRecord], problem: str) -> dict[str, Any]:
    """How many replies have a problem, and the first of them."""
    having = [(each, turn) for each in episodes for turn, one in enumerate(each.turns) if one.problem == problem]
    record, turn = having[0]
    reply = record.turns[turn].reply or ""
    if len(reply) > 2 * _SHOWN:
        reply = f"{reply[:_SHOWN]} … {reply[-_SHOWN:]}"
    cut = sum(each.turns[place].finish_reason in ("length", "max_reply") for each, place in having)
    return {"problem": problem, "n": len(having), "cut": cut, "episode": record.path, "turn": turn, "reply": reply}


def _effort(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """What all episodes took, with those that failed."""
    turns = [turn for record in records for turn in record.turns]
    prompt = [turn.prompt_tokens for turn in turns if turn.prompt_tokens is not None]
    completion = [turn.completion_tokens for turn in turns if turn.completion_tokens is not None]
    failures = Counter(str(record.failure) for record in records if record.failure is not None)
    return {
        "seconds": {
            "median": float(np.median([turn.seconds for turn in turns])) if turns else None,
            "total": float(sum(record.seconds for record in records)),
        },
        "tokens": {"prompt": sum(prompt), "completion": sum(completion)} if prompt or completion else None,
        "failures": dict(sorted(failures.items())),
        "excluded": sum(not record.counted for record in records),
    }


def _overall(splits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over splits, each as heavy as the next, and sums of what they took."""
    rates = [split["success"]["rate"] for split in splits if split["success"]["rate"] is not None]
    tokens = [split["tokens"] for split in splits if split["tokens"] is not None]
    return {
        "success": _mean(rates),
        **{scale: _mean([split[scale]["value"] for split in splits if split.get(scale)]) for scale in SCALES},
        "episodes": sum(split["success"]["n"] for split in splits),
        **{name: sum(split[name] for split in splits) for name in ("excluded", "asked", "missing")},
        "bounds": {end: _mean([split["bounds"][end] for split in splits]) for end in ("least", "most")},
        "seconds": sum(split["seconds"]["total"] for split in splits),
        "tokens": {kind: sum(t[kind] for t in tokens) for kind in ("prompt", "completion")} if tokens else None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
