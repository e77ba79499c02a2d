"""The folder ``renders/``: for every id a page made from its game's docstring and tables, a picture and a GIF.

``python -m ragen_gym.cli.docs`` writes it. The same code gives the same files, so a test can tell when they are
out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ragen_gym.cli.baselines import measure
from ragen_gym.cli.env_options import describe, knobs_of, sections
from ragen_gym.cli.played_episode import conversation, fitting_tile_size, play_episode, telling_seed, turn_arguments
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.core.text import TextFormat
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Game
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.render.image_files import gif, png
from ragen_gym.render.recorder import key_names

__all__ = ["LEVELS", "docstring", "first_environment", "gallery_page", "measured", "page", "pictures", "write_gallery"]


def page(spec: GameSpec, seed: int, rates: dict[str, dict[str, Rate]], levels: int) -> str:
    """The page of an id, in Markdown.

    Args:
        spec: the id.
        seed: seed of the episode that the pictures and the conversation show.
        rates: random and optimal success of the id (under ``""``) and of its presets.
        levels: number of levels that the rates were measured on.
    """
    env = first_environment(spec)
    text = docstring(spec.game_class)
    horizon = f"Truncated after {spec.horizon} actions." if spec.horizon else "No other horizon."
    parts = [
        f"# {spec.id}",
        _headline(spec, text[""]),
        f"![the first move]({spec.name}.png) ![the oracle's episode]({spec.name}.gif)",
        f"```python\nimport gymnasium\nimport {_module(spec)}\n\n"
        f'env = gymnasium.make("{spec.id}")\nobservation, info = env.reset(seed={seed})\n```',
        _section("Description", _prose(text.get("Description", ""))),
        _section("Actions", _table(("id", "name", "key"), _actions(env.game))),
        _section("Observations", *_observations(env)),
        _section("Starting state", _prose(text.get("Starting State", ""))),
        _section("Levels", _prose(text.get("Levels", ""))),
        _section("Rewards", _prose(text.get("Rewards", "")), _table(("what", "reward"), _rewards(env.game))),
        _section(
            "Episode end",
            _prose(text.get("Episode End", "").split("Truncated by the horizon.")[0].strip() + f" {horizon}"),
        ),
        _section("Arguments", _table(("name", "default", "meaning"), _knobs(spec)), _SHARED),
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


_SHARED = (
    "Every id also takes `observation` (`text`, `grid` or `rgb`), `text_format` (`grid`, `coord` or `grid_coord`), "
    "`vocabulary`, `preset`, `split` (`train`, `validation`, `test`, or None for all levels), `levels` (a file, or a "
    "list of levels), `render_mode` (`ansi`, `rgb_array`, `human`) and `tile_size`."
)


def first_environment(spec: GameSpec) -> StepEnv:
    """The id with its defaults."""
    return StepEnv(spec.name)


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
        "One board as a grid and as coordinates (`grid_coord` is one after the other):",
        _formats(env.game_spec),
    ]


def _formats(spec: GameSpec) -> str:
    blocks = []
    formats: tuple[TextFormat, ...] = ("grid", "coord")
    for text_format in formats:
        env = StepEnv(spec.name, text_format=text_format)
        blocks.append(f'`text_format="{text_format}"`\n```text\n{env.reset(seed=0)[0]}\n```')
    return "\n\n".join(blocks)


def _rewards(game: Game) -> list[tuple[str, str]]:
    return [(what, f"{value:g}") for what, value in game.rewards()]


def _knobs(spec: GameSpec) -> list[tuple[str, str, str]]:
    return [(f"`{knob.name}`", describe(knob.default), _prose(knob.doc)) for knob in knobs_of(spec)]


def _difficulty(spec: GameSpec, rates: dict[str, dict[str, Rate]], levels: int) -> list[str]:
    presets: dict[str, dict[str, Any]] = {"": spec.options, **spec.game_class.presets}
    rows = [
        (
            f"`{name}`" if name else "(default)",
            ", ".join(f"`{knob}={describe(value)}`" for knob, value in knobs.items()),
            str(rates[name]["random"]),
            str(rates[name]["optimal"]),
        )
        for name, knobs in presets.items()
    ]
    note = f"Success of uniformly random and of optimal play on {levels} levels, with 95 % Wilson intervals."
    names = ", ".join(f'"{name}"' for name in spec.game_class.presets)
    curriculum = (
        "`ragen_gym.Curriculum` moves from one to the next as the player succeeds:\n\n```python\n"
        f"presets = ({names})\nenv = ragen_gym.Curriculum("
        f'[gymnasium.make("{spec.id}", preset=preset) for preset in presets])\n```'
    )
    parts = [note, _table(("preset", "knobs", "random", "optimal"), rows)]
    return [*parts, curriculum] if len(spec.game_class.presets) > 1 else parts


def _conversation(spec: GameSpec, seed: int) -> list[str]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in turn_arguments(spec, {}).items())
    note = f'The oracle as the assistant of `ragen_gym.make_turn("{spec.name}", {arguments})`, seed {seed}:'
    blocks = [f"**{message['role']}**\n```text\n{message['content']}\n```" for message in conversation(spec, {}, seed)]
    return [note, *blocks]


#: Levels on which random and optimal play are measured.
LEVELS = 256

_SIDE = 288


def write_gallery(folder: Path, specs: Sequence[GameSpec]) -> Iterator[Path]:
    """Write the pages and pictures of ``specs``, and the README if they are all there are; yields what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    rates = {}
    for spec in specs:
        for name, data in pictures(spec).items():
            yield _write(folder / name, data)
        rates[spec.name] = measured(spec)
        yield _write(folder / f"{spec.name}.md", page(spec, telling_seed(spec, {}), rates[spec.name], LEVELS).encode())
    if list(specs) == list(TABLE.values()):
        yield _write(folder / "README.md", gallery_page(rates).encode())


def pictures(spec: GameSpec) -> dict[str, bytes]:
    """A picture and a GIF of the oracle's episode on a telling level, by file name."""
    tile_size = fitting_tile_size(first_environment(spec), _SIDE)
    episode = play_episode(spec, {}, telling_seed(spec, {}), tile_size=tile_size)
    return {f"{spec.name}.png": png(episode.pictures[1]), f"{spec.name}.gif": gif(episode.pictures)}


def measured(spec: GameSpec) -> dict[str, dict[str, Rate]]:
    """Random and optimal success of the id itself (under ``""``) and of each of its presets."""
    presets = {"": {}, **{name: {"preset": name} for name in spec.game_class.presets}}
    return {name: measure(spec, chosen, LEVELS) for name, chosen in presets.items()}


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
    for spec in TABLE.values():
        rate = rates[spec.name][""]
        name = f"[`{spec.id}`]({spec.name}.md)<br>{spec.summary}"
        shown = f'<a href="{spec.name}.md"><img src="{spec.name}.gif" width="200" alt="{spec.name}"></a>'
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
    check_free(path, True)
    write_atomic(path, data)
    return path


def main(folders: Iterable[str]) -> int:
    """Write the gallery into the first folder named, or into ``renders``."""
    for path in write_gallery(Path(next(iter(folders), "renders")), list(TABLE.values())):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
