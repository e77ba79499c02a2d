"""``ragen-gym render`` and ``ragen-gym gallery``: pictures, GIFs, and the pages that show them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ragen_gym.cli.command import add_command
from ragen_gym.cli.env_options import add_environment_options, chosen_environment, spec_named
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.envs.step import StepEnv

__all__ = ["add"]

_EXAMPLES = """\
examples:
  ragen-gym render FrozenLake                               FrozenLake.png, the start of a level
  ragen-gym render Sokoban --gif --out pushing.gif          the oracle's episode
  ragen-gym render FrozenLake --gif --player random --seed 4 --tile-size 32
"""

_GALLERY_EXAMPLES = """\
examples:
  ragen-gym gallery
  ragen-gym gallery FrozenLake Sokoban --out lakes-and-boxes
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands."""
    what = "write a picture of a level, or a GIF of an episode"
    parser = add_command(
        commands, "render", what, _render, _EXAMPLES, "Write a PNG of a level, or a GIF of an episode."
    )
    add_environment_options(parser)
    parser.add_argument("--gif", action="store_true", help="a GIF of a whole episode")
    parser.add_argument("--player", default="oracle", help="who plays it: oracle (the default) or random")
    parser.add_argument("--moves", type=int, default=0, metavar="N", help="a picture after N moves (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the level and its noise (default: 0)")
    parser.add_argument("--tile-size", type=int, metavar="PIXELS", help="side of a tile, 8 to 128")
    parser.add_argument("--out", metavar="FILE", help="where to (default: the game's name with .png or .gif)")
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser = add_command(
        commands,
        "gallery",
        "write a page with pictures for every game",
        _gallery,
        _GALLERY_EXAMPLES,
        "Write a page, a picture and a GIF for every game into DIR/games, and an index of all.",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these games (default: all)")
    parser.add_argument("--out", default="renders", metavar="DIR", help="folder (default: renders)")


def _render(arguments: argparse.Namespace) -> int:
    from ragen_gym.cli.episodes import fitting_tile_size, picture_episode
    from ragen_gym.render.frames import gif, png

    spec, chosen = chosen_environment(arguments)
    tile_size = arguments.tile_size or fitting_tile_size(StepEnv(spec.name, **chosen), 384)
    played = picture_episode(spec, chosen, arguments.seed, player=arguments.player, tile_size=tile_size)
    if not 0 <= arguments.moves < len(played.pictures):
        raise ValueError(f"--moves {arguments.moves}: this episode has {len(played.episode.actions)} moves.")
    out = Path(arguments.out or f"{spec.name}.{'gif' if arguments.gif else 'png'}")
    data = gif(played.pictures) if arguments.gif else png(played.pictures[arguments.moves])
    check_free(out, arguments.force)
    write_atomic(out, data)
    print(f"{out}: level {played.episode.level_id}, {len(data) / 1000:.0f} kB")
    return 0


def _gallery(arguments: argparse.Namespace) -> int:
    from ragen_gym.cli.gallery import write_gallery
    from ragen_gym.games.registry import TABLE

    specs = [spec_named(name) for name in arguments.ids] or list(TABLE.values())
    for path in write_gallery(Path(arguments.out), specs):
        print(path)
    return 0
