"""Checks of episodes: observations, rewards, exceptions, right answers, and levels that two seeds or splits share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .context import Context, passed
from .protocol import CHECKS, Check, NotApplicable, Outcome, check, literal

_IDLE = ("", " ", "\n")  # replies that do nothing
_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared


@check(
    "error",
    "Vector environments and networks are sized by the space: they cut, overflow or fail.",
    "Declare the space with the dtype, shape and limits that observations have.",
)
def observation_in_space(context: Context) -> Outcome:
    """Observations lie in the declared space."""
    space = context.make().observation_space
    if not hasattr(space, "contains"):
        raise NotApplicable("no observation space is declared")
    count = 0
    for seed, first, steps in context.played:
        for place, observation in enumerate([first, *(step.observation for step in steps)]):
            count += 1
            if not space.contains(observation):
                raise context.fault(
                    f"seed {seed}: the observation after {place} actions is not in {str(space)[:80]}",
                    f"e = new(); o = [start(e, {seed})] + [act(e, a)[0] for a in {literal(context.actions(seed, place))}]",
                    "assert e.observation_space.contains(o[-1])",
                )
    return passed(f"{count} observations lie in their space")


@check(
    "error",
    "A collapsed policy that answers nothing still scores, and training moves towards it.",
    "Give no reward to an empty or malformed reply.",
)
def reward_idle(context: Context) -> Outcome:
    """An empty reply earns nothing."""
    env = context.make()
    if not isinstance(context.actions(0, 1)[0], str):
        raise NotApplicable("the actions are not texts, so that no action that does nothing is known")
    best: tuple[float, str, int] = (-math.inf, "", 0)
    for action in _IDLE:
        for seed in context.within_time(context.some_seeds(8)):
            total = 0.0
            env.reset(context.seed(seed))
            for _ in range(context.steps):
                try:
                    step = env.step(action)
                except Exception:  # refused, which is as good as nothing
                    break
                total += float(step.reward)
                if step.done:
                    break
            best = max(best, (total, action, seed), key=lambda each: each[0])
    total, action, seed = best
    if total > 0:
        raise context.fault(
            f"the reply {action!r} alone earns {total:g} on seed {seed}",
            f"e = new(); start(e, {seed}); a = act(e, {action!r})",
            f"for _ in range({context.steps - 1}): a = a if a[2] else (a[0], a[1] + act(e, {action!r})[1], *a[2:])",
            "assert a[1] <= 0",
        )
    return passed(f"an empty reply earns at most {total:g}")


@check(
    "warning",
    "A loop that misses the end adds rewards of an episode that is over.",
    "Refuse actions until the next reset, as gymnasium.wrappers.OrderEnforcing does before the first.",
)
def reward_after_end(context: Context) -> Outcome:
    """Actions after the end earn nothing."""
    if all(len(steps) == 1 and steps[0].done for _, _, steps in context.played):
        raise NotApplicable("every episode is one action, which is scored alone")
    ended = ((seed, steps) for seed, _, steps in context.played if steps and steps[-1].done)
    seed, steps = next(ended, (None, []))
    if seed is None:
        raise NotApplicable(f"no episode ended within {context.steps} random actions")
    actions, env = context.actions(seed), context.make()
    context.episode(env, context.seed(seed), actions)
    for later in actions[:8]:
        try:
            reward = float(env.step(later).reward)
        except Exception:  # refused, as it should be
            return passed("an action after the end is refused")
        if reward > 0:
            raise context.fault(
                f"seed {seed}: the action {later!r} after the end earns {reward:g}",
                f"e = new(); start(e, {seed}); [act(e, a) for a in {literal(actions[: len(steps)])}]",
                f"a = [act(e, x)[1] for x in {literal(actions[:8])}]",
                "assert max(a) <= 0",
            )
    return passed("actions after the end earn nothing")


@check(
    "error",
    "One exception in thousands of episodes ends a run, or quietly removes the episodes that raise from the score.",
    "Handle every action that the environment itself offers, and every seed.",
)
def plays(context: Context) -> Outcome:
    """Seeds and actions play without an exception."""
    env = context.make()
    for seed in context.within_time([*context.some_seeds(), 2**31 - 1]):
        played: list[Any] = []
        try:
            env.reset(context.seed(seed))
            for action in context.actions(seed):
                played.append(action)
                if env.step(action).done:
                    break
        except NotApplicable:
            raise
        except Exception as error:
            what = f"action {len(played)}" if played else "reset"
            raise context.fault(
                f"seed {seed}: {what} raises {type(error).__name__}: {str(error)[:200]}",
                f"e = new(); start(e, {context.seed(seed)})",
                f"[act(e, a) for a in {literal(played)}]  # raises",
            ) from error
    return passed(f"{context.tried} episodes were played without an exception")


@check(
    "error",
    "A policy that samples from the space ends the run with an exception.",
    "Handle every action of the space, or declare a smaller one.",
)
def action_in_space(context: Context) -> Outcome:
    """Every action of the declared space is taken."""
    count = 0
    env = context.make()
    if not hasattr(env.action_space, "contains"):
        raise NotApplicable("no action space is declared")
    for seed in context.within_time(context.some_seeds(8)):
        for action in env.actions() or context.actions(seed, 8):
            env.reset(context.seed(seed))
            count += 1
            if not env.action_space.contains(action):
                raise context.fault(
                    f"the action {action!r} is offered, and is not in {env.action_space}",
                    f"e = new(); start(e, {seed})",
                    f"assert e.action_space.contains({literal(action)})",
                )
            try:
                env.step(action)
            except Exception as error:
                raise context.fault(
                    f"the action {action!r} of the space raises {type(error).__name__}: {error}",
                    f"e = new(); start(e, {seed})",
                    f"act(e, {literal(action)})  # raises",
                ) from error
    return passed(f"{count} actions of the space are taken")


@check(
    "error",
    "A right answer is scored as wrong, and the best possible score is out of reach.",
    "Play the answer of each question or level when it is generated.",
)
def answers_right(context: Context) -> Outcome:
    """The environment's own answers earn the best score."""
    env = context.make()
    env.reset(context.some_seeds(2)[1])
    if env.oracle() is None:
        raise NotApplicable("the environment has no answers of its own")
    worst: tuple[float, Any, Any] = (float("inf"), None, None)
    for seed in context.within_time(context.some_seeds()):
        env.reset(seed)
        answer = env.oracle() or []
        total = float(sum(float(env.step(action).reward) for action in answer))
        worst = min(worst, (total, seed, answer), key=lambda each: each[0])
    total, seed, answer = worst
    if total < 1:
        raise context.fault(
            f"the environment's own answer earns {total:g} on seed {seed}",
            f"e = new(); start(e, {seed}); a = [act(e, x) for x in {answer!r}]",
            "assert sum(x[1] for x in a) >= 1",
        )
    return passed(f"the environment's own answer earns {total:g} or more on {context.tried} seeds")


@check(
    "error",
    "The test measures memory of training levels.",
    "Decide the split by a hash of the level, not by the seed, and draw again what falls on the other side.",
)
def split_exact(context: Context) -> Outcome:
    """Training and test share no level."""
    if not context.target.takes_seed:
        raise NotApplicable("reset takes no seed, so that no level can be drawn again")
    if context.train and context.test:
        (train_seeds, train), (test_seeds, test) = context.train, context.test
        where = "the seeds and options that were given"
    elif declared := context.target.splits():
        (train, test), train_seeds, test_seeds = declared, range(_TRAIN), range(_TEST)
        where = f"{_options(train)} and {_options(test)}"
    else:
        raise NotApplicable("the target declares no splits: give --train and --test")
    known = _levels(context, train_seeds, 2, **train)
    asked = _levels(context, test_seeds, 1, **test)
    shared = _shared(known, asked)
    if shared:
        raise context.fault(
            f"{len(shared)} of {len(asked)} levels of the test are among {len(known)} of training ({where})",
            *_alike(context, *shared[0], train, test),
        )
    return passed(f"none of {len(asked)} levels of the test is among {len(known)} of training ({where})")


@check(
    "warning",
    "Without a declared split, training and test are ranges of seeds, and these levels are in both.",
    "Declare splits by the level's hash, or say how many levels there are and how they are to be divided.",
)
def levels_repeat(context: Context) -> Outcome:
    """Seeds far apart give different levels."""
    context.need_repeats()
    if context.stochastic and not context.target.separate_noise:
        raise NotApplicable("the dynamics are stochastic, so that a beginning does not tell its level from others")
    first = _levels(context, range(_TRAIN), 2)
    far = _levels(context, range(_APART, _APART + _TEST), 1)
    shared = _shared(first, far)
    if not shared:
        return passed(f"{len(far)} seeds from {_APART} on give no level of the first {len(first)} seeds")
    if context.train or context.target.splits():
        return passed("seeds repeat levels, and the target declares splits; see the checks of them")
    raise context.fault(
        f"{len(shared)} of {len(far)} seeds from {_APART} on begin and go on as one of the first {len(first)} seeds does "
        f"({len({*first.values()})} distinct levels among these); there is no split",
        *_alike(context, *shared[0], {}, {}),
    )


CHECKS["process_survives"] = Check(
    "process_survives",
    "error",
    "The environment does not end its process or hang",
    "One episode ends all episodes of a rollout worker.",
    "Raise an exception instead of calling exit, and bound loops that draw until something fits.",
    None,
)


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _levels(context: Context, seeds: Iterable[int], parts: int, **options: Any) -> dict[int, str]:
    """The levels by seed, each as ``Context.whole_level`` tells it."""
    env = context.make(**options)
    return {seed: context.whole_level(env, seed) for seed in context.within_time(seeds, parts)}


def _shared(known: dict[int, str], asked: dict[int, str]) -> list[tuple[int, int]]:
    """Pairs of seeds that give one level; raises NotApplicable where all levels are one."""
    if len({*known.values(), *asked.values()}) == 1:
        raise NotApplicable("the beginnings of all episodes are alike, so that levels cannot be distinguished")
    seeds = {level: seed for seed, level in reversed(known.items())}
    return [(seeds[level], seed) for seed, level in asked.items() if level in seeds]


def _alike(context: Context, first: int, second: int, one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Evidence that two levels are one: they begin alike and, without noise, go on alike under fixed actions."""
    env = context.make(**one)
    played = [] if context.stochastic else context.episode(env, first, context.actions(0))[1]
    return [
        f"play = lambda e, s: (start(e, s), [act(e, a) for a in {literal(context.actions(0)[: len(played)])}])",
        f"a, b = play(new({_options(one)}), {first}), play(new({_options(two)}), {second})",
        "assert repr(a) != repr(b)",
    ]
