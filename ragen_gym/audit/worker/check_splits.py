"""Checks of the splits: levels of the test that are levels of training, or next to one, and seeds that repeat levels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .context import Context, Fault, passed
from .protocol import NotApplicable, Outcome, literal

__all__ = ["levels_repeat", "split_exact", "split_near", "split_symmetry"]

Grid = tuple[tuple[Any, ...], ...]

_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared
_SYMBOLS = 16  # a text grid with more kinds of cells is no board
_ALIKE = "the beginnings of all episodes are alike, so that levels cannot be distinguished"


def split_exact(context: Context) -> Outcome:
    """No level of the test split is a level of the training split."""
    train, test, where = _drawn(context)
    known: dict[str, int] = {}
    for seed, level, _ in train:
        known.setdefault(level, seed)
    shared = [(seed, known[level]) for seed, level, _ in test if level in known]
    numbers = {"test": len(test), "train": len(train), "shared": len(shared)}
    if len({level for _, level, _ in train}) == 1 and len({level for _, level, _ in test}) == 1:
        raise NotApplicable(_ALIKE)
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
    known = {essence(level, grid, texts.get(level)): seed for seed, level, grid in train}
    exact = {level for _, level, _ in train}
    boards = {_canonical(grid) for _, _, grid in train if grid is not None}
    shared = []
    for seed, level, grid in test:
        if level in exact or (grid is not None and _canonical(grid) in boards):
            continue  # counted by the other two checks
        if (same := essence(level, grid, texts.get(level))) in known:
            shared.append((seed, known[same]))
    numbers = {"test": len(test), "train": len(train), "shared": len(shared)}
    if not grids and not any(isinstance(texts.get(level), str) for level in exact):
        raise NotApplicable("levels are neither boards nor texts")
    if shared:
        seed, same = shared[0]
        what = "in where the player stands" if grids else "in the order of their words"
        evidence = (
            "import re",
            r"assert sorted(re.findall(r'\w+', a.lower())) != sorted(re.findall(r'\w+', b.lower()))",
        )
        if grids:
            evidence = _SYMMETRY, f"assert not alike(gone(a, {player!r}, {floor!r}), gone(b, {player!r}, {floor!r}))"
        raise Fault(
            f"{len(shared)} of {len(test)} levels of the test differ from one of training only {what} ({where})",
            context.code(*_two(context, same, seed), *evidence),
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
        raise NotApplicable(_ALIKE)
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
        f"play = lambda e, s: (start(e, s), [act(e, a) for a in {literal(context.actions(0)[: len(played)])}])",
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
