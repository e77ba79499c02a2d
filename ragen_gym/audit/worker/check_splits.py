"""Checks of the splits: levels of the test that are levels of training, or next to one, and seeds that repeat levels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from .context import Context, passed
from .protocol import NotApplicable, Outcome, check, literal

__all__ = ["levels_repeat", "split_exact", "split_near", "split_symmetry"]

Grid = tuple[tuple[Any, ...], ...]

_TRAIN, _TEST = 512, 128  # levels that are drawn of each split
_APART = 10**6  # what lies between the seeds of training and of the test, where nothing else is declared
_SYMBOLS = 16  # a text grid with more kinds of cells is no board
_ALIKE = "the beginnings of all episodes are alike, so that levels cannot be distinguished"


class Level(NamedTuple):
    """A level that was drawn."""

    seed: int
    key: str
    shown: Any  # the first observation
    grid: Grid | None  # the board in it


class Drawn(NamedTuple):
    """Levels of both sides of a split, and how they were chosen."""

    train: list[Level]
    test: list[Level]
    options: tuple[dict[str, Any], dict[str, Any]]
    where: str


@check(
    "error",
    "The test measures memory of training levels.",
    "Decide the split by a hash of the level, not by the seed, and draw again what falls on the other side.",
)
def split_exact(context: Context) -> Outcome:
    """Training and test share no level."""
    train, test, options, where = _drawn(context)
    known = {level.key: level.seed for level in reversed(train)}
    shared = [(known[level.key], level.seed) for level in test if level.key in known]
    if len(known) == 1 and len({level.key for level in test}) == 1:
        raise NotApplicable(_ALIKE)
    if shared:
        raise context.fault(
            f"{len(shared)} of {len(test)} levels of the test are among {len(train)} of training ({where})",
            *_alike(context, *shared[0], options),
        )
    return passed(f"none of {len(test)} levels of the test is among {len(train)} of training ({where})")


@check(
    "warning",
    "A rotated board is the same task; the test is easier than it says.",
    "Decide the split by a hash of the canonical form, the smallest of the eight rotations and reflections.",
)
def split_symmetry(context: Context) -> Outcome:
    """No level of the test is a rotation or reflection of one of training."""
    train, test, options, where = _drawn(context)
    known = {_canonical(level.grid): level.seed for level in train if level.grid is not None}
    boards = [(level, _canonical(level.grid)) for level in test if level.grid is not None]
    if not known or not boards:
        raise NotApplicable("the observations hold no board of cells")
    exact = {level.key for level in train}
    shared = [(known[form], level.seed) for level, form in boards if level.key not in exact and form in known]
    if shared:
        raise context.fault(
            f"{len(shared)} of {len(boards)} boards of the test are a rotation or reflection of one of training ({where})",
            _two(options, *shared[0]),
            _SYMMETRY,
            "assert not alike(a, b)",
        )
    return passed(f"no board of the test is a rotation or reflection of one of {len(train)} of training ({where})")


@check(
    "note",
    "A board with the player one cell further, or a question with its numbers in another order, is no new task.",
    "Decide the split by what stays when the player's place, or the order of words, is taken away.",
)
def split_near(context: Context) -> Outcome:
    """No level of the test is next to one of training: with the player elsewhere, or with its words in another order."""
    train, test, options, where = _drawn(context)
    player, floor = _player(context)
    grids = [level.grid for level in train if level.grid is not None]
    if grids and player is None:
        raise NotApplicable("no single cell of the board was seen to move, so that no player is known")
    if not grids and not any(isinstance(level.shown, str) for level in train):
        raise NotApplicable("levels are neither boards nor texts")

    def essence(level: Level) -> Any:
        if level.grid is not None:
            return _canonical(tuple(tuple(floor if cell == player else cell for cell in row) for row in level.grid))
        if isinstance(level.shown, str):
            return tuple(sorted(re.findall(r"\w+", level.shown.lower())))
        return level.key

    known = {essence(level): level.seed for level in train}
    exact, boards = {level.key for level in train}, set(map(_canonical, grids))
    shared = [
        (known[same], level.seed)
        for level in test
        if level.key not in exact  # counted by the other two checks
        and (level.grid is None or _canonical(level.grid) not in boards)
        and (same := essence(level)) in known
    ]
    if shared:
        what = "in where the player stands" if grids else "in the order of their words"
        evidence = (
            "import re",
            r"assert sorted(re.findall(r'\w+', a.lower())) != sorted(re.findall(r'\w+', b.lower()))",
        )
        if grids:
            evidence = _SYMMETRY, f"assert not alike(gone(a, {player!r}, {floor!r}), gone(b, {player!r}, {floor!r}))"
        raise context.fault(
            f"{len(shared)} of {len(test)} levels of the test differ from one of training only {what} ({where})",
            _two(options, *shared[0]),
            *evidence,
        )
    return passed(f"no level of the test is next to one of {len(train)} of training ({where})")


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
    env = context.make()
    first = {seed: context.whole_level(env, seed) for seed in context.within_time(range(_TRAIN), 2)}
    far = {seed: context.whole_level(env, seed) for seed in context.within_time(range(_APART, _APART + _TEST))}
    if len({*first.values(), *far.values()}) == 1:
        raise NotApplicable(_ALIKE)
    known = {level: seed for seed, level in first.items()}
    shared = [(known[level], seed) for seed, level in far.items() if level in known]
    if not shared:
        return passed(f"{len(far)} seeds from {_APART} on give no level of the first {len(first)} seeds")
    if context.train or context.target.splits():
        return passed("seeds repeat levels, and the target declares splits; see the checks of them")
    raise context.fault(
        f"{len(shared)} of {len(far)} seeds from {_APART} on begin and go on as one of the first {len(first)} seeds does "
        f"({len(known)} distinct levels among these); there is no split",
        *_alike(context, *shared[0], ({}, {})),
    )


def _drawn(context: Context) -> Drawn:
    """Levels of training and of the test, drawn once."""
    if context.drawn is None:
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
        context.drawn = Drawn(_levels(context, *train, 2), _levels(context, *test, 1), (train[1], test[1]), where)
    drawn: Drawn = context.drawn
    return drawn


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _levels(context: Context, seeds: Iterable[int], options: dict[str, Any], parts: int) -> list[Level]:
    env = context.make(**options)
    found = []
    for seed in context.within_time(seeds, parts):
        level = context.whole_level(env, seed)
        observation, _ = env.reset(seed)
        found.append(Level(seed, level, observation, board(observation)))
    return found


def _two(options: tuple[dict[str, Any], dict[str, Any]], train_seed: int, test_seed: int) -> str:
    train, test = map(_options, options)
    return f"a, b = start(new({train}), {train_seed}), start(new({test}), {test_seed})"


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
