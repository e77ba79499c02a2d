"""Checks of seeds, of global random state, and of groups that share a seed."""

from __future__ import annotations

import random  # noqa: TID251  # its global state is what is audited
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .context import Context, Fault, comparable, first_difference, passed
from .protocol import NotApplicable, Outcome, key, literal

__all__ = [
    "fingerprint",
    "global_random_moved",
    "global_random_read",
    "group_level",
    "group_noise",
    "reset_clean",
    "seed_order",
    "seed_repeats",
    "seed_threads",
    "seed_varies",
]

_THREADS = 4
#: In evidence: the modules whose generators are global.
_MODULES = "[random, *filter(None, [sys.modules.get('numpy.random')])]"
_ROUNDS = 100  # in which the evidence waits for threads to meet
_MEMBERS = 8
_PLAYED = 6  # episodes of a fingerprint


def seed_repeats(context: Context) -> Outcome:
    """The same seed gives the same episode, in one environment and in a new one."""
    target = context.target
    if not target.takes_seed:
        env = context.make()
        levels = {context.level(env, None) for _ in range(8)}
        if len(levels) == 1 and not context.stochastic:
            raise NotApplicable("reset takes no seed, and every episode is the same")
        raise Fault(
            "reset takes no seed, and episodes differ",
            context.code("a, b = [start(new(), None) for _ in range(2)]", "assert repr(a) == repr(b)"),
        )
    seeds = context.some_seeds()
    for seed in context.within_time(seeds):
        actions = context.actions(seed)
        first = context.transcript(context.make(), seed, actions, hidden=True)
        second = context.transcript(context.make(), seed, actions, hidden=True)
        if first != second:
            raise _differing(context, seed, first, second)
    context.repeats = True
    return passed(f"{context.tried} seeds give the same episodes in new environments")


def _differing(context: Context, seed: int, first: list[Any], second: list[Any]) -> Fault:
    context.repeats = False
    place = first_difference(first, second)
    if place == 0:
        return Fault(
            f"reset(seed={seed}): two new environments begin differently",
            context.code(f"a, b = start(new(), {seed}), start(new(), {seed})", "assert repr(a) == repr(b)"),
        )
    actions = context.actions(seed)[:place]
    return Fault(
        f"reset(seed={seed}) and the same actions: two new environments differ at step {place}",
        context.code(
            f"play = lambda e: (start(e, {seed}), [act(e, a) for a in {literal(actions)}])",
            "assert repr(play(new())) == repr(play(new()))",
        ),
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
            raise Fault(
                f"after an episode of seed {before}, reset(seed={seed}) gives another episode than in a new environment "
                f"({'its beginning' if not place else f'step {place}'} differs)",
                context.code(
                    f"e, f = new(), new(); start(e, {before})",
                    f"[act(e, a) for a in {literal(context.actions(before or 0, 3))}]; "
                    f"play = lambda e: (start(e, {seed}), [act(e, a) for a in {literal(actions[:place])}])",
                    "assert repr(play(e)) == repr(play(f))",
                ),
            )
        before = seed
    return passed(f"{context.tried} seeds give the same episodes after others as in new environments")


def seed_varies(context: Context) -> Outcome:
    """Different seeds give different episodes."""
    if not context.target.takes_seed:
        raise NotApplicable("reset takes no seed")
    context.need_repeats()
    env = context.make()
    actions = context.actions(0)
    seeds = context.some_seeds()
    episodes = {str(context.transcript(env, seed, actions, hidden=True)) for seed in context.within_time(seeds, 2)}
    played = context.tried
    levels = {context.level(env, seed) for seed in context.within_time(seeds)}
    if len(episodes) == 1:
        raise Fault(
            f"{played} seeds give one and the same episode",
            context.code(f"a = [repr(start(new(), s)) for s in {seeds[:8]}]", "assert len(set(a)) > 1"),
            levels=1,
        )
    return passed(f"{context.tried} seeds give {len(levels)} beginnings", levels=len(levels), seeds=context.tried)


def seed_threads(context: Context) -> Outcome:
    """Environments in threads give the episodes that they give alone."""
    context.need_repeats()
    if not context.target.thread_safe:
        raise NotApplicable("the target is reached over a connection; threads are the server's")
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
                lines = (
                    "from concurrent.futures import ThreadPoolExecutor; import sys; sys.setswitchinterval(1e-5); "
                    f"play = lambda s: (lambda e: repr((start(e, s), [act(e, a) for a in {literal(context.actions(0, 1))}])))(new())",
                    f"a = [*map(play, {seeds})]; pool = ThreadPoolExecutor({_THREADS})",
                    f"assert all([*pool.map(play, {seeds})] == a for _ in range({_ROUNDS}))",
                )
                raise Fault(
                    f"{len(wrong)} of {len(seeds)} seeds give other episodes in {_THREADS} threads",
                    context.code(*lines),
                )
    finally:
        sys.setswitchinterval(interval)
    return passed(f"{len(seeds)} seeds give the same episodes in {_THREADS} threads")


def seed_order(context: Context) -> Outcome:
    """An episode does not depend on another environment that is played in turn with it."""
    context.need_repeats()
    seeds = context.some_seeds(12)
    alone = {s: context.transcript(context.make(), s, context.actions(s)) for s in context.within_time(seeds, 2)}
    seeds = list(alone)
    for seed, other in context.within_time(list(zip(seeds, reversed(seeds), strict=True))):
        if seed == other:
            continue
        first, second = context.make(), context.make()
        actions, others = context.actions(seed), context.actions(other)
        record: list[Any] = [key((first.reset(seed)[0], None))]
        second.reset(other)
        going = True
        for action, another in zip(actions, others, strict=True):
            if going:
                going = not second.step(another).done
            step = first.step(action)
            record.append(comparable(step))
            if step.done:
                break
        if record != alone[seed]:
            place = first_difference(record, alone[seed])
            actions, others = actions[: max(place, 1)], others[: len(alone[other]) - 1]
            raise Fault(
                f"reset(seed={seed}) gives another episode while another environment is played in turn with it",
                context.code(
                    f"A, B = {literal(actions)}, {literal(others[: len(actions)])}; e, f, g = new(), new(), new()",
                    f"a = [repr(start(g, {seed}))] + [repr(act(g, x)) for x in A]; b = [repr(start(e, {seed}))]; start(f, {other})",
                    "b += [(i < len(B) and act(f, B[i]), repr(act(e, x)))[1] for i, x in enumerate(A)]",
                    "assert a == b",
                ),
            )
    return passed(f"{context.tried} seeds give the same episodes in turn with others")


def global_random_read(context: Context) -> Outcome:
    """An episode does not depend on the global generators of ``random`` and of NumPy."""
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
                raise Fault(
                    f"seed {seed}: the global generators decide {'how the episode begins' if not place else 'what a step does'}",
                    context.code(
                        f"import random, sys; fix = lambda g: [m.seed(g) for m in {_MODULES}]",
                        f"play = lambda g: (lambda e: (fix(g), repr((start(e, {seed}), [(fix(g + i), act(e, a))[1] "
                        f"for i, a in enumerate({literal(actions[: max(place, 1)])})])))[1])(new())",
                        "assert play(1) == play(1000)",
                    ),
                )
    return passed(f"{context.tried} seeds give the same episodes whatever the global generators hold")


def global_random_moved(context: Context) -> Outcome:
    """Playing leaves the global generators as they were."""
    actions = context.actions(3)  # to find them resets an environment
    with _restored():
        moved: dict[str, str] = {}
        for name, seed_it, state in _generators():
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
            raise Fault(
                f"global random state is changed ({what})",
                context.code(
                    f"import random, sys; state = lambda: [repr((m.getstate if m is random else m.get_state)()) for m in {_MODULES}]",
                    f"e = new(); start(e, 3); before = state(); start(e, 4); [act(e, a) for a in {literal(actions[:1])}]",
                    "assert state() == before",
                ),
            )
    return passed("reset and step leave the generators of random and NumPy as they were")


def group_level(context: Context) -> Outcome:
    """Members of a group, all opened with one seed before any is played, meet one level."""
    if not context.target.takes_seed:
        if context.single_level:
            raise NotApplicable("reset takes no seed, and every episode begins alike")
        raise Fault(
            "reset takes no seed, so that members of a group meet different levels",
            context.code("a = [repr(start(new(), None)) for _ in range(8)]", "assert len(set(a)) == 1"),
        )
    for seed in context.within_time(context.some_seeds(8)):
        members = [context.make() for _ in range(_MEMBERS)]
        levels = {context.level(member, seed) for member in members}
        if len(levels) > 1:
            raise Fault(
                f"{_MEMBERS} members of a group with seed {seed} meet {len(levels)} levels",
                context.code(f"a = [repr(start(new(), {seed})) for _ in range({_MEMBERS})]", "assert len(set(a)) == 1"),
                members=_MEMBERS,
                levels=len(levels),
            )
    return passed(f"{_MEMBERS} members of each of {context.tried} groups meet one level")


def group_noise(context: Context) -> Outcome:
    """Members of a group share the level without sharing the noise of its dynamics."""
    context.need_repeats()
    if not context.stochastic:
        raise NotApplicable("no noise was seen: the same level and actions always end alike")
    if context.target.separate_noise:
        env = context.make()
        for seed in context.some_seeds(8):
            plain = context.level(env, seed)
            for noise in (1, 2):
                observation, _ = env.reset(seed, noise)
                if key((observation, env.state())) != plain:
                    raise Fault(f"seed {seed}: noise_seed={noise} changes the level, not the noise alone")
        return passed("noise_seed gives each member noise of its own on the same level")
    seed = context.some_seeds(2)[1]
    raise Fault(
        "one seed fixes the level and every random draw after it: members of a group slip together, or meet other levels",
        context.code(
            f"play = lambda e: (start(e, {seed}), [act(e, a) for a in {literal(context.actions(seed, 3))}])",
            "assert len({repr(play(new())) for _ in range(16)}) > 1",
        ),
    )


def fingerprint(context: Context) -> dict[str, Any]:
    """Fingerprint that another process must give as well: the beginnings of many seeds and some episodes."""
    if not context.target.takes_seed:
        return {"seeds": [], "levels": [], "episodes": []}
    context.begin()
    seeds = [*context.some_seeds(), *(2**31 - 1 - 7919 * place for place in range(4 * context.seeds))]
    env = context.make()
    levels = []
    for seed in context.within_time(seeds):
        levels.append(key(env.reset(seed)[0]))
    episodes = [context.transcript(context.make(), seed, context.actions(seed)) for seed in seeds[:_PLAYED]]
    return {
        "seeds": seeds,
        "levels": levels,
        "episodes": episodes,
        "actions": [repr(context.actions(s)) for s in seeds[:_PLAYED]],
    }


def _generators() -> Iterator[tuple[str, Any, Any]]:
    yield "random", random.seed, random.getstate
    if "numpy" in sys.modules:
        import numpy

        yield "numpy.random", numpy.random.seed, numpy.random.get_state


def _seed_global(seed: int) -> None:
    for _, seed_it, _ in _generators():
        seed_it(seed)


@contextmanager
def _restored() -> Iterator[None]:
    """Leave the global generators as they were found."""
    states = [state() for _, _, state in _generators()]
    try:
        yield
    finally:
        setters = [random.setstate]
        if len(states) > 1:
            import numpy

            setters.append(numpy.random.set_state)
        for put, state in zip(setters, states, strict=True):
            put(state)
