"""Distance of held-out levels from training levels: rooms moved as a whole, and what the suites hold.

``python -m benchmarks.heldout`` writes ``heldout.md``, in a minute or a few. Splits own families whole
(``ragen_gym.games.game.Game.family``), so no test level is a rotation or a reflection of a training level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np

from benchmarks import markdown_table, page_parser
from ragen_gym.bench.suites import SUITES, Split, load_suite
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.text import EDGE
from ragen_gym.envs.episode_stream import distinct_boards
from ragen_gym.games.game import Game
from ragen_gym.games.registry import TABLE, build_game
from ragen_gym.games.sokoban.rules import Tile

GAMES = {"Sokoban": "Sokoban, 6x6, one box", "LargeSokoban": "LargeSokoban"}
BLOCK = 4096  # levels that are generated at a time

PAGE = """\
# Held-out levels

Written by `python -m benchmarks.heldout`. Two levels make one problem, and are of one *family*, where they are
rotations or reflections of the same room of Sokoban, wherever the player begins, or of the same lake, whichever end is
the start. A split owns families whole.

## Rooms that are moved

What a family does not hold: a room may be *moved* within its walls, where the board leaves space around it. The moves
are the same, the picture and the places differ, and the split decides of each copy by itself. Of {levels:,} different
levels of the test split, how many have a copy that training owns, and how many have one among the first {draws:,}
levels that training draws:

{moved}

## What the suites hold, and what `split=None` gives away

Instances, different levels and families of each split, and how many of its instances are of a family that {draws:,}
draws with `split=None` (the default of `gymnasium.make`) contain, or as many with `split="train"`. So train with
`split="train"`. Where a suite has fewer families than levels, its clustered intervals count a family as one. `ragen-v1`
and the other protocols of papers have instances of all splits; those of the bandits are pairs of names in two orders.
The draws for `beyond-blind` leave that option out.

{suites}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and writes the page; 0."""
    parser = page_parser("heldout", __doc__)
    parser.add_argument("--levels", type=int, default=1000, help="test levels of each game (default: 1000)")
    parser.add_argument("--draws", type=int, default=40_000, help="levels that training draws (default: 40000)")
    options = parser.parse_args(argv)
    levels, draws = options.levels, options.draws
    page = PAGE.format(
        levels=levels,
        draws=draws,
        moved=markdown_table(
            ["levels", "can be moved", "training owns a moved copy", "training draws one"],
            [[title, *_moved(build_game(TABLE[name], {}), levels, draws)] for name, title in GAMES.items()],
        ),
        suites=markdown_table(
            ["suite", "split", "instances", "levels", "families", "in `split=None`", 'in `split="train"`'],
            [_of_suite(name, split, draws) for name in SUITES for split in load_suite(name).splits],
        ),
    )
    write_atomic(options.out / "heldout.md", page)
    print(page)
    return 0


def moved(game: Game, board: bytes) -> Iterator[bytes]:
    """A room of Sokoban in the other places that the board has for it within its border of walls."""
    wall, rows = Tile.WALL, board.split(bytes([EDGE]))
    height, width = len(rows), len(rows[0])
    inside = [row for row, tiles in enumerate(rows) if any(tile != wall for tile in tiles)]
    across = [column for column in range(width) if any(row[column] != wall for row in rows)]
    top, left = inside[0], across[0]
    room = [row[left : across[-1] + 1] for row in rows[top : inside[-1] + 1]]
    for down in range(1, height - len(room)):
        for right in range(1, width - len(room[0])):
            if (down, right) != (top, left):
                copy = [bytes([wall]) * width] * height
                copy[down : down + len(room)] = [
                    bytes([wall]) * right + row + bytes([wall]) * (width - right - len(row)) for row in room
                ]
                yield bytes([EDGE]).join(copy)


@cache
def drawn(game: Game, split: str | None, count: int) -> frozenset[int]:
    """The families of the first levels that a split draws with seed 0."""
    key = stream_key(0, Stream.LEVEL)
    blocks = (episode_keys(key, first, min(BLOCK, count - first)) for first in range(0, count, BLOCK))
    return frozenset(game.family(bytes(board)) for block in blocks for board in game.generate(block, split))


def _shares(*found: Sequence[bool]) -> list[str]:
    return [percent(float(np.mean(each))) for each in found]


def _moved(game: Game, levels: int, draws: int) -> list[str]:
    families = drawn(game, "train", draws)
    copies = [[*moved(game, bytes(board))] for board in islice(distinct_boards(game, 1, "test"), levels)]
    owned = [any(game.owns("train", other) for other in others) for others in copies]
    return _shares([*map(bool, copies)], owned, [any(game.family(o) in families for o in others) for others in copies])


def _of_suite(suite: str, split: Split, draws: int) -> list[str]:
    options = {name: value for name, value in split.env_options.items() if name != "beyond_blind"}  # slow to draw
    game = replace(split, env_options=options).make_game().game
    sizes = (f"{size:,}" for size in (len(split.levels), len(set(split.levels)), len(set(split.families))))
    sources = [drawn(game, source, draws) for source in (None, "train")]
    return [suite, split.name, *sizes, *_shares(*([family in each for family in split.families] for each in sources))]


if __name__ == "__main__":
    raise SystemExit(main())
