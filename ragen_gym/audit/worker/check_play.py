"""Checks of what an environment says while it is played: observations, rewards, info and masks."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from .context import Context, Fault, passed
from .protocol import SUCCESS, NotApplicable, Outcome, Step, key, literal

__all__ = [
    "info_effective",
    "info_success",
    "mask_matches",
    "observation_aliased",
    "observation_in_space",
    "reward_after_end",
    "reward_constant",
    "reward_finite",
    "reward_idle",
    "reward_random",
    "text_hides_state",
    "text_parses",
]

_EFFECTIVE = ("action_is_effective", "action.moved_player", "moved", "effective")
_NOISES = 24  # noises under which an action must change nothing before a mask of 1 is called wrong
_EASY = 0.6  # a share of random episodes that succeed, above which play teaches little


def observation_in_space(context: Context) -> Outcome:
    """Every observation lies in the declared space."""
    env = context.make()
    space = env.observation_space
    if space is None or not hasattr(space, "contains"):
        raise NotApplicable("no observation space is declared")
    count = 0
    for seed, first, steps in context.played:
        for place, observation in enumerate([first, *(step.observation for step in steps)]):
            count += 1
            if not space.contains(observation):
                actions = context.actions(seed)[:place]
                raise Fault(
                    f"seed {seed}: the observation after {place} actions is not in {str(space)[:80]}",
                    context.code(
                        f"e = new(); o = start(e, {seed}); "
                        + (f"o = [act(e, a) for a in {literal(actions)}][-1][0]" if place else ""),
                        "assert e.observation_space.contains(o)",
                    ),
                )
    return passed(f"{count} observations lie in their space")


def observation_aliased(context: Context) -> Outcome:
    """An observation stays what it was when the environment goes on."""
    env = context.make()
    seed = 3
    observation, _ = env.reset(context.seed(seed))
    if isinstance(observation, (str, int, float, bytes)):
        return passed("observations are immutable")
    kept = [(observation, key(observation))]
    for place, action in enumerate(context.actions(seed)):
        step = env.step(action)
        for at, (old, before) in enumerate(kept):
            if key(old) != before:
                raise Fault(
                    f"observation {at} of seed {seed} changes when action {place + 1} is played",
                    context.code(
                        f"import copy; e = new(); o = start(e, {seed})",
                        f"a = [(x, copy.deepcopy(x)) for x in [o] + [act(e, a)[0] for a in {literal(context.actions(seed)[:at])}]][-1]; "
                        f"[act(e, x) for x in {literal(context.actions(seed)[at : place + 1])}]",
                        "assert repr(a[0]) == repr(a[1])",
                    ),
                )
        kept.append((step.observation, key(step.observation)))
        if step.done:
            break
    return passed(f"{len(kept)} observations stay as they were given")


def text_parses(context: Context) -> Outcome:
    """A text observation reads back as the state that it shows."""
    env = context.make()
    count = 0

    def reads_back(observation: Any, seed: int, played: list[Any]) -> None:
        found = env.parsed(observation)
        if found is None:
            raise NotApplicable("the environment has no parser of its observations")
        if key(found[0]) != key(found[1]):
            raise Fault(
                f"seed {seed}: the observation after {len(played)} actions reads back as another state",
                context.code(
                    f"e = new().unwrapped; o = start(e, {seed})",
                    f"o = ([o] + [act(e, a)[0] for a in {literal(played)}])[-1]",
                    "assert e.game.parse(o, e.vocabulary, e.text_format) == e.state[0]",
                ),
            )

    for seed in context.within_time(context.some_seeds()):
        observation, _ = env.reset(context.seed(seed))
        reads_back(observation, seed, [])
        for place, action in enumerate(context.actions(seed)):
            step = env.step(action)
            reads_back(step.observation, seed, context.actions(seed)[: place + 1])
            count += 1
            if step.done:
                break
    return passed(f"{count} observations read back as the state that they show")


def text_hides_state(context: Context) -> Outcome:
    """Without noise in the dynamics, equal observations and equal actions have equal results."""
    context.need_repeats()
    if context.stochastic:
        raise NotApplicable("the dynamics are stochastic, so that equal observations may go on differently")
    results: dict[tuple[str, str], dict[str, tuple[int, int]]] = defaultdict(dict)
    transitions = 0
    for seed, first, steps in context.played:
        before = first
        for place, step in enumerate(steps):
            if not step.truncated:
                transitions += 1
                where = key(before), key(context.actions(seed)[place])
                results[where].setdefault(key((step.observation, float(step.reward))), (seed, place))
            before = step.observation
    for found in results.values():
        if len(found) > 1:
            (seed, place), (other, at) = list(found.values())[:2]
            actions, others = context.actions(seed)[: place + 1], context.actions(other)[: at + 1]
            hidden = sum(len(each) > 1 for each in results.values())
            raise Fault(
                f"{hidden} of {len(results)} pairs of observation and action have more than one result: what the agent is "
                "shown does not say where it is",
                context.code(
                    f"shown = lambda x: {context.target.shown}",
                    "play = lambda s, x: (lambda e: [(shown(start(e, s)), None)] + [(shown(r[0]), r[1]) "
                    "for r in [act(e, a) for a in x]])(new())",
                    f"a, b = play({seed}, {literal(actions)}), play({other}, {literal(others)})",
                    "assert repr(a[-2][0]) != repr(b[-2][0]) or repr(a[-1]) == repr(b[-1])",
                ),
                pairs=len(results),
                hidden=hidden,
            )
    repeated = transitions - len(results)
    if not repeated:
        raise NotApplicable("no observation was met twice with the same action")
    return passed(f"{repeated} repeated pairs of observation and action had the same result")


def reward_finite(context: Context) -> Outcome:
    """Rewards are finite numbers."""
    count = 0
    for seed, _, steps in context.played:
        for place, step in enumerate(steps):
            count += 1
            try:
                good = math.isfinite(float(step.reward))
            except (TypeError, ValueError):
                good = False
            if not good:
                raise Fault(
                    f"seed {seed}: action {place + 1} earns {step.reward!r}",
                    context.code(
                        f"import math; e = new(); start(e, {seed}); a = [act(e, x) for x in {literal(context.actions(seed)[: place + 1])}]",
                        "assert math.isfinite(float(a[-1][1]))",
                    ),
                )
    return passed(f"{count} rewards are finite numbers")


def reward_idle(context: Context) -> Outcome:
    """Doing nothing earns nothing: the empty reply, an action without effect."""
    env = context.make()
    env.reset(context.seed(0))
    idle = env.idle_actions()
    if not idle:
        raise NotApplicable("no action that does nothing is known")
    worst: tuple[float, Any, int] = (-math.inf, None, 0)
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
            if total > worst[0]:
                worst = total, action, seed
    if worst[0] > 0:
        total, action, seed = worst
        raise Fault(
            f"the reply {action!r} alone earns {total:g} on seed {seed}",
            context.code(
                f"e = new(); start(e, {seed}); a = act(e, {literal(action)})",
                f"for _ in range({context.steps - 1}): a = a if a[2] else (a[0], a[1] + act(e, {literal(action)})[1], *a[2:])",
                "assert a[1] <= 0",
            ),
            earned=total,
        )
    return passed(
        f"doing nothing earns at most {worst[0]:g}" if worst[1] is not None else "doing nothing is refused",
        earned=worst[0],
    )


def reward_constant(context: Context) -> Outcome:
    """One action or answer, always repeated, does not solve levels; nor does the question itself as the answer."""
    env = context.make()
    first, _ = env.reset(context.seed(0))
    known = [] if context.target.takes_seed else env.oracle() or []  # of one row a right answer is always right
    menu: list[Any] = [action for action in env.actions()[:12] if action not in known]
    if not menu:
        raise NotApplicable("the actions are not a short list")
    context.need_success()
    rates: dict[Any, float] = {}
    numbers: dict[Any, int] = {}
    lows: dict[Any, float] = {}
    seeds = context.some_seeds(max(context.seeds, 16))
    candidates: list[Any] = [
        *menu,
        *(["(the observation itself)"] if isinstance(first, str) and isinstance(menu[0], str) else []),
    ]
    for action in context.within_time(candidates):
        wins = played = 0
        for seed in context.within_time(seeds, len(candidates)):
            played += 1
            observation, _ = env.reset(context.seed(seed))
            given = observation if action == "(the observation itself)" else action
            for _ in range(context.steps):
                try:
                    step = env.step(given)
                except Exception:  # refused
                    break
                if step.done:
                    wins += bool(env.won(step)) and (not isinstance(given, str) or float(step.reward) >= _GOOD)
                    break
        rates[repr(action)], lows[repr(action)] = wins / played, _wilson_low(wins, played)
        numbers[repr(action)] = played
    best = max(rates, key=lambda action: rates[action])
    if lows[best] > _EASY:
        given = "str(o)" if "observation itself" in best else best
        raise Fault(
            f"{best} and nothing else succeeds in {rates[best]:.0%} of {numbers[best]} episodes",
            context.code(
                "def play(s):\n    e = new(); o = start(e, s)\n"
                f"    for _ in range({context.steps}):\n        {_success_of(context, given)}\n    return False",
                f"assert sum(play(s) for s in {seeds!r}) <= {_EASY} * {len(seeds)}",
            ),
            rate=rates[best],
        )
    return passed(
        f"the best repeated action, {best}, succeeds in {rates[best]:.0%} of {numbers[best]} episodes", rate=rates[best]
    )


_GOOD = 0.5  # what a text answer must earn to count as right


def reward_random(context: Context) -> Outcome:
    """Random play does not solve most levels; its rate stands here beside whatever an agent reaches."""
    context.need_success()
    played = [(seed, steps) for seed, _, steps in context.played if steps]
    rate = context.wins / max(len(played), 1)
    mean = sum(sum(float(step.reward) for step in steps) for _, steps in played) / max(len(played), 1)
    numbers = {"rate": rate, "mean_return": mean, "episodes": len(played)}
    low = _wilson_low(context.wins, len(played))
    if low > _EASY:
        seeds = {seed: context.actions(seed) for seed, _ in played[:20]}
        raise Fault(
            f"random play succeeds in {rate:.0%} of {len(played)} episodes",
            context.code(
                f"plays = {literal(seeds)}",
                "def play(s):\n    e = new(); start(e, s)\n"
                f"    for x in plays[s]:\n        {_success_of(context, 'x')}\n    return False",
                f"assert sum(map(play, plays)) <= {_EASY} * len(plays)",
            ),
            **numbers,
        )
    return passed(
        f"random play succeeds in {rate:.0%} of {len(played)} episodes, with mean return {mean:.3g}", **numbers
    )


def _success_of(context: Context, action: str) -> str:
    """Evidence in a loop: play an action; at the end of the episode return whether it succeeds, as ``won`` says it."""
    last = (steps[-1].info for _, _, steps in context.played if steps)
    name = next((name for info in last for name in SUCCESS if name in info), None)
    if name is None:
        return f"a = act(e, {action})\n        if a[2]: return a[1] > 0"
    return f"a = e.step({action})\n        if any(a[2:-1]): return bool(a[-1][{name!r}])"


def _wilson_low(wins: int, number: int) -> float:
    if not number:
        return 0.0
    share, z = wins / number, 1.96
    middle = share + z * z / (2 * number)
    return (middle - z * math.sqrt(share * (1 - share) / number + z * z / (4 * number**2))) / (1 + z * z / number)


def reward_after_end(context: Context) -> Outcome:
    """After the end of an episode no action earns anything."""
    if all(len(steps) == 1 and steps[0].done for _, _, steps in context.played):
        raise NotApplicable("every episode is one action, which is scored alone")
    env = context.make()
    for seed in context.within_time(context.some_seeds()):
        env.reset(context.seed(seed))
        actions = context.actions(seed)
        for place, action in enumerate(actions):  # noqa: B007  # the place is read after the loop
            if env.step(action).done:
                break
        else:
            continue
        for later in actions[:8]:
            try:
                step = env.step(later)
                reward = float(step.reward)
            except Exception:  # refused, as it should be
                return passed("an action after the end is refused")
            if reward > 0:
                raise Fault(
                    f"seed {seed}: the action {later!r} after the end earns {reward:g}",
                    context.code(
                        f"e = new(); start(e, {seed}); [act(e, a) for a in {literal(actions[: place + 1])}]",
                        f"a = [act(e, x)[1] for x in {literal(actions[:8])}]",
                        "assert max(a) <= 0",
                    ),
                )
        return passed("actions after the end earn nothing")
    raise NotApplicable(f"no episode ended within {context.steps} random actions")


def info_success(context: Context) -> Outcome:
    """``info`` says success exactly where the episode ends with it."""
    named = [name for _, _, steps in context.played for step in steps for name in SUCCESS if name in step.info]
    if not named:
        raise NotApplicable(f"info has none of {', '.join(SUCCESS)}")
    name = named[0]
    last: dict[bool, list[tuple[float, int, int]]] = {True: [], False: []}
    for seed, _, steps in [*context.played, *_solutions(context)]:
        for place, step in enumerate(steps):
            if name not in step.info:
                continue
            success = bool(step.info[name])
            if success and not step.done:
                raise Fault(
                    f"seed {seed}: info says {name}=True after action {place + 1}, and the episode goes on",
                    context.code(
                        f"e = new(); start(e, {seed}); a = [e.step(x) for x in {literal(context.actions(seed)[: place + 1])}][-1]",
                        f"assert any(a[2:-1]) or not a[-1][{name!r}]",
                    ),
                )
            if step.terminated:
                last[success].append((float(step.reward), seed, place))
    if not context.stochastic and last[True] and last[False] and min(last[True])[0] < max(last[False])[0]:
        bad, good = min(last[True]), max(last[False])
        raise Fault(
            f"an end with {name}=True earns {bad[0]:g} (seed {bad[1]}), one with {name}=False {good[0]:g} (seed {good[1]})",
            context.code(
                "play = lambda s, x: (lambda e: (start(e, s), [e.step(a) for a in x][-1])[1])(new())",
                f"a, b = play({bad[1]}, {literal(context.actions(bad[1])[: bad[2] + 1])}), play({good[1]}, {literal(context.actions(good[1])[: good[2] + 1])})",
                "assert a[1] >= b[1]",
            ),
        )
    return passed(
        f"info[{name!r}] is true at {len(last[True])} ends and false at {len(last[False])}, as the rewards say"
    )


def _solutions(context: Context) -> list[tuple[int, Any, list[Step]]]:
    solved = context.facts.get("searched", ({},))[0]
    env = context.make()
    return [(seed, *context.episode(env, context.seed(seed), path)) for seed, path in solved.items() if path]


def info_effective(context: Context) -> Outcome:
    """Agreement of ``info`` about an action's effect with the observation."""
    count = 0
    for seed, first, steps in context.played:
        before = first
        for place, step in enumerate(steps):
            for name in _EFFECTIVE:
                if name in step.info and not step.done:
                    count += 1
                    changed = key(before) != key(step.observation)
                    if bool(step.info[name]) != changed and context.stochastic is False:
                        actions = context.actions(seed)[: place + 1]
                        raise Fault(
                            f"seed {seed}: info says {name}={step.info[name]} of action {place + 1}, and the observation "
                            f"{'changes' if changed else 'stays'}",
                            context.code(
                                f"e = new(); o = [start(e, {seed})]; a = [e.step(x) for x in {literal(actions)}]; o += [x[0] for x in a]",
                                f"assert bool(a[-1][-1][{name!r}]) == (repr(o[-1]) != repr(o[-2]))",
                            ),
                        )
            before = step.observation
    if not count:
        raise NotApplicable(f"info has none of {', '.join(_EFFECTIVE)}")
    return passed(f"{count} statements of an action's effect agree with the observation")


def mask_matches(context: Context) -> Outcome:
    """The mask is 1 exactly for the actions that can change anything."""
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
                    raise Fault(
                        f"seed {seed}: after {played!r} the mask says {int(allowed)} of action {action!r}, which "
                        f"{'changes the observation or ends the episode' if changes else 'changes nothing'}",
                        context.code(
                            f"e = new(); o, i = e.reset(seed={seed})",
                            f"for x in {literal(played)}: o, _, _, _, i = e.step(x)",
                            f"a = e.step({literal(action)}); assert bool(i['action_mask'][{env.actions().index(action)}]) == "
                            "(repr(a[0]) != repr(o) or a[2])",
                        ),
                    )
            step = env.step(chosen)
            played.append(chosen)
            observation, info = step.observation, step.info
            if step.done:
                break
    return passed(f"{checked} entries of masks agree with what the action does")


def _changes(context: Context, env: Any, observation: Any, action: Any, seed: int) -> bool:
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
