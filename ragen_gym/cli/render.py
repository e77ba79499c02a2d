"""``ragen-gym render`` and ``ragen-gym gallery``: pictures, GIFs, and the pages that show them.

The gallery has an index, and for every id a picture, a GIF, and a page made from its game's docstring and tables. The
same code gives the same files, so a test can tell that they are out of date.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen_gym.cli.command import add_seed
from ragen_gym.cli.env_options import (
    add_environment_options,
    chosen_environment,
    describe,
    options_of,
    sections,
)
from ragen_gym.cli.episodes import (
    conversation,
    fitting_tile_size,
    picture_episode,
    showcase_seed,
    success_rates,
    turn_options,
)
from ragen_gym.core.command_line import add_command
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.core.text import TextFormat
from ragen_gym.core.turn_config import ImageStyle
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Game
from ragen_gym.games.registry import TABLE, GameSpec, load
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.frames import gif
from ragen_gym.render.images import BoardImages
from ragen_gym.render.png import encode_png
from ragen_gym.render.recorder import key_names

_EXAMPLES = """\
examples:
  ragen-gym render FrozenLake                       FrozenLake.png, a start
  ragen-gym render Sokoban --gif --out box.gif      the oracle's episode
"""

_GALLERY_EXAMPLES = """\
examples:
  ragen-gym gallery
  ragen-gym gallery FrozenLake Sokoban --out lakes-and-boxes
"""

#: Levels on which random, blind and optimal play are measured.
LEVELS = 256

_SIDE = 288  # pixels of the longer side of a picture
_LOOK_TILE, _GAP = 20, 12  # pixels of a tile where looks are compared, and between two of them

#: Looks of the pictures that turns show, by what a page calls them.
_LOOKS = {
    "pictures": ImageStyle("pictures", _LOOK_TILE),
    "pictures with coordinates": ImageStyle("pictures", _LOOK_TILE, coordinates=True),
    "pictures in the photographic palette": ImageStyle("pictures", _LOOK_TILE, "photographic"),
    "shapes": ImageStyle("shapes", _LOOK_TILE),
    "letters": ImageStyle("letters", _LOOK_TILE),
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands."""
    what = "write a picture of a level, or a GIF of an episode"
    parser = add_command(
        commands, "render", what, _render, _EXAMPLES, "Write a PNG of a level, or a GIF of an episode."
    )
    add_environment_options(parser, board_text=False)
    parser.add_argument("--gif", action="store_true", help="a GIF of the oracle's whole episode")
    add_seed(parser, "the level and its noise")
    parser.add_argument("--out", metavar="FILE", help="where to (default: the game's name with .png or .gif)")
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser = add_command(
        commands,
        "gallery",
        "write a page with pictures for every game",
        _gallery,
        _GALLERY_EXAMPLES,
        "Write a page, a picture and a GIF for every game into DIR, and an index of all.",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these games (default: all)")
    parser.add_argument("--out", default="docs/environments", metavar="DIR", help="folder (default: docs/environments)")


def _render(arguments: argparse.Namespace) -> int:
    spec, chosen = chosen_environment(arguments)
    form = "gif" if arguments.gif else "png"
    out = Path(arguments.out or f"{spec.name}.{form}")
    if out.suffix.lower() != f".{form}":
        raise ValueError(f"--out {out}: end it in .gif for an episode, with --gif, else in .png.")
    check_free(out, arguments.force)
    tile_size = fitting_tile_size(StepEnv(spec.name, **chosen), 384)
    played = picture_episode(spec, chosen, arguments.seed, tile_size=tile_size)
    data = gif(played.pictures) if arguments.gif else encode_png(played.pictures[0])
    write_atomic(out, data)
    print(f"{out}: level {played.episode.level_id}, {len(data) / 1000:.0f} kB")
    return 0


def _gallery(arguments: argparse.Namespace) -> int:
    specs = [load(name) for name in arguments.ids] or list(TABLE.values())
    for path in write_gallery(Path(arguments.out), specs):
        print(path)
    return 0


def page(spec: GameSpec, seed: int, rates: dict[str, dict[str, Rate]], levels: int) -> str:
    """The page of an id, in Markdown.

    Args:
        spec: the id.
        seed: seed of the episode that the pictures and the conversation show.
        rates: success by player of the id (under ``""``) and of its presets.
        levels: number of levels that the rates were measured on.
    """
    import jinja2

    env = StepEnv(spec.name)
    env.reset(seed=0)
    game, keys = env.game, key_names(env.game)
    _, shortest, longest = game.charset(env.vocabulary, "grid")
    text = docstring(spec.game_class)
    vocabularies = list(game.vocabularies.values()) if env.vocabulary.symbols else []
    formats: tuple[TextFormat, ...] = ("grid", "spaced", "coord") if vocabularies else ("grid",)
    module = spec.game.partition(":")[0]
    presets: dict[str, dict[str, Any]] = {"": spec.options, **spec.game_class.presets}
    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    jinja = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    jinja.filters["prose"] = _prose
    filled = jinja.get_template("gallery_page.md.jinja").render(
        spec=spec,
        seed=seed,
        rates=rates,
        levels=levels,
        text=text,
        module="ragen_gym" if module.startswith("ragen_gym.") else module,
        actions=[(str(each.value), each.name.capitalize(), f"`{keys[each]}`") for each in game.Action],
        length=f"{shortest}" if shortest == longest else f"{shortest} to {longest}",
        grid=repr(StepEnv(spec.name, observation="grid").observation_space),
        vocabularies=[f"**{each.name}**" if each.name == env.vocabulary.name else each.name for each in vocabularies],
        tiles=[
            (
                str(tile.value),
                tile.name.lower().replace("_", " "),
                *(f"`{each.symbols[tile]}`" for each in vocabularies),
            )
            for tile in (game.Tile if vocabularies else ())
        ],
        boards={each: StepEnv(spec.name, text_format=each).reset(seed=0)[0] for each in formats},
        image=BoardImages(game).shape,
        looks=list(_looks(game)),
        rewards=[(what, f"{value:g}") for what, value in game.rewards()],
        options=[(f"`{each.name}`", describe(each.default), _prose(each.doc)) for each in options_of(spec)],
        players=[f"{player} play" for player in rates[""]],
        difficulty=[
            (
                f"`{name}`" if name else "(default)",
                ", ".join(f"`{option}={describe(value)}`" for option, value in options.items()),
                *map(str, rates[name].values()),
            )
            for name, options in presets.items()
        ],
        arguments=", ".join(f"{name}={value!r}" for name, value in turn_options(spec, {}).items()),
        messages=conversation(spec, {}, seed),
    )
    return re.sub(r"\n{3,}", "\n\n", filled).strip() + "\n"


def _looks(game: Game) -> dict[str, ImageStyle]:
    return {name: style for name, style in _LOOKS.items() if game.layout == "grid" or not style.coordinates}


def docstring(game_class: type[Game]) -> dict[str, str]:
    """The sections of a game's docstring; one that a game leaves out is that of the game which it extends."""
    merged: dict[str, str] = {}
    for base in reversed(game_class.__mro__):
        if issubclass(base, Game) and base.__dict__.get("name"):
            merged |= sections(base)
    return merged


def _prose(text: str | None) -> str:
    """Docstring text as Markdown: code in single backticks, a paragraph on one line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text or "")]
    return "\n\n".join(paragraphs).replace("``", "`")


def write_gallery(folder: Path, specs: Sequence[GameSpec]) -> Iterator[Path]:
    """Write the pages and pictures of ``specs`` into ``folder``, and the index if they are all there are.

    Yields the path of each file written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rates = {}
    for spec in specs:
        for name, data in pictures(spec).items():
            yield _write(folder / name, data)
        rates[spec.name] = measured(spec)
        yield _write(folder / f"{spec.name}.md", page(spec, showcase_seed(spec, {}), rates[spec.name], LEVELS).encode())
    if list(specs) == list(TABLE.values()):
        yield _write(folder / "README.md", index_page(rates).encode())


def pictures(spec: GameSpec) -> dict[str, bytes]:
    """A picture and a GIF of the oracle's episode on its showcase level, and ``looks``, by file name."""
    tile_size = fitting_tile_size(StepEnv(spec.name), _SIDE)
    played = picture_episode(spec, {}, showcase_seed(spec, {}), tile_size=tile_size)
    return {
        f"{spec.name}.png": encode_png(played.pictures[1]),
        f"{spec.name}.gif": gif(played.pictures),
        f"{spec.name}-images.png": encode_png(looks(spec)),
    }


def looks(spec: GameSpec) -> Pixels:
    """The first board of the showcase level as messages show it, in every look that ``_LOOKS`` names, side by side."""
    env = StepEnv(spec.name)
    env.reset(seed=showcase_seed(spec, {}))
    shown = [BoardImages(env.game, style, env.vocabulary).image(env.state[0]) for style in _looks(env.game).values()]
    height = max(len(picture) for picture in shown)
    gap = np.full((height, _GAP, 3), 255, np.uint8)
    columns = [gap]
    for picture in shown:
        below = np.full((height - len(picture), picture.shape[1], 3), 255, np.uint8)
        columns += [np.concatenate([picture, below]), gap]
    return np.concatenate(columns[1:-1], axis=1)


def measured(spec: GameSpec) -> dict[str, dict[str, Rate]]:
    """Success by player of the id itself (under ``""``) and of each of its presets."""
    presets = {"": {}, **{name: {"preset": name} for name in spec.game_class.presets}}
    return {name: success_rates(spec, chosen, LEVELS) for name, chosen in presets.items()}


def index_page(rates: dict[str, dict[str, dict[str, Rate]]]) -> str:
    """The index: every id with its picture, and the success of random, blind and optimal play."""
    lines = [
        "# Environments",
        "",
        "Each picture is an episode of the oracle; each name links to the game's page. Success is that of random play "
        "(moves drawn uniformly), of a script that goes for the goal and ignores what is in the way (blind play),",
        f"and of optimal play on {LEVELS} levels, with 95 % Wilson intervals. `ragen-gym gallery` writes these pages.",
        "",
        "| | game | random play | blind play | optimal play |",
        "|---|---|---|---|---|",
    ]
    for spec in TABLE.values():
        rate, name = rates[spec.name][""], spec.name
        shown = f"[![{name}]({name}.gif)]({name}.md)"
        cells = " | ".join(str(rate[player]) if player in rate else "" for player in ("random", "blind", "optimal"))
        lines.append(f"| {shown} | [`{spec.id}`]({name}.md)<br>{spec.summary} | {cells} |")
    return "\n".join([*lines, ""])


def _write(path: Path, data: bytes) -> Path:
    check_free(path, True)
    write_atomic(path, data)
    return path
