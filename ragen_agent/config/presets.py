"""Defaults of single games and of pretrained models, and recipes: whole runs by name.

A game's defaults are its class's attribute ``training``. A recipe, for ``ragen-agent train --recipe NAME``, is a file
of settings in ``recipes/``, with the tables of ``--config`` ([openrlhf] for the distributed trainer) and a table
[recipe] with the fields of ``Recipe`` and ``base``, another recipe whose settings it overrides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ragen_agent.config.settings import Config, pretrained
from ragen_agent.config.table import Settings, merged, read_toml
from ragen_gym.core.validation import did_you_mean
from ragen_gym.games.registry import TABLE, find, load_task, own_module, task_of

FOLDER = Path(__file__).with_name("recipes")
ROOT = "recipe"

#: A pretrained model thinks at its own length, is shown an example reply, and takes the small steps of fine-tuning.
PRETRAINED_DEFAULTS: Settings = {
    "turns": {"example": True, "max_tokens_per_turn": 256, "max_tokens_per_episode": 4096},
    "warm_start": {"epochs": 0, "batch": 8, "learning_rate": 1e-4},
    "training": {"learning_rate": 1e-6, "critic_learning_rate": 1e-5},
}


def default_settings(game: str, model: str = "") -> Settings:
    """The game's settings, and ``PRETRAINED_DEFAULTS`` over them for a pretrained model.

    A game whose module was not imported, or that is unknown, has none.
    """
    try:
        made = task_of(game) if own_module(game) else load_task(game)
        settings: Settings = getattr(made or find(game).game_class, "training", {})
    except ValueError:  # said where the game is made
        settings = {}
    return merged(settings, PRETRAINED_DEFAULTS if pretrained(model) else {})


def other_defaults(name: str) -> list[tuple[str, Any]]:
    """Defaults of a setting that differ from ``Config``'s, with their games; a pretrained model, which wins, is last.

    ``name`` is dotted, such as ``training.learning_rate``.
    """
    table, _, key = name.rpartition(".")
    usual = Config()
    of_games = {game: default_settings(game) for game in TABLE}
    found: list[tuple[str, Any]] = []
    for who, settings in {**of_games, "a pretrained model": PRETRAINED_DEFAULTS}.items():
        here = settings.get(table, {}) if table else settings
        if key not in here or here[key] == getattr(getattr(usual, table) if table else usual, key):
            continue
        same = next((i for i, (_, value) in enumerate(found) if value == here[key] and who in of_games), None)
        if same is None:
            found.append((who, here[key]))
        else:
            found[same] = (f"{found[same][0]}, {who}", here[key])
    return found


@dataclass(frozen=True)
class Recipe:
    """A whole run; ``settings`` cover both trainers, the distributed one in the table ``openrlhf``."""

    name: str
    title: str
    source: str  # of its numbers
    expect: str  # the expected curve
    seen: str  # whether it was run
    gpus: int = 0  # 0 for a run on two CPU cores
    gpu_gib: float = 0.0  # memory of each GPU
    memory_gib: float = 0.0  # expected peak use of one, by ``ragen_agent.preflight.estimates``
    cluster: str = ""  # how the machines are joined
    settings: Settings = field(default_factory=dict)


def recipe_names() -> list[str]:
    """All recipes in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_recipe(name: str) -> Recipe:
    """The recipe of this name, merged over its base; raises a ValueError for an unknown name."""
    _check_recipe(name)
    settings = read_settings_file(FOLDER / f"{name}.toml", keep=True)
    about = settings.pop(ROOT)
    return Recipe(name=name, settings=settings, **about)


def base_of(path: Path) -> str:
    """The base recipe named in a file of settings, or the empty text."""
    about = read_toml(path).get(ROOT, {})
    return str(about.get("base", "")) if isinstance(about, dict) else ""


def read_settings_file(path: Path, *, keep: bool = False) -> Settings:
    """A file of settings merged over its base recipe; ``keep`` keeps the table [recipe].

    Raises:
        ValueError: see ``read_toml``; or an unknown base, or key of [recipe].
    """
    settings = read_toml(path)
    about = settings.get(ROOT, {})
    known = ["base", *(each.name for each in fields(Recipe) if each.name not in ("name", "settings"))]
    if not isinstance(about, dict) or (unknown := [key for key in about if key not in known]):
        hint = did_you_mean(unknown[0], known) if isinstance(about, dict) else ""
        raise ValueError(f"{path}: recipe is {about!r}; it must be a table: [recipe] with base = NAME.{hint}")
    base = about.pop("base", None)
    if base is not None:
        _check_recipe(base, f"{path}: its base does not fit, ")
        settings = merged(read_settings_file(FOLDER / f"{base}.toml", keep=True), settings)
    if not keep:
        settings.pop(ROOT, None)
    return settings


def _check_recipe(name: str, where: str = "") -> None:
    if name not in (known := recipe_names()):
        raise ValueError(
            f"{where}there is no recipe {name!r}: choose one of {', '.join(known)}.{did_you_mean(name, known)}"
        )
