"""Checks of the levels: splits that overlap, levels that cannot be solved, levels that need no play."""

from __future__ import annotations

import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .context import Context, Fault, passed
from .protocol import AuditedEnv, NotApplicable, Outcome, key

__all__ = ["levels_repeat", "levels_solvable", "levels_trivial", "split_exact", "split_near", "split_symmetry"]

Grid = tuple[tuple[Any, ...], ...]

_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared
_SEARCHED, _STATES = 8, 4000  # levels that are searched, and states of each
_WALKS, _WALK = 32, 50  # random walks that check a search which found nothing, and actions of each
_TURN = r"(?i)\b(turn|step|move)s?:? \d+"  # what a text says of how long an episode has gone on
_SYMBOLS = 16  # a text grid with more kinds of cells is no board


def split_exact(context: Context) -> Outcome:
    """No level of the test split is a level of the training split."""
    train, test, where = _drawn(context)
    known: dict[str, int] = {}
    for seed, level, _ in train:
        known.setdefault(level, seed)
    shared = [(seed, known[level]) for seed, level, _ in test if level in known]
    numbers = {"test": len(test), "train": len(train), "shared": len(shared)}
    if len({level for _, level, _ in train}) == 1 and len({level for _, level, _ in test}) == 1:
        raise NotApplicable("the beginnings of all episodes are alike, so that levels cannot be distinguished")
    if shared:
        seed, same = shared[0]
        raise Fault(
            f"{len(shared)} of {len(test)} levels of the test are among {len(train)} of training ({where})",
            context.code(*_alike(context, same, seed, context.facts["options"])),
            **numbers,
        )
    return passed(f"none of {len(test)} levels of the test is among {len(train)} of training ({where})", **numbers)


def split_symmetry(context: Context) -> Outcome:
    """No level of the test split is a rotation or reflection of one of the training split."""
    train, test, where = _drawn(context)
    known = {_canonical(grid): seed for seed, _, grid in train if grid is not None}
    boards = [(seed, grid) for seed, _, grid in test if grid is not None]
    if not known or not boards:
        raise NotApplicable("the observations hold no board of cells")
    exact = {level for _, level, _ in train}
    shared = [
        (seed, known[_canonical(grid)])
        for seed, level, grid in test
        if grid is not None and level not in exact and _canonical(grid) in known
    ]
    numbers = {"test": len(boards), "train": len(train), "shared": len(shared)}
    if shared:
        seed, same = shared[0]
        raise Fault(
            f"{len(shared)} of {len(boards)} boards of the test are a rotation or reflection of one of training ({where})",
            context.code(*_two(context, same, seed), _SYMMETRY, "assert not alike(a, b)"),
            **numbers,
        )
    return passed(
        f"no board of the test is a rotation or reflection of one of {len(train)} of training ({where})", **numbers
    )


def split_near(context: Context) -> Outcome:
    """No level of the test differs from one of training only in where the player stands, or in the order of words."""
    train, test, where = _drawn(context)
    player, floor = _player(context)
    grids = [grid for _, _, grid in train if grid is not None]
    if grids and player is None:
        raise NotApplicable("no single cell of the board was seen to move, so that no player is known")

    def essence(level: str, grid: Grid | None, text: Any) -> Any:
        if grid is not None:
            return _canonical(tuple(tuple(floor if cell == player else cell for cell in row) for row in grid))
        if isinstance(text, str):
            return tuple(sorted(re.findall(r"\w+", text.lower())))
        return level

    texts = context.facts["texts"]
    known = {essence(level, grid, texts.get(level)): (seed, level) for seed, level, grid in train}
    exact = {level for _, level, _ in train}
    boards = {_canonical(grid) for _, _, grid in train if grid is not None}
    shared = []
    for seed, level, grid in test:
        if level in exact or (grid is not None and _canonical(grid) in boards):
            continue  # counted by the other two checks
        found = known.get(essence(level, grid, texts.get(level)))
        if found:
            shared.append((seed, found[0]))
    numbers = {"test": len(test), "train": len(train), "shared": len(shared)}
    if not grids and not any(isinstance(texts.get(level), str) for level in exact):
        raise NotApplicable("levels are neither boards nor texts")
    if shared:
        seed, same = shared[0]
        what = "in where the player stands" if grids else "in the order of their words"
        test_line = (
            f"P = {player!r}; less = lambda x: x.replace(P, '') if isinstance(x, str) else x" if grids else "import re"
        )
        last = (
            f"assert not alike(gone(a, {player!r}, {floor!r}), gone(b, {player!r}, {floor!r}))"
            if grids
            else "assert sorted(re.findall(r'\\w+', a.lower())) != sorted(re.findall(r'\\w+', b.lower()))"
        )
        raise Fault(
            f"{len(shared)} of {len(test)} levels of the test differ from one of training only {what} ({where})",
            context.code(*_two(context, same, seed), _SYMMETRY if grids else test_line, last),
            **numbers,
        )
    return passed(f"no level of the test is next to one of {len(train)} of training ({where})", **numbers)


def levels_repeat(context: Context) -> Outcome:
    """Seeds far apart, as used for training and test without a split, give different levels."""
    context.need_repeats()
    if context.target.levels_listed:
        raise NotApplicable("the levels are a list, which seeds far apart begin again")
    context.need_levels()
    env = context.make()
    first = {seed: context.whole_level(env, seed) for seed in context.within_time(range(_TRAIN), 2)}
    far = {seed: context.whole_level(env, seed) for seed in context.within_time(range(_APART, _APART + _TEST))}
    numbers = {"train": len(first), "test": len(far), "distinct": len(set(first.values()))}
    if len(set(first.values()) | set(far.values())) == 1:
        raise NotApplicable("the beginnings of all episodes are alike, so that levels cannot be distinguished")
    known = {level: seed for seed, level in first.items()}
    shared = [(seed, known[level]) for seed, level in far.items() if level in known]
    if shared and not (context.train or context.target.splits()):
        seed, same = shared[0]
        raise Fault(
            f"{len(shared)} of {len(far)} seeds from {_APART} on begin and go on as one of the first {len(first)} seeds does "
            f"({numbers['distinct']} distinct levels among these); there is no split",
            context.code(*_alike(context, same, seed, ({}, {}))),
            shared=len(shared),
            **numbers,
        )
    if shared:
        return passed("seeds repeat levels, and the target declares splits; see the checks of them", **numbers)
    return passed(f"{len(far)} seeds from {_APART} on give no level of the first {len(first)} seeds", **numbers)


def levels_solvable(context: Context) -> Outcome:
    """Every level can be solved: by the environment's own answer, or by search over copies."""
    answered = _own_answers(context)
    if answered is not None:
        return answered
    solved, unsolvable, undecided = _searched(context)
    numbers = {"solved": len(solved), "unsolvable": len(unsolvable), "undecided": undecided}
    if not solved and not context.wins:
        raise NotApplicable("no episode was seen to end in success, so that the search has no goal")
    if unsolvable:
        seed, states = unsolvable[0]
        raise Fault(
            f"{len(unsolvable)} of {sum((len(solved), len(unsolvable), undecided))} levels cannot be solved: all {states} "
            f"reachable states of seed {seed} were searched",
            context.code(*_SEARCH.format(seed=seed, actions=context.shared.actions(), turn=_TURN).split("\n")),
            **numbers,
        )
    if not solved:
        raise NotApplicable(
            f"the search found neither a solution nor all states, or observations hide them ({undecided} levels)"
        )
    return passed(f"{len(solved)} of {len(solved) + undecided} levels were solved by search", **numbers)


def levels_trivial(context: Context) -> Outcome:
    """Levels need play: none is solved at the start, and few by one action."""
    if all(len(steps) == 1 and steps[0].done for _, _, steps in context.played):
        raise NotApplicable("every episode is one action")
    solved, _, undecided = _searched(context)
    if not solved:
        raise NotApplicable(f"no solution was found by search ({undecided} levels undecided)")
    lengths = Counter(len(path) for path in solved.values())
    short = [seed for seed, path in solved.items() if len(path) <= 1]
    numbers = {"shortest": min(lengths), "median": sorted(lengths.elements())[len(solved) // 2]}
    if len(short) * 2 > len(solved):
        seed = short[0]
        raise Fault(
            f"{len(short)} of {len(solved)} levels are solved by a single action",
            context.code(
                f"e = new(); start(e, {seed}); a = act(e, {solved[seed][0]!r})", "assert not (a[1] > 0 and a[2])"
            ),
            **numbers,
        )
    return passed(
        f"the solutions found have {min(lengths)} to {max(lengths)} actions on {len(solved)} levels", **numbers
    )


def _own_answers(context: Context) -> Outcome | None:
    env = context.make()
    env.reset(context.some_seeds(2)[1])
    if env.oracle() is None:
        return None
    if not context.target.takes_seed:
        seeds: Sequence[int | None] = [None]
    else:
        seeds = context.some_seeds()
    worst: tuple[float, Any, Any] = (float("inf"), None, None)
    for seed in context.within_time(seeds):
        env.reset(seed)
        answer = env.oracle() or []
        total = 0.0
        for action in answer:
            total += float(env.step(action).reward)
        if total < worst[0]:
            worst = (total, seed, answer)
    if worst[0] < 1:
        raise Fault(
            f"the environment's own answer earns {worst[0]:g} on seed {worst[1]}",
            context.code(
                f"e = new(); start(e, {worst[1]}); a = [act(e, x) for x in {worst[2]!r}]",
                "assert sum(x[1] for x in a) >= 1",
            ),
            own_answer=worst[0],
        )
    return passed(f"the environment's own answer earns {worst[0]:g} or more on {len(seeds)} seeds")


def _searched(context: Context) -> tuple[dict[int, list[Any]], list[tuple[int, int]], int]:
    """(solutions by seed, (seed, states) of levels without one, number of undecided levels)."""
    if "searched" in context.facts:
        found: tuple[dict[int, list[Any]], list[tuple[int, int]], int] = context.facts["searched"]
        return found
    context.need_repeats()
    if not context.shared.actions():
        raise NotApplicable("the actions are not a short list, so that they cannot be searched")
    context.need_clones()
    if context.stochastic:
        raise NotApplicable("the dynamics are stochastic; the search needs each action to have one outcome")
    solved: dict[int, list[Any]] = {}
    unsolvable: list[tuple[int, int]] = []
    undecided = 0
    for seed in context.some_seeds(_SEARCHED):
        if context.late:
            undecided += 1
            continue
        env = context.make()
        path, states = search(context, env, seed)
        if path is not None:
            solved[seed] = path
        elif states:
            unsolvable.append((seed, states))
        else:
            undecided += 1
    context.facts["searched"] = solved, unsolvable, undecided
    return solved, unsolvable, undecided


def search(context: Context, env: AuditedEnv, seed: int) -> tuple[list[Any] | None, int]:
    """Breadth-first: (a solution, 0), or (None, the number of states) where there is none, or (None, 0) if undecided.

    The solution is a shortest one unless observations hide the state.
    """
    observation, _ = env.reset(seed)
    start = _place(observation, env.state())
    leads: dict[tuple[str, str], str] = {}
    seen, queue = {start}, deque([(env, start, list[Any]())])
    cut = False
    while queue:
        at, place, path = queue.popleft()
        for action in at.actions():
            if len(seen) > _STATES or context.late:
                return None, 0
            following = at.clone()
            step = following.step(action)
            outcome = env.won(step)
            if outcome:
                return [*path, action], 0
            new = leads[place, key(action)] = _place(step.observation, following.state())
            if outcome is not None:
                cut = cut or step.truncated
            elif new not in seen:
                seen.add(new)
                queue.append((following, new, [*path, action]))
    return None, 0 if cut or not _are_states(context, seed, leads) else len(seen)


def _are_states(context: Context, seed: int, leads: Mapping[tuple[str, str], str]) -> bool:
    """Whether random walks find that an action leads from a place to the one that the search found, and to no other.

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


def _drawn(context: Context) -> tuple[list[tuple[int, str, Grid | None]], list[tuple[int, str, Grid | None]], str]:
    """Levels of training and of the test as (seed, level, board), and how they were chosen."""
    if "drawn" not in context.facts:
        if not context.target.takes_seed:
            raise NotApplicable("reset takes no seed, so that no level can be drawn again")
        if context.train and context.test:
            train, test, where = context.train, context.test, "the seeds and options that were given"
        else:
            declared = context.target.splits()
            if declared is None:
                raise NotApplicable("the target declares no splits: give --train and --test")
            train, test = (range(_TRAIN), declared[0]), (range(_TEST), declared[1])
            where = f"{_options(declared[0])} and {_options(declared[1])}"
        context.facts["texts"] = {}
        context.facts["options"] = train[1], test[1]
        context.facts["drawn"] = _levels(context, *train, 2), _levels(context, *test, 1), where
    drawn: tuple[list[tuple[int, str, Grid | None]], list[tuple[int, str, Grid | None]], str] = context.facts["drawn"]
    return drawn


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _levels(
    context: Context, seeds: Iterable[int], options: dict[str, Any], parts: int
) -> list[tuple[int, str, Grid | None]]:
    env = context.make(**options)
    found = []
    for seed in context.within_time(seeds, parts):
        level = context.whole_level(env, seed)
        observation, _ = env.reset(seed)
        context.facts["texts"][level] = observation
        found.append((seed, level, board(observation)))
    return found


def _two(context: Context, train_seed: int, test_seed: int) -> list[str]:
    train, test = context.facts["options"]
    return [f"a, b = start(new({_options(train)}), {train_seed}), start(new({_options(test)}), {test_seed})"]


def _alike(context: Context, first: int, second: int, options: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
    """Evidence that two levels are one: they begin alike and, without noise, go on alike under fixed actions."""
    env = context.make(**options[0])
    played = [] if context.stochastic else context.episode(env, first, context.actions(0))[1]
    one, two = map(_options, options)
    return [
        f"play = lambda e, s: (start(e, s), [act(e, a) for a in {context.actions(0)[: len(played)]!r}])",
        f"a, b = play(new({one}), {first}), play(new({two}), {second})",
        "assert repr(a) != repr(b)",
    ]


def board(observation: Any) -> Grid | None:
    """The cells of a two-dimensional array of few values, or of the largest block of even lines in a text."""
    if isinstance(observation, dict):
        found = [board(each) for each in observation.values()]
        return next((each for each in found if each is not None), None)
    if hasattr(observation, "tolist") and getattr(observation, "ndim", 0) == 2 and observation.shape[0] > 2:
        cells = tuple(tuple(row) for row in observation.tolist())
        return cells if len({cell for row in cells for cell in row}) <= _SYMBOLS else None
    if not isinstance(observation, str):
        return None
    best: list[str] = []
    block: list[str] = []
    for line in [*(each.strip() for each in observation.split("\n")), ""]:
        cells_of = line.split() if " " in line or "\t" in line else line
        if line and not any(len(cell) > 1 for cell in cells_of) and (not block or len(cells_of) == len(block[-1])):
            block.append("".join(cells_of))
            continue
        if len(block) > len(best):
            best = block
        block = []
    if len(best) < 3 or len(best[0]) < 3 or len(set("".join(best))) > _SYMBOLS:
        return None
    return tuple(tuple(row) for row in best)


def _canonical(grid: Grid) -> Grid:
    forms = []
    for each in (grid, tuple(zip(*grid, strict=True))):
        forms += [each, each[::-1], tuple(row[::-1] for row in each), tuple(row[::-1] for row in each[::-1])]
    return min(forms, key=repr)


def _player(context: Context) -> tuple[Any, Any]:
    """The value of the one cell that moves with most actions, and what it leaves behind; None where none moves."""
    moved: Counter[Any] = Counter()
    env = context.make()
    for seed in context.some_seeds(8):
        observation, _ = env.reset(seed)
        before = board(observation)
        for action in context.actions(seed):
            step = env.step(action)
            after = board(step.observation)
            if before is not None and after is not None and len(before) == len(after):
                cells = [cell for row in before for cell in row]
                later = [cell for row in after for cell in row]
                changed = [pair for pair in zip(cells, later, strict=False) if pair[0] != pair[1]]
                counts, counts_later = Counter(cells), Counter(later)
                for cell in {one for one, _ in changed} & {two for _, two in changed}:
                    if counts[cell] == counts_later[cell] == 1:
                        moved[cell, next(two for one, two in changed if one == cell)] += 1
            if step.done:
                break
            before = after
    return moved.most_common(1)[0][0] if moved else (None, None)


_SYMMETRY = """\
def cells(x):
    x = next((v for v in x.values() if getattr(v, 'ndim', 0) == 2 or isinstance(v, str)), x) if isinstance(x, dict) else x
    if hasattr(x, 'tolist'): return [list(map(str, row)) for row in x.tolist()]
    best, block = [], []
    for line in [each.strip() for each in str(x).split('\\n')] + ['']:
        row = line.split() if ' ' in line or '\\t' in line else list(line)
        if line and all(len(c) == 1 for c in row) and (not block or len(row) == len(block[-1])): block.append(row)
        else: best, block = max(best, block, key=len), []
    return best
def gone(x, p, f): return [[str(f) if c == str(p) else c for c in row] for row in cells(x)]
def alike(x, y):
    x, y = [z if isinstance(z, list) else cells(z) for z in (x, y)]
    turned = [x, [list(c) for c in zip(*x)]]
    return any(y == [r[::d] for r in t[::u]] for t in turned for d in (1, -1) for u in (1, -1))"""

_SEARCH = """\
import copy, re; e = new(); place = lambda o: re.sub({turn!r}, '', repr(o)); seen = {{place(start(e, {seed}))}}; queue = [e]; solved = False
for f, x in ((copy.deepcopy(at), x) for at in queue for x in {actions}):
    a = act(f, x); solved |= bool(a[2] and a[1] > 0); new_place = not a[2] and place(a[0]) not in seen; seen.add(place(a[0])); new_place and queue.append(f)
assert solved"""
