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

from ragen_gym.cli.command import add_command, add_seed
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

__all__ = [
    "LEVELS",
    "add",
    "docstring",
    "index_page",
    "measured",
    "page",
    "pictures",
    "write_gallery",
]

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

_SHARED = (
    "Every id also takes `observation` (`text`, `grid` or `rgb`), `text_format` (`grid`, `spaced`, `coord` or "
    "`grid_coord`), `vocabulary`, `preset`, `split` (`train`, `validation`, `test`, or None for all levels, "
    "those of `test` too: train with `train`), "
    "`levels` (a file, or a list of levels, in any of these symbols and each played at its own size: drawn from, or "
    'played in order with `reset(options={"level": i})`, i from 0), `skip_invalid`, '
    "`render_mode` (`ansi`, `rgb_array`, `human`) and `tile_size`."
)


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
    env = StepEnv(spec.name)
    text = docstring(spec.game_class)
    horizon = f"Truncated after {spec.horizon} actions." if spec.horizon else "No other horizon."
    parts = [
        f"# {spec.id}",
        _headline(spec, text[""]),
        _prose(spec.about),
        f"![the first move]({spec.name}.png) ![the oracle's episode]({spec.name}.gif)",
        f"```python\nimport gymnasium\nimport {_module(spec)}\n\n"
        f'env = gymnasium.make("{spec.id}")\nobservation, info = env.reset(seed={seed})\n```',
        _section("Description", _prose(text.get("Description", ""))),
        _section("Actions", _table(("id", "name", "key"), _actions(env.game))),
        _section("Observations", *_observations(env), _pictured(env)),
        _section("Starting state", _prose(text.get("Starting State", ""))),
        _section("Levels", _prose(text.get("Levels", ""))),
        _section("Rewards", _prose(text.get("Rewards", "")), _table(("what", "reward"), _rewards(env.game))),
        _section(
            "Episode end",
            _prose(text.get("Episode End", "").split("Truncated by the horizon.")[0].strip() + f" {horizon}"),
        ),
        _section("Blind script", _prose(text.get("Blind Script", ""))),
        _section("Arguments", _table(("name", "default", "meaning"), _options(spec)), _SHARED),
        _section("Difficulty", *_difficulty(spec, rates, levels)),
        _section("An episode", *_conversation(spec, seed)),
        _section("Version history", _prose(text.get("Version History", "v0: first release."))),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _module(spec: GameSpec) -> str:
    """What has to be imported for the id to be there."""
    module = spec.game.partition(":")[0]
    return "ragen_gym" if module.startswith("ragen_gym.") else module


def _headline(spec: GameSpec, summary: str) -> str:
    """The game's first line; before it the spec's own, where the spec is a variant of a game."""
    variant = f"{spec.summary[0].upper()}{spec.summary[1:]}. " if spec.name != spec.game_class.name else ""
    return variant + _prose(summary)


def docstring(game_class: type[Game]) -> dict[str, str]:
    """The sections of a game's docstring; one that a game leaves out is that of the game which it extends."""
    merged: dict[str, str] = {}
    for base in reversed(game_class.__mro__):
        if issubclass(base, Game) and base.__dict__.get("name"):
            merged |= sections(base)
    return merged


def _section(title: str, *paragraphs: str) -> str:
    body = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
    return f"## {title}\n{body}" if body else ""


def _prose(text: str) -> str:
    """Docstring text as Markdown: code in single backticks, a paragraph on one line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return "\n\n".join(paragraphs).replace("``", "`")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _actions(game: Game) -> list[tuple[str, str, str]]:
    keys = key_names(game)
    return [(str(action.value), action.name.capitalize(), f"`{keys[i]}`") for i, action in enumerate(game.Action)]


def _observations(env: StepEnv) -> list[str]:
    """The spaces, the tiles with their symbols in every vocabulary, and one board in each form of text."""
    game = env.game
    grid = StepEnv(env.game_spec.name, observation="grid").observation_space
    _, shortest, longest = game.charset(env.vocabulary, "grid")
    length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    spaces = (
        f'`Text` of {length} characters by default; with `observation="grid"` `{grid!r}` of tile codes; with '
        '`observation="rgb"` the picture, `uint8` of (rows, columns, 3). `info` has `level_id`, `action_mask` (`int8`, '
        "1 where the action can change the state) and `success` at every reset and step."
    )
    if not env.vocabulary.symbols:
        env.reset(seed=0)
        return [spaces, f"The text is the names of the arms, one a line:\n\n```text\n{env.text}\n```"]
    names = list(game.vocabularies)
    tiles = [
        (str(tile.value), tile.name.lower().replace("_", " "), *[f"`{game.vocabularies[n].symbols[i]}`" for n in names])
        for i, tile in enumerate(game.Tile)
    ]
    marked = [f"**{name}**" if name == env.vocabulary.name else name for name in names]
    return [
        spaces,
        _table(("code", "tile", *marked), tiles),
        "One board as a grid, with spaces, and as coordinates (`grid_coord` is the first and the last, one after the "
        "other):",
        _formats(env.game_spec),
    ]


def _pictured(env: StepEnv) -> str:
    """The pictures of turns."""
    names = [name for name, style in _LOOKS.items() if env.game.layout == "grid" or not style.coordinates]
    name = env.game_spec.name
    shape = BoardImages(env.game).shape
    return (
        f'`ragen_gym.make_turn("{name}", observation="image")` shows the board as a picture, `uint8` of {shape} by '
        "default; `image_tiles`, `image_tile_size`, `image_palette` and `image_coordinates` choose its look. "
        f"From left to right: {', '.join(names)}.\n\n![the board in every look]({name}-images.png)"
    )


def _formats(spec: GameSpec) -> str:
    blocks = []
    formats: tuple[TextFormat, ...] = ("grid", "spaced", "coord")
    for text_format in formats:
        env = StepEnv(spec.name, text_format=text_format)
        blocks.append(f'`text_format="{text_format}"`\n```text\n{env.reset(seed=0)[0]}\n```')
    return "\n\n".join(blocks)


def _rewards(game: Game) -> list[tuple[str, str]]:
    return [(what, f"{value:g}") for what, value in game.rewards()]


def _options(spec: GameSpec) -> list[tuple[str, str, str]]:
    return [(f"`{each.name}`", describe(each.default), _prose(each.doc)) for each in options_of(spec)]


def _difficulty(spec: GameSpec, rates: dict[str, dict[str, Rate]], levels: int) -> list[str]:
    presets: dict[str, dict[str, Any]] = {"": spec.options, **spec.game_class.presets}
    rows = [
        (
            f"`{name}`" if name else "(default)",
            ", ".join(f"`{option}={describe(value)}`" for option, value in options.items()),
            *map(str, rates[name].values()),
        )
        for name, options in presets.items()
    ]
    script = "of the blind script, " * ("blind" in rates[""])
    note = (
        f"Success of random play (moves drawn uniformly), {script}and of optimal play on {levels} levels, "
        "with 95 % Wilson intervals."
    )
    names = ", ".join(f'"{name}"' for name in spec.game_class.presets)
    curriculum = (
        "`ragen_gym.Curriculum` moves from one to the next as the player succeeds:\n\n```python\n"
        f"presets = ({names})\n"
        f'envs = [gymnasium.make("{spec.id}", preset=preset, split="train") for preset in presets]\n'
        "env = ragen_gym.Curriculum(envs)\n```"
    )
    parts = [note, _table(("preset", "options", *(f"{player} play" for player in rates[""])), rows)]
    return [*parts, curriculum] if len(spec.game_class.presets) > 1 else parts


def _conversation(spec: GameSpec, seed: int) -> list[str]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in turn_options(spec, {}).items())
    note = f'The oracle as the assistant of `ragen_gym.make_turn("{spec.name}", {arguments})`, seed {seed}:'
    blocks = [f"**{message['role']}**\n```text\n{message['content']}\n```" for message in conversation(spec, {}, seed)]
    return [note, *blocks]


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
    shown = [
        BoardImages(env.game, style, env.vocabulary).image(env.state[0])
        for style in _LOOKS.values()
        if env.game.layout == "grid" or not style.coordinates
    ]
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
