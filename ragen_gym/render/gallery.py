"""The folder ``renders/``: for every id a page made from its game's docstring and tables, a picture and a GIF.

``python -m ragen_gym.render.gallery`` writes it. The same code gives the same files, so a test can tell when they are
out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ragen_gym.commands.files import write_new
from ragen_gym.commands.measure import Rate, measure
from ragen_gym.registry import TABLE, Row
from ragen_gym.render.episode import fitting_tile_size, play_episode, telling_seed
from ragen_gym.render.gif import gif, png
from ragen_gym.render.page import first_environment, page

__all__ = ["LEVELS", "gallery_page", "measured", "pictures", "write_gallery"]

#: Levels on which random and optimal play are measured.
LEVELS = 256

_SIDE = 288


def write_gallery(folder: Path, rows: Sequence[Row]) -> Iterator[Path]:
    """Write the pages and pictures of ``rows``, and the README if they are all there are; yields what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    rates = {}
    for row in rows:
        for name, data in pictures(row).items():
            yield _write(folder / name, data)
        rates[row.name] = measured(row)
        yield _write(folder / f"{row.name}.md", page(row, telling_seed(row, {}), rates[row.name], LEVELS).encode())
    if list(rows) == list(TABLE.values()):
        yield _write(folder / "README.md", gallery_page(rates).encode())


def pictures(row: Row) -> dict[str, bytes]:
    """A picture and a GIF of the oracle's episode on a telling level, by file name."""
    tile_size = fitting_tile_size(first_environment(row), _SIDE)
    episode = play_episode(row, {}, telling_seed(row, {}), tile_size=tile_size)
    return {f"{row.name}.png": png(episode.pictures[1]), f"{row.name}.gif": gif(episode.pictures)}


def measured(row: Row) -> dict[str, dict[str, Rate]]:
    """Random and optimal success of the id itself (under ``""``) and of each of its presets."""
    presets = {"": {}, **{name: {"preset": name} for name in row.game_class.presets}}
    return {name: measure(row, chosen, LEVELS) for name, chosen in presets.items()}


def gallery_page(rates: dict[str, dict[str, dict[str, Rate]]]) -> str:
    """The README: every id with its picture, and how random and optimal play do."""
    lines = [
        "# The games",
        "",
        "Each picture is the oracle at play; each name leads to the game's page. Success is that of uniformly random "
        f"and of optimal play on {LEVELS} levels, with 95 % Wilson intervals.",
        "",
        "| | game | random | optimal |",
        "|---|---|---|---|",
    ]
    for row in TABLE.values():
        rate = rates[row.name][""]
        name = f"[`{row.id}`]({row.name}.md)<br>{row.summary}"
        shown = f'<a href="{row.name}.md"><img src="{row.name}.gif" width="200" alt="{row.name}"></a>'
        lines.append(f"| {shown} | {name} | {rate['random']} | {rate['optimal']} |")
    lines += ["", "These pages are made by `ragen-gym gallery --out renders`.", ""]
    lines += [
        "Beside them: [add your own game](your_own_game.md), [use it with other libraries](with_other_libraries.md), "
        "[benchmark an agent](benchmark_an_agent.md), [play over HTTP](serve.md), "
        "[go from a laptop to a cluster](from_laptop_to_cluster.md).",
        "",
    ]
    return "\n".join(lines)


def _write(path: Path, data: bytes) -> Path:
    write_new(path, data, force=True)
    return path


def main(folders: Iterable[str]) -> int:
    """Write the gallery into the first folder named, or into ``renders``."""
    for path in write_gallery(Path(next(iter(folders), "renders")), list(TABLE.values())):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
