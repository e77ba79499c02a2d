"""Write the level files of a suite, from what its table says of each in ``freeze``.

Run ``ragen-gym bench freeze`` with a suite, or ``python -m ragen_gym.bench.suites.freeze`` for those of this package.
The same table always gives the same bytes. A file is the first ``distinct`` different levels (by default all of
``count``) that the split's environment draws from ``split`` (by default ``"test"``, which no training meets) with
``seed`` (by default 0), repeated in turn up to ``count``. With ``families`` in place of ``distinct`` it is the first so
many levels of which no two are of one family. A file without ``freeze`` is given, and left alone.

The problems of a text task are those of the seeds from ``seed`` on, in its ``env_options.split`` (default ``"test"``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ragen_gym.bench.suites import SUITES, task_env
from ragen_gym.bench.suites.table import SUITE_FILE, Problem, draw_problems, env_options, read_table, write_problems
from ragen_gym.core.levels import Level, write_levels
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.episode_stream import distinct_boards
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Game
from ragen_gym.games.registry import load_task


def recipes(suite: Path) -> dict[Path, dict[str, Any]]:
    """The files of a suite, by its folder or its table, that can be made, and the row of the split that says how.

    Raises:
        ValueError: two splits say how to make one file.
    """
    found: dict[Path, dict[str, Any]] = {}
    table = suite / SUITE_FILE if suite.is_dir() else suite
    for row in read_table(table)["splits"]:
        path = table.parent / row["levels"]
        if "freeze" in row and path in found:
            raise ValueError(f"{path}: two splits say how to freeze it; let one of them only name the file.")
        if "freeze" in row:
            found[path] = row
    return found


def frozen_levels(row: dict[str, Any]) -> list[Level] | list[Problem]:
    """The levels of a split's row, or the problems of a text task.

    Raises:
        ValueError: the environment does not have so many different levels, or an unknown setting.
    """
    is_task = load_task(row["env"]) is not None
    recipe = {"seed": 0, **({} if is_task else {"split": "test"}), **row["freeze"]}
    count, seed, split = (recipe.pop(key, None) for key in ("count", "seed", "split"))
    apart = "families" if "families" in recipe else "distinct"
    distinct = recipe.pop(apart, count)
    if recipe or not all(isinstance(n, int) and n > 0 for n in (count, distinct)):
        raise ValueError(
            f"{row['name']}: freeze takes count, and distinct or families, from 1 on, seed and split; got "
            f"{row['freeze']}."
        )
    if is_task:
        if split is not None:
            raise ValueError(f"{row['name']}: a text task has its split in env_options: write split = {split!r} there.")
        problems = draw_problems(task_env(row["env"], TurnConfig(), row.get("env_options", {})), seed, distinct)
        if len(problems) < distinct:
            raise ValueError(
                f"{row['name']}: {row['env']} has only {len(problems)} of {distinct} different problems; ask for fewer."
            )
        return list(islice(cycle(problems), count))
    env = StepEnv(row["env"], split=split, **env_options(row.get("env_options", {})))
    found = distinct_boards(env.game, seed, split)
    boards = [*islice(_of_other_families(env.game, found) if apart == "families" else found, distinct)]
    if len(boards) < distinct:
        what = {"families": "families of levels", "distinct": "different levels"}[apart]
        raise ValueError(
            f"{row['name']}: {env.game_spec.id} has only {len(boards)} of {distinct} {what}; ask for fewer."
        )
    return list(islice(cycle(map(env.game.level, boards)), count))


def write_frozen(path: Path, levels: Iterable[Level | Problem]) -> None:
    """Write the levels of a split, or its problems, as ``load_suite`` reads them; the write is atomic."""
    levels = list(levels)
    if problems := [each for each in levels if isinstance(each, Problem)]:
        write_problems(path, problems)
    elif path.suffix == ".jsonl":
        raise ValueError(f"{path}: a game's levels are written as boards, not as JSON; end its name in .txt.")
    else:
        write_levels(path, [each for each in levels if isinstance(each, Level)])


def _of_other_families(game: Game, boards: Iterable[bytes]) -> Iterator[bytes]:
    """The first board of each family."""
    met = set[int]()
    for board in boards:
        family = game.family(board)
        if family not in met:
            met.add(family)
            yield board


def freeze(suite: Path) -> None:
    """Write the files of a suite, and say which.

    Raises:
        ValueError: see ``recipes`` and ``frozen_levels``.
    """
    for path, row in recipes(suite).items():
        levels = frozen_levels(row)
        write_frozen(path, levels)
        print(f"{path}: {len(levels)} levels, {len(set(levels))} different")


if __name__ == "__main__":
    for folder in SUITES.values():
        freeze(folder)
