"""Checks of levels: their own answers are right, training and test share none, and seeds do not repeat them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .context import Context, passed
from .protocol import NotApplicable, Outcome, check, literal

__all__ = ["answers_right", "levels_repeat", "split_exact"]

_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared
_ALIKE = "the beginnings of all episodes are alike, so that levels cannot be distinguished"


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


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _levels(context: Context, seeds: Iterable[int], parts: int, **options: Any) -> dict[int, str]:
    """The levels by seed, each as ``Context.whole_level`` tells it."""
    env = context.make(**options)
    return {seed: context.whole_level(env, seed) for seed in context.within_time(seeds, parts)}


def _shared(known: dict[int, str], asked: dict[int, str]) -> list[tuple[int, int]]:
    """Pairs of seeds that give one level; raises NotApplicable where all levels are one."""
    if len({*known.values(), *asked.values()}) == 1:
        raise NotApplicable(_ALIKE)
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
