"""Checks of seeds, of global random state, and of groups that share a seed."""

from __future__ import annotations

import random  # noqa: TID251  # its global state is what is audited
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .context import Context, first_difference, passed
from .protocol import CHECKS, Check, NotApplicable, Outcome, check, key, literal

_THREADS = 4
#: In evidence: the modules whose generators are global.
_MODULES = "[random, *filter(None, [sys.modules.get('numpy.random')])]"
_ROUNDS = 100  # in which the evidence waits for threads to meet
_MEMBERS = 8
_PLAYED = 6  # episodes of a fingerprint


@check(
    "error",
    "Nobody can repeat a result, evaluate two models on the same levels, or debug a failed episode.",
    "Draw everything from one generator that reset(seed) makes, and pass the seed on to what the environment wraps.",
)
def seed_repeats(context: Context) -> Outcome:
    """The same seed gives the same episode."""
    if not context.target.takes_seed:
        env = context.make()
        levels = {context.level(env, None) for _ in range(_MEMBERS)}
        if len(levels) == 1 and not context.stochastic:
            raise NotApplicable("reset takes no seed, and every episode is the same")
        raise context.fault(
            "reset takes no seed, and episodes differ", "assert repr(start(new(), None)) == repr(start(new(), None))"
        )
    for seed in context.within_time(context.some_seeds()):
        first, second = context.twice(seed)
        if first != second:
            context.repeats = False
            place = first_difference(first, second)
            actions = context.actions(seed)[:place]
            raise context.fault(
                f"reset(seed={seed}) and the same actions: two new environments differ at step {place}"
                if place
                else f"reset(seed={seed}): two new environments begin differently",
                f"play = lambda e: (start(e, {seed}), [act(e, a) for a in {literal(actions)}])",
                "assert repr(play(new())) == repr(play(new()))",
            )
    context.repeats = True
    return passed(f"{context.tried} seeds give the same episodes in new environments")


@check(
    "error",
    "The n-th episode depends on how the earlier ones were played; prompts grow with what is long over.",
    "Set all state of an episode in reset, wrappers included.",
)
def reset_clean(context: Context) -> Outcome:
    """A reset leaves nothing of the episodes before."""
    context.need_repeats()
    target, seeds = context.target, context.some_seeds(12)
    busy = target.make()
    before: int | None = None
    for seed in context.within_time(seeds):
        actions = context.actions(seed)
        alone = context.transcript(target.make(), seed, actions)
        played = context.transcript(busy, seed, actions)
        if played != alone:
            place = first_difference(played, alone)
            raise context.fault(
                f"after an episode of seed {before}, reset(seed={seed}) gives another episode than in a new environment "
                f"({'its beginning' if not place else f'step {place}'} differs)",
                f"e, f = new(), new(); start(e, {before})",
                f"[act(e, a) for a in {literal(context.actions(before or 0, 3))}]; "
                f"play = lambda e: (start(e, {seed}), [act(e, a) for a in {literal(actions[:place])}])",
                "assert repr(play(e)) == repr(play(f))",
            )
        before = seed
    return passed(f"{context.tried} seeds give the same episodes after others as in new environments")


@check(
    "error",
    "Rollout workers are threads: what one draws depends on what the others draw at that moment.",
    "Keep a generator in each environment instead of seeding the global one.",
)
def seed_threads(context: Context) -> Outcome:
    """A seed gives the same episode in a thread."""
    context.need_repeats()
    seeds = context.some_seeds(16)
    for seed in seeds:
        context.actions(seed)

    def play(seed: int) -> str:
        env = context.make()
        return str([context.transcript(env, s, context.actions(s)) for s in (seed, seed)])

    alone = {seed: play(seed) for seed in context.within_time(seeds, 4)}
    seeds = list(alone)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(4):
            if turn and context.late:
                break
            with ThreadPoolExecutor(_THREADS) as pool:
                together = dict(zip(seeds, pool.map(play, seeds), strict=True))
            wrong = [seed for seed in seeds if together[seed] != alone[seed]]
            if wrong:
                raise context.fault(
                    f"{len(wrong)} of {len(seeds)} seeds give other episodes in {_THREADS} threads",
                    "from concurrent.futures import ThreadPoolExecutor; import sys; sys.setswitchinterval(1e-5); "
                    f"play = lambda s: (lambda e: repr((start(e, s), [act(e, a) for a in {literal(context.actions(0, 1))}])))(new())",
                    f"a = [*map(play, {seeds})]; pool = ThreadPoolExecutor({_THREADS})",
                    f"assert all([*pool.map(play, {seeds})] == a for _ in range({_ROUNDS}))",
                )
    finally:
        sys.setswitchinterval(interval)
    return passed(f"{len(seeds)} seeds give the same episodes in {_THREADS} threads")


@check(
    "error",
    "Any library that draws a number in between, or another worker, changes the episode of a seed.",
    "Replace random.* and numpy.random.* by methods of a generator of the environment's own.",
)
def global_random_read(context: Context) -> Outcome:
    """The global random generators do not decide an episode."""
    if not context.target.takes_seed:
        raise NotApplicable("reset takes no seed")
    seeds = context.some_seeds(6)
    with _restored():
        for seed in context.within_time(seeds):
            actions = context.actions(seed)
            records = []
            for state in (1, 2):
                env = context.make()
                env.reset(seed)
                _seed_global(state)
                record = [key(env.reset(seed)[0])]
                for place, action in enumerate(actions):
                    _seed_global(state * 1000 + place)
                    step = env.step(action)
                    record.append(key(step[:4]))
                    if step.done:
                        break
                records.append(record)
            if records[0] != records[1]:
                place = first_difference(*records)
                raise context.fault(
                    f"seed {seed}: the global generators decide {'how the episode begins' if not place else 'what a step does'}",
                    f"import random, sys; fix = lambda g: [m.seed(g) for m in {_MODULES}]",
                    f"play = lambda g: (lambda e: (fix(g), repr((start(e, {seed}), [(fix(g + i), act(e, a))[1] "
                    f"for i, a in enumerate({literal(actions[: max(place, 1)])})])))[1])(new())",
                    "assert play(1) == play(1000)",
                )
    return passed(f"{context.tried} seeds give the same episodes whatever the global generators hold")


@check(
    "warning",
    "A reset that seeds them repeats the trainer's own sampling and shuffling: the same exploration again and again.",
    "Make a generator of the environment's own from the seed: numpy.random.default_rng(seed) or random.Random(seed).",
)
def global_random_moved(context: Context) -> Outcome:
    """The global random generators are left alone."""
    actions = context.actions(3)  # to find them resets an environment
    with _restored():
        moved: dict[str, str] = {}
        for name, seed_it, state, _ in _generators():
            for what in ("reset", "step"):
                env = context.make()
                env.reset(3)
                seed_it(11)
                before = key(state())
                if what == "reset":
                    env.reset(4)
                else:
                    context.play(env, actions)
                if key(state()) != before:
                    env.reset(5)
                    after = key(state())
                    seed_it(12)
                    env.reset(5)
                    hijacked = what == "reset" and after == key(state()) and context.target.takes_seed
                    moved[f"{name} by {what}"] = (
                        "set to the same state by every reset of a seed" if hijacked else "moved"
                    )
        if moved:
            what = "; ".join(f"{name}: {how}" for name, how in moved.items())
            raise context.fault(
                f"global random state is changed ({what})",
                f"import random, sys; state = lambda: [repr((m.getstate if m is random else m.get_state)()) for m in {_MODULES}]",
                f"e = new(); start(e, 3); before = state(); start(e, 4); [act(e, a) for a in {literal(actions[:1])}]",
                "assert state() == before",
            )
    return passed("reset and step leave the generators of random and NumPy as they were")


@check(
    "error",
    "Group-relative advantages (GRPO, RLOO) compare returns on one level; on different levels an easy one counts as a "
    "good reply.",
    "Make the level a function of the seed alone, and let reset take the seed of the group.",
)
def group_level(context: Context) -> Outcome:
    """Members of a group that share a seed meet one level."""
    seeded = context.target.takes_seed
    for seed in context.within_time(context.some_seeds(8) if seeded else [None]):
        levels = {context.level(member, seed) for member in [context.make() for _ in range(_MEMBERS)]}
        if len(levels) > 1:
            raise context.fault(
                f"{_MEMBERS} members of a group {f'with seed {seed} ' if seeded else ''}meet {len(levels)} levels",
                f"a = [repr(start(new(), {seed})) for _ in range({_MEMBERS})]",
                "assert len(set(a)) == 1",
            )
    if not seeded:
        raise NotApplicable("reset takes no seed, and every episode begins alike")
    return passed(f"{_MEMBERS} members of each of {context.tried} groups meet one level")


def fingerprint(context: Context) -> dict[str, Any]:
    """Fingerprint that another process must give as well: the beginnings of many seeds and some episodes."""
    if not context.target.takes_seed:
        return {"seeds": [], "levels": [], "episodes": []}
    context.begin()
    seeds = [*context.some_seeds(), *(2**31 - 1 - 7919 * place for place in range(4 * context.seeds))]
    env = context.make()
    levels = [key(env.reset(seed)[0]) for seed in context.within_time(seeds)]
    episodes = [context.transcript(context.make(), seed, context.actions(seed)) for seed in seeds[:_PLAYED]]
    return {
        "seeds": seeds,
        "levels": levels,
        "episodes": episodes,
        "actions": [repr(context.actions(s)) for s in seeds[:_PLAYED]],
    }


def _generators() -> Iterator[tuple[str, Any, Any, Any]]:
    yield "random", random.seed, random.getstate, random.setstate
    if "numpy" in sys.modules:
        import numpy

        yield "numpy.random", numpy.random.seed, numpy.random.get_state, numpy.random.set_state


def _seed_global(seed: int) -> None:
    for _, seed_it, _, _ in _generators():
        seed_it(seed)


@contextmanager
def _restored() -> Iterator[None]:
    """Leave the global generators as they were found."""
    states = [(put, state()) for _, _, state, put in _generators()]
    try:
        yield
    finally:
        for put, state in states:
            put(state)


CHECKS["seed_process"] = Check(
    "seed_process",
    "error",
    "A seed gives the same episode in another process",
    "Workers of one run, and two runs, meet different levels under one seed; nothing can be repeated.",
    "Do not derive seeds from hash(), id(), the clock or the order of a set; use numpy.random.SeedSequence.",
    None,
)
