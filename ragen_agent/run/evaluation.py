"""Success on fixed levels, with 95 % intervals: a model, random replies, a blind script, optimal play, a demonstrator.

All play the same levels under the same budgets of turns and actions, one episode a level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ragen_agent.config import Config
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import SeedStream, derive_seed, make_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory, without_failed
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.envs.policies import blind_value, play_turns, random_reply, random_value
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv

MAX_TRIES = 20  # resets for each level wanted
MOST_STATES = 30_000  # of a level that random play is computed exactly on: some 0.1 seconds


def rate_of_played(played: Sequence[Trajectory]) -> Rate:
    """The rate over the episodes that did not fail; raises a ValueError if all failed."""
    whole = without_failed(played)
    failed, overflowed = len(played) - len(whole), sum(t.overflowed for t in whole)
    return wilson(sum(t.success for t in whole), len(whole), failed=failed, overflowed=overflowed)


def fixed_instances(env: ReplyEnv, count: int) -> list[Instance]:
    """The first ``count`` distinct levels by seed 0, 1, 2, ...: the same for every run and every player.

    A game with fewer levels in the split, as the bandits have, meets them again with other noise.
    """
    distinct: dict[str, int] = {}
    for seed in range(MAX_TRIES * count):
        _, info = env.reset(seed=seed)
        distinct.setdefault(info["level_id"], seed)
        if len(distinct) == count:
            break
    seeds = list(distinct.values())
    return [Instance(seeds[i % len(seeds)], i) for i in range(count)]


def evaluated_levels(config: Config) -> tuple[ReplyEnv, list[Instance]]:
    """The environment that a run is measured in, and its fixed levels; raises as ``make_env``."""
    env = make_env(config, config.evaluation.split)
    return env, fixed_instances(env, config.evaluation.levels)


def baseline_notices(env: ReplyEnv, instances: Sequence[Instance]) -> list[str]:
    """Sentences: where the split has fewer levels than episodes, and of rates that ``baselines`` cannot tell."""
    levels = len({instance.seed for instance in instances})
    few = f"Only {levels} different levels were found for these {len(instances)} episodes."
    return [*[few] * (levels < len(instances)), *filter(None, [env.missing_rates])]


def validation_settings(config: Config) -> Config:
    """A run's settings whose evaluation is its validation: fixed levels of the split ``validation``."""
    levels = config.stops.validation_levels
    return replace(config, evaluation=replace(config.evaluation, split="validation", levels=levels))


def scripted_rate(
    env: ReplyEnv, instances: list[Instance], reply: Callable[[Any, np.random.Generator], str], seed: int
) -> Rate:
    """The rate of a player that writes its replies by a function of the environment."""
    rng = np.random.default_rng(seed)
    successes = 0
    for instance in instances:
        env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        successes += bool(play_turns(env, lambda env: reply(env, rng))["success"])
    return wilson(successes, len(instances))


def optimal_rate(env: ReplyEnv, instances: list[Instance]) -> Rate:
    """The oracle's exact chance of success within the budget of actions, averaged over the levels.

    Where the dynamics are random this is a bound: the oracle looks after every action, a player only after every
    answer. In a text task it is the rate of the task's ``optimal_reply``.
    """
    if isinstance(env, TaskEnv):
        return scripted_rate(env, instances, lambda task, rng: task.optimal_reply(), 0)
    assert isinstance(env, TurnEnv)
    return _exact_rate(env, instances, lambda: env.solution().success(*env.env.state, env.actions_left))


def blind_rate(env: TurnEnv, instances: list[Instance]) -> Rate:
    """The exact chance of success of the game's blind script, which like the oracle looks after every action."""
    return _exact_rate(env, instances, lambda: blind_value(env.env, env.actions_left)[0])


def random_rate(env: ReplyEnv, instances: list[Instance]) -> Rate:
    """The chance of success of random replies, averaged over the levels: exact where the game has exact values.

    Of another game, of a text task, and where a level has too many states for that, the rate of one episode a level. A
    reply has as many moves as a turn allows.
    """
    if isinstance(env, TurnEnv) and env.game.has_values:
        with suppress(OverflowError):
            return _exact_rate(env, instances, lambda: random_value(env.env, env.actions_left, MOST_STATES)[0])
    return scripted_rate(env, instances, random_reply, derive_seed(0, SeedStream.BASELINES))


def _exact_rate(env: TurnEnv, instances: list[Instance], chance: Callable[[], float]) -> Rate:
    chances = []
    for instance in instances:
        env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        chances.append(chance())
    return wilson(float(sum(chances)), len(chances))


def baselines(env: ReplyEnv, instances: list[Instance]) -> dict[str, Rate]:
    """Random replies (``random``), the ``blind`` script and ``optimal`` play: the same numbers for every run and model.

    Of a game without a blind script not that one; of a text task only those that it can tell, and
    ``baseline_notices`` says which are left out.
    """
    rates = {}
    if env.has_random_replies:
        rates["random"] = random_rate(env, instances)
    if isinstance(env, TurnEnv) and env.has_blind:
        rates["blind"] = blind_rate(env, instances)
    if env.has_oracle:
        rates["optimal"] = optimal_rate(env, instances)
    return rates


def play_fixed(
    policy: Policy,
    instances: list[Instance],
    display: Display | None = None,
    *,
    repetition: int = 0,
    processes: Sequence[TokenMDP] = (),
    numbers: Sequence[int] | None = None,
    over: Callable[[Mapping[int, Trajectory]], None] = lambda played: None,
) -> list[Trajectory]:
    """The policy's episodes on the fixed levels, at the temperature of evaluation; sampled alike for every run.

    A ``display`` shows the progress; within another phase there is none. Each ``repetition`` is of the same levels with
    transition and sampling noise of its own, so that means over several have less of it. ``processes`` are the
    policy's, where the caller has them already; for ``numbers`` and ``over`` see ``ragen_agent.tokens.rollout.play``.
    """
    settings, seed = policy.config.evaluation, derive_seed(0, SeedStream.EVALUATION, repetition)
    if repetition:
        instances = [replace(each, noise_seed=each.noise_seed + repetition * len(instances)) for each in instances]
    processes = processes or policy.processes(settings.split, min(settings.batch, len(instances)))
    if display is None:
        return policy.play(processes, instances, settings.temperature, seed, over, numbers)

    def report(played: Mapping[int, Trajectory]) -> None:
        over(played)
        display.update(len(played))

    with display.progress("evaluation", len(instances if numbers is None else numbers)):
        return policy.play(processes, instances, settings.temperature, seed, report, numbers)
