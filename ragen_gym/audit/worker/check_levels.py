"""Checks of levels: each has a solution, training and test share none, and seeds do not repeat them."""

from __future__ import annotations

import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from .context import Context, passed
from .protocol import AuditedEnv, NotApplicable, Outcome, check, key, literal

__all__ = ["levels_repeat", "levels_solvable", "split_exact"]

_SEARCHED, _STATES = 8, 4000  # levels that are searched, and states of each
_WALKS, _WALK = 32, 50  # random walks that check a search which found nothing, and actions of each
_TURN = r"(?i)\b(turn|step|move)s?:? \d+"  # what a text says of how long an episode has gone on
_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared
_ALIKE = "the beginnings of all episodes are alike, so that levels cannot be distinguished"


@check(
    "error",
    "No agent can reach the best score; the distance to it says nothing.",
    "Solve each level when it is generated, and draw again those that have no solution.",
)
def levels_solvable(context: Context) -> Outcome:
    """Levels can be solved, and the environment's own answers are right.

    Where it has no answers, breadth-first search over copies looks for a solution.
    """
    env = context.make()
    env.reset(context.some_seeds(2)[1])
    if env.oracle() is not None:
        return _own_answers(context, env)
    context.need_repeats()
    if not context.shared.actions():
        raise NotApplicable("the actions are not a short list, so that they cannot be searched")
    if not context.tells_success:
        raise NotApplicable("info has no word of success, and steps that end no episode earn as much as those that do")
    if not context.clones:
        raise NotApplicable("the environment cannot be copied so that the copy goes its own way")
    if context.stochastic:
        raise NotApplicable("the dynamics are stochastic; the search needs each action to have one outcome")
    seeds = context.some_seeds(_SEARCHED)
    found = {seed: (False, 0) if context.late else _search(context, context.make(), seed) for seed in seeds}
    solved = sum(solution for solution, _ in found.values())
    if not solved and not context.wins:
        raise NotApplicable("no episode was seen to end in success, so that the search has no goal")
    unsolvable = [(seed, states) for seed, (_, states) in found.items() if states]
    if unsolvable:
        seed, states = unsolvable[0]
        raise context.fault(
            f"{len(unsolvable)} of {len(seeds)} levels cannot be solved: all {states} reachable states of seed {seed} "
            "were searched",
            _SEARCH.format(seed=seed, actions=context.shared.actions(), turn=_TURN),
        )
    if not solved:
        raise NotApplicable(
            f"the search found neither a solution nor all states, or observations hide them ({len(seeds)} levels)"
        )
    return passed(f"{solved} of {len(seeds)} levels were solved by search")


def _own_answers(context: Context, env: AuditedEnv) -> Outcome:
    worst: tuple[float, Any, Any] = (float("inf"), None, None)
    for seed in context.within_time(context.some_seeds()):
        env.reset(seed)
        answer = env.oracle() or []
        total = float(sum(float(env.step(action).reward) for action in answer))
        worst = min(worst, (total, seed, answer), key=lambda each: each[0])
    if worst[0] < 1:
        raise context.fault(
            f"the environment's own answer earns {worst[0]:g} on seed {worst[1]}",
            f"e = new(); start(e, {worst[1]}); a = [act(e, x) for x in {worst[2]!r}]",
            "assert sum(x[1] for x in a) >= 1",
        )
    return passed(f"the environment's own answer earns {worst[0]:g} or more on {context.tried} seeds")


def _search(context: Context, env: AuditedEnv, seed: int) -> tuple[bool, int]:
    """Breadth-first: (True, 0) for a solution, (False, the number of states) if there is none, (False, 0) if undecided."""
    observation, _ = env.reset(seed)
    start = _place(observation, env.state())
    leads: dict[tuple[str, str], str] = {}
    seen, queue = {start}, deque([(env, start)])
    cut = False
    while queue:
        at, place = queue.popleft()
        for action in at.actions():
            if len(seen) > _STATES or context.late:
                return False, 0
            following = at.clone()
            step = following.step(action)
            outcome = env.won(step)
            if outcome:
                return True, 0
            new = leads[place, key(action)] = _place(step.observation, following.state())
            if outcome is not None:
                cut = cut or step.truncated
            elif new not in seen:
                seen.add(new)
                queue.append((following, new))
    return False, 0 if cut or not _are_states(context, seed, leads) else len(seen)


def _are_states(context: Context, seed: int, leads: Mapping[tuple[str, str], str]) -> bool:
    """True if random walks find that an action leads from a place to the one that the search found, and to no other.

    An observation of a part of the board is the same in many states, and the search goes on from the first alone.
    """
    chosen, env = random.Random(seed), context.make()
    for _ in range(_WALKS):
        if context.late:
            return False
        observation, _ = env.reset(seed)
        place = _place(observation, env.state())
        for _ in range(_WALK):
            action = chosen.choice(env.actions())
            step = env.step(action)
            if env.won(step) is not None:  # at a limit of turns, maybe
                break
            new = _place(step.observation, env.state())
            if leads.get((place, key(action))) != new:
                return False
            place = new
    return True


def _place(observation: Any, state: Any) -> str:
    """Where an episode is, whatever the number of the turn."""
    shown = re.sub(_TURN, "", observation) if isinstance(observation, str) else observation
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if not re.search("turn|step", str(name))}
    return key((shown, state))


_SEARCH = """\
import copy, re; e = new(); place = lambda o: re.sub({turn!r}, '', repr(o)); seen = {{place(start(e, {seed}))}}; queue = [e]; solved = False
for f, x in ((copy.deepcopy(at), x) for at in queue for x in {actions}):
    a = act(f, x); solved |= bool(a[2] and a[1] > 0); new_place = not a[2] and place(a[0]) not in seen; seen.add(place(a[0])); new_place and queue.append(f)
assert solved"""


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


def _shared(known: Mapping[int, str], asked: Mapping[int, str]) -> list[tuple[int, int]]:
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
