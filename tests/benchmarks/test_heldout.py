"""The page on held-out levels: what it takes for a room that is moved, and that it covers every suite."""

from __future__ import annotations

from pathlib import Path

from benchmarks import heldout
from ragen_gym.bench.suites import SUITES, load_suite
from ragen_gym.games.registry import TABLE, build_game


def test_a_room_is_moved_within_its_walls() -> None:
    game = build_game(TABLE["Sokoban"], {})
    rows = ["######", "##P###", "##X###", "##O###", "######", "######"]
    copies = [game.own_text(copy) for copy in heldout.moved(game, game.parse("\n".join(rows)))]
    found = {(text.index("P") // 7, text.index("P") % 7) for text in copies}
    assert len(copies) == len(set(copies)) == 7, "a room of 3 by 1 cells within 4 by 4, but where it is"
    assert found == {(row, column) for row in (1, 2) for column in (1, 2, 3, 4)} - {(1, 2)}
    assert all(sorted(text) == sorted("\n".join(rows)) for text in copies)


def test_the_page_has_a_row_for_every_split() -> None:
    rows = Path(heldout.__file__).with_suffix(".md").read_text(encoding="utf-8").splitlines()
    for suite in map(load_suite, SUITES):
        for split in suite.splits:
            sizes = len(split.levels), len(set(split.levels)), len(set(split.families))
            start = f"| {suite.name} | {split.name} | {' | '.join(map(str, sizes))} | "
            [row] = [row for row in rows if row.startswith(start)]
            if suite.name in ("generalization", "difficulty", "beyond-blind", "visual-generalization"):
                assert row.endswith("| 0.0 % |"), "training draws none of them"
