"""Checks of what an environment says while it is played: observations, rewards, info and masks."""

from __future__ import annotations

import math
from typing import Any

from .context import Context, passed
from .protocol import SUCCESS, AuditedEnv, NotApplicable, Outcome, check, key, literal

__all__ = [
    "info_success",
    "mask_matches",
    "observation_aliased",
    "observation_in_space",
    "reward_after_end",
    "reward_constant",
    "reward_finite",
    "reward_idle",
    "reward_random",
]

_NOISES = 24  # noises under which an action must change nothing before a mask of 1 is called wrong
_EASY = 0.6  # a share of episodes that succeed, above which play teaches little
_GOOD = 0.5  # what a text answer must earn to count as right
_SHOWN = "(the observation itself)"


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
    shown: list[tuple[int, list[Any], Any]] = [(seed, [], first) for seed, first, _ in context.played]
    shown += [(seed, actions, step.observation) for seed, actions, _, step in context.transitions()]
    for seed, actions, observation in shown:
        if not space.contains(observation):
            raise context.fault(
                f"seed {seed}: the observation after {len(actions)} actions is not in {str(space)[:80]}",
                f"e = new(); o = [start(e, {seed})] + [act(e, a)[0] for a in {literal(actions)}]",
                "assert e.observation_space.contains(o[-1])",
            )
    return passed(f"{len(shown)} observations lie in their space")


@check(
    "error",
    "Replay buffers hold one array many times: every stored observation is the last one.",
    "Return a copy of the array.",
)
def observation_aliased(context: Context) -> Outcome:
    """An observation stays as it was given."""
    env, seed = context.make(), 3
    observation, _ = env.reset(context.seed(seed))
    if isinstance(observation, (str, int, float, bytes)):
        return passed("observations are immutable")
    kept = [(observation, key(observation))]
    actions = context.actions(seed)
    for place, action in enumerate(actions):
        step = env.step(action)
        for at, (old, before) in enumerate(kept):
            if key(old) != before:
                raise context.fault(
                    f"observation {at} of seed {seed} changes when action {place + 1} is played",
                    f"import copy; e = new(); o = start(e, {seed})",
                    f"a = [(x, copy.deepcopy(x)) for x in [o] + [act(e, a)[0] for a in {literal(actions[:at])}]][-1]; "
                    f"[act(e, x) for x in {literal(actions[at : place + 1])}]",
                    "assert repr(a[0]) == repr(a[1])",
                )
        kept.append((step.observation, key(step.observation)))
        if step.done:
            break
    return passed(f"{len(kept)} observations stay as they were given")


@check("error", "One NaN ends a training run, or spoils it silently.", "Return a float, and check divisions.")
def reward_finite(context: Context) -> Outcome:
    """Rewards are finite numbers."""
    count = 0
    for seed, actions, _, step in context.transitions():
        count += 1
        try:
            good = math.isfinite(float(step.reward))
        except (TypeError, ValueError):
            good = False
        if not good:
            raise context.fault(
                f"seed {seed}: action {len(actions)} earns {step.reward!r}",
                f"import math; e = new(); start(e, {seed}); a = [act(e, x) for x in {literal(actions)}]",
                "assert math.isfinite(float(a[-1][1]))",
            )
    return passed(f"{count} rewards are finite numbers")


@check(
    "error",
    "A collapsed policy that answers nothing still scores, and training moves towards it.",
    "Give no reward to an empty or malformed reply.",
)
def reward_idle(context: Context) -> Outcome:
    """Doing nothing earns nothing."""
    env = context.make()
    env.reset(context.seed(0))
    idle = env.idle_actions()
    if not idle:
        raise NotApplicable("no action that does nothing is known")
    best: tuple[float, Any, int] = (-math.inf, None, 0)
    for action in idle:
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
            f"e = new(); start(e, {seed}); a = act(e, {literal(action)})",
            f"for _ in range({context.steps - 1}): a = a if a[2] else (a[0], a[1] + act(e, {literal(action)})[1], *a[2:])",
            "assert a[1] <= 0",
        )
    return passed(f"doing nothing earns at most {total:g}")


@check(
    "warning",
    "A policy that ignores what it is shown scores as well as one that understands it.",
    "Balance the levels, and score the answer instead of searching for it in the reply.",
)
def reward_constant(context: Context) -> Outcome:
    """No single action or answer solves levels.

    The question itself is tried as an answer, too.
    """
    env = context.make()
    first, _ = env.reset(context.seed(0))
    menu = env.actions()[:12]
    if not menu:
        raise NotApplicable("the actions are not a short list")
    context.need_success()
    seeds = context.some_seeds(max(context.seeds, 16))
    if isinstance(first, str) and isinstance(menu[0], str):
        menu = [*menu, _SHOWN]
    best, most, number = "", -1, 1
    for action in context.within_time(menu):
        wins = 0
        for seed in context.within_time(seeds, len(menu)):
            observation, _ = env.reset(context.seed(seed))
            given = observation if action == _SHOWN else action
            for _ in range(context.steps):
                try:
                    step = env.step(given)
                except Exception:  # refused
                    break
                if step.done:
                    wins += bool(env.won(step)) and (not isinstance(given, str) or float(step.reward) >= _GOOD)
                    break
        if wins * number > most * context.tried:
            best, most, number = repr(action), wins, context.tried
    if _wilson_low(most, number) > _EASY:
        raise context.fault(
            f"{best} and nothing else succeeds in {most / number:.0%} of {number} episodes",
            "def play(s):\n    e = new(); o = start(e, s)\n"
            f"    for _ in range({context.steps}):\n"
            f"        {_success_of(context, 'str(o)' if best == repr(_SHOWN) else best)}\n    return False",
            f"assert sum(play(s) for s in {seeds!r}) <= {_EASY} * {len(seeds)}",
        )
    return passed(f"the best repeated action, {best}, succeeds in {most / number:.0%} of {number} episodes")


@check(
    "warning",
    "Rates near that of random play look like skill.",
    "Make the levels harder or the budget of actions smaller, and print the random rate beside every result.",
)
def reward_random(context: Context) -> Outcome:
    """Random play does not solve most levels."""
    context.need_success()
    played = [(seed, steps) for seed, _, steps in context.played if steps]
    number = max(len(played), 1)
    mean = sum(float(step.reward) for _, steps in played for step in steps) / number
    shown = f"random play succeeds in {context.wins / number:.0%} of {len(played)} episodes"
    if _wilson_low(context.wins, number) > _EASY:
        raise context.fault(
            shown,
            f"plays = {literal({seed: context.actions(seed) for seed, _ in played[:20]})}",
            "def play(s):\n    e = new(); start(e, s)\n"
            f"    for x in plays[s]:\n        {_success_of(context, 'x')}\n    return False",
            f"assert sum(map(play, plays)) <= {_EASY} * len(plays)",
        )
    return passed(f"{shown}, with mean return {mean:.3g}")


def _success_of(context: Context, action: str) -> str:
    """Evidence in a loop: play an action; at the end of the episode return whether it succeeds, as ``won`` says it."""
    last = (steps[-1].info for _, _, steps in context.played if steps)
    name = next((name for info in last for name in SUCCESS if name in info), None)
    if name is None:
        return f"a = act(e, {action})\n        if a[2]: return a[1] > 0"
    return f"a = e.step({action})\n        if any(a[2:-1]): return bool(a[-1][{name!r}])"


def _wilson_low(wins: int, number: int) -> float:
    share, z = wins / number, 1.96
    middle = share + z * z / (2 * number)
    return (middle - z * math.sqrt(share * (1 - share) / number + z * z / (4 * number**2))) / (1 + z * z / number)


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


@check("error", "Success rates are computed from it.", "Set it from the state after the action, and only at the end.")
def info_success(context: Context) -> Outcome:
    """A success in info is the end of an episode, and earns more than another end."""
    named = [name for *_, step in context.transitions() for name in SUCCESS if name in step.info]
    if not named:
        raise NotApplicable(f"info has none of {', '.join(SUCCESS)}")
    name = named[0]
    ends: dict[bool, list[tuple[float, int, list[Any]]]] = {True: [], False: []}
    steps = [(seed, actions, step) for seed, actions, _, step in context.transitions()]
    env = context.make()
    for seed, path in context.solutions.items():
        _, solution = context.episode(env, context.seed(seed), path)
        steps += [(seed, path[: place + 1], step) for place, step in enumerate(solution)]
    for seed, actions, step in steps:
        if name not in step.info:
            continue
        success = bool(step.info[name])
        if success and not step.done:
            raise context.fault(
                f"seed {seed}: info says {name}=True after action {len(actions)}, and the episode goes on",
                f"e = new(); start(e, {seed}); a = [e.step(x) for x in {literal(actions)}][-1]",
                f"assert any(a[2:-1]) or not a[-1][{name!r}]",
            )
        if step.terminated:
            ends[success].append((float(step.reward), seed, actions))
    if not context.stochastic and ends[True] and ends[False]:
        bad, good = min(ends[True], key=lambda end: end[0]), max(ends[False], key=lambda end: end[0])
        if bad[0] < good[0]:
            raise context.fault(
                f"an end with {name}=True earns {bad[0]:g} (seed {bad[1]}), one with {name}=False {good[0]:g} (seed {good[1]})",
                "play = lambda s, x: (lambda e: (start(e, s), [e.step(a) for a in x][-1])[1])(new())",
                f"a, b = play({bad[1]}, {literal(bad[2])}), play({good[1]}, {literal(good[2])})",
                "assert a[1] >= b[1]",
            )
    return passed(
        f"info[{name!r}] is true at {len(ends[True])} ends and false at {len(ends[False])}, as the rewards say"
    )


@check(
    "warning",
    "Masked policies cannot choose a useful action, or waste their budget on one that does nothing.",
    "Compute the mask from the same function that plays the action.",
)
def mask_matches(context: Context) -> Outcome:
    """The action mask is 1 exactly for actions that change something."""
    env = context.make()
    _, info = env.reset(context.seed(0))
    if env.mask(info) is None:
        raise NotApplicable("info has no mask of the actions")
    context.need_clones()
    checked = 0
    for seed in context.within_time(context.some_seeds()):
        observation, info = env.reset(context.seed(seed))
        played: list[Any] = []
        for chosen in context.actions(seed)[:10]:
            mask = env.mask(info)
            for allowed, action in zip(mask or [], env.actions(), strict=True):
                checked += 1
                if context.stochastic and context.target.separate_noise and played:
                    continue  # the noise is chosen at a reset alone
                changes = _changes(context, env, observation, action, seed)
                if changes != allowed:
                    raise context.fault(
                        f"seed {seed}: after {played!r} the mask says {int(allowed)} of action {action!r}, which "
                        f"{'changes the observation or ends the episode' if changes else 'changes nothing'}",
                        f"e = new(); o, i = e.reset(seed={seed})",
                        f"for x in {literal(played)}: o, _, _, _, i = e.step(x)",
                        f"a = e.step({literal(action)}); assert bool(i['action_mask'][{env.actions().index(action)}]) == "
                        "(repr(a[0]) != repr(o) or a[2])",
                    )
            step = env.step(chosen)
            played.append(chosen)
            observation, info = step.observation, step.info
            if step.done:
                break
    return passed(f"{checked} entries of masks agree with what the action does")


def _changes(context: Context, env: AuditedEnv, observation: Any, action: Any, seed: int) -> bool:
    for noise in range(_NOISES if context.stochastic else 1):
        copied = env.clone()
        if context.stochastic and context.target.separate_noise:
            copied.reset(seed, noise)
        elif context.stochastic and noise and not copied.reseed(noise):
            break
        step = copied.step(action)
        if key(step.observation) != key(observation) or step.terminated:
            return True
    return False
