"""The options that choose a game and change settings, and the settings that they come to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, Settings, merged, with_settings

__all__ = ["add_settings", "configure", "distributed", "pairs_of", "settings_of_pairs"]

OPENRLHF = "openrlhf"  # the table of the distributed trainer's settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose a game and change settings."""
    parser.add_argument(
        "--game", metavar="NAME", help="FrozenLake (default), Bandit, BanditRev, ...: see ragen-gym list"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML, such as a run's config.toml")
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a knob of the game, such as size=5; repeatable",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as training.learning_rate=5e-4; repeatable",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, or auto (default): a GPU for a pretrained model where there is one"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default 1; more only help where cores are idle)"
    )


def configure(options: argparse.Namespace, flags: Settings) -> Config:
    """Defaults, the game's settings, the recipe, the file, the flags: each laid over the one before."""
    from ragen_agent.config.game_defaults import recipe
    from ragen_gym.games.registry import find

    file = _files(options)
    game = find(options.game or file.get("game", Config.game)).name
    settings: Settings = merged(recipe(game, str(flags.get("model") or file.get("model", ""))), file)
    settings = merged(merged(settings, flags), pairs_of(options))
    settings.pop(OPENRLHF, None)  # one file serves both trainers
    return with_settings(Config(), {**settings, "game": game})


def _files(options: argparse.Namespace) -> Settings:
    """The recipe, and the file over it."""
    from ragen_agent.config.recipes import read, read_settings_file

    name = getattr(options, "recipe", None)
    recipe = read(name).settings if name else {}
    return merged(recipe, read_settings_file(options.config)) if options.config is not None else recipe


def distributed(options: argparse.Namespace) -> Settings:
    """The settings of the distributed trainer that the recipe, the file and the flags name."""
    return merged(_files(options).get(OPENRLHF, {}), pairs_of(options).get(OPENRLHF, {}))


def pairs_of(options: argparse.Namespace) -> Settings:
    """What `--knob` and `--set` say."""
    knobs = settings_of_pairs("--knob", [f"knobs.{pair}" for pair in options.knob])
    return merged(settings_of_pairs("--set", options.set), knobs)


def settings_of_pairs(flag: str, pairs: Sequence[str]) -> Settings:
    """KEY=VALUE pairs as nested tables; raises a ValueError for one without a value."""
    settings: Settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair.removeprefix('knobs.')} needs a value: KEY=VALUE.")
        value: Any = _value(text)
        for part in reversed(key.split(".")):
            value = {part: value}
        settings = merged(settings, value)
    return settings


def _value(text: str) -> Any:
    """A value as JSON reads it (3, 1e-3, true, [0.7, 0.3]), or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
