"""Checks of what an environment does while it is played: observations, rewards and exceptions."""

from __future__ import annotations

import math
from typing import Any

from .context import Context, passed
from .protocol import CHECKS, Check, NotApplicable, Outcome, check, literal

__all__ = [
    "action_in_space",
    "observation_in_space",
    "plays",
    "reward_after_end",
    "reward_idle",
]

_IDLE = ("", " ", "\n")  # replies that do nothing


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


CHECKS["process_survives"] = Check(
    "process_survives",
    "error",
    "The environment does not end its process or hang",
    "One episode ends all episodes of a rollout worker.",
    "Raise an exception instead of calling exit, and bound loops that draw until something fits.",
    None,
)
