"""Write the level files of a suite, from what its table says of each in ``freeze``.

Run ``python -m ragen_gym.bench.suites.freeze`` for the suites of this package, or give folders. The same table always
gives the same bytes. A file is the first ``distinct`` different levels (by default all of ``count``) that the split's
environment draws from ``split`` (by default ``"test"``, which no training meets) with ``seed`` (by default 0), repeated
in turn up to ``count``. With ``families`` in place of ``distinct`` it is the first so many levels of which no two are
of one family. A file without ``freeze`` is given, and left alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ragen_gym.bench.suites import SUITE_FILE, SUITES, env_options, read_table
from ragen_gym.core.levels import Level, write_levels
from ragen_gym.envs.episode_stream import distinct_boards
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Game

__all__ = ["frozen_levels", "main", "recipes"]


def recipes(folder: Path) -> dict[Path, dict[str, Any]]:
    """The files of a suite's folder that can be made, and the row of the split that says how.

    Raises:
        ValueError: two splits say how to make one file.
    """
    found: dict[Path, dict[str, Any]] = {}
    for row in read_table(folder / SUITE_FILE)["splits"]:
        path = folder / row["levels"]
        if "freeze" in row and path in found:
            raise ValueError(f"{path}: two splits say how to freeze it; let one of them only name the file.")
        if "freeze" in row:
            found[path] = row
    return found


def frozen_levels(row: dict[str, Any]) -> list[Level]:
    """The levels of a split's row.

    Raises:
        ValueError: the environment does not have so many different levels, or an unknown setting.
    """
    recipe = {"seed": 0, "split": "test", **row["freeze"]}
    count, seed, split = (recipe.pop(key, None) for key in ("count", "seed", "split"))
    apart = "families" if "families" in recipe else "distinct"
    distinct = recipe.pop(apart, count)
    if recipe or not all(isinstance(n, int) and n > 0 for n in (count, distinct)):
        raise ValueError(
            f"{row['name']}: freeze takes count, and distinct or families, from 1 on, seed and split; got {recipe}."
        )
    env = StepEnv(row["env"], split=split, **env_options(row.get("knobs", {})))
    found = distinct_boards(env.game, seed, split)
    boards = [*islice(_of_other_families(env.game, found) if apart == "families" else found, distinct)]
    if len(boards) < distinct:
        what = {"families": "families of levels", "distinct": "different levels"}[apart]
        raise ValueError(
            f"{row['name']}: {env.game_spec.id} has only {len(boards)} of {distinct} {what}; ask for fewer."
        )
    return list(islice(cycle(map(env.game.level, boards)), count))


def _of_other_families(game: Game, boards: Iterable[bytes]) -> Iterator[bytes]:
    """The first board of each family."""
    met = set[int]()
    for board in boards:
        family = game.family(board)
        if family not in met:
            met.add(family)
            yield board


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files of the suites; 0."""
    parser = argparse.ArgumentParser(description="Write the level files of suites, from their tables.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of suites (default: the package's)")
    for folder in parser.parse_args(argv).folders or SUITES.values():
        for path, row in recipes(folder).items():
            levels = frozen_levels(row)
            write_levels(path, levels)
            print(f"{path}: {len(levels)} levels, {len(set(levels))} different")
    return 0


if __name__ == "__main__":
    sys.exit(main())
