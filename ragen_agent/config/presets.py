"""Named settings: each game's changes to the defaults of ``Config``, and recipes, which are whole runs.

FrozenLake, the default run: lakes without transition noise, shortest paths of three moves or more, and two turns. The
demonstrator mostly replies with one move, so it runs out of turns; reinforcement learning has to discover longer
replies. The bandits: the demonstrator chooses at random; what is discovered is which name pays more. A model from
scratch has never read the names of the test split, so it is measured on the training split. Countdown: seven in ten
replies of the demonstrator are random; what is discovered is which sign leads to the target. A pretrained model thinks
at its own length, is shown an example reply, and takes the small steps of fine-tuning.

A recipe, for ``ragen-agent train --recipe NAME``, is a file of settings in ``recipes/``, with the tables of
``--config`` ([openrlhf] for the distributed trainer) and a table [recipe] about itself:

base          another recipe, whose settings this one overrides
title, source, expect, seen, cluster    text: its name, the source of its numbers, the expected curve, whether it was
              run, how the machines are joined
gpus, gpu_gib, memory_gib    its needs: GPUs, memory of each, and expected peak use of one
              (``ragen_agent.preflight.memory`` computes it, and a test compares the two); 0 for a run on two CPU cores
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ragen_agent.config.io import Settings, merged, read_toml
from ragen_agent.config.settings import Config, pretrained
from ragen_gym.core.validation import did_you_mean

__all__ = [
    "FOLDER",
    "GAME_DEFAULTS",
    "PRETRAINED_DEFAULTS",
    "ROOT",
    "Recipe",
    "base_of",
    "default_settings",
    "other_defaults",
    "read_recipe",
    "read_settings_file",
    "recipe_names",
]

FOLDER = Path(__file__).with_name("recipes")
ROOT = "recipe"
"""The table of a file that describes the recipe and holds no settings."""

_BANDIT: Settings = {
    "turns": {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1, "max_tokens_per_turn": 24},
    "demonstrations": {"episodes": 8000, "moves": [1.0], "mistakes": 1.0, "thought": "choose"},
    "training": {"iterations": 20, "groups": 16, "group_size": 16, "keep": 0.5},
    "evaluation": {"split": "train"},
}

GAME_DEFAULTS: dict[str, Settings] = {
    "FrozenLake": {
        "env_options": {"size": 4, "success_rate": 1.0, "min_path": 3},
        "turns": {"max_turns": 2, "max_actions_per_turn": 5, "max_actions": 10, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 16000, "moves": [0.8, 0.15, 0.05], "thought": "direction"},
        "warm_start": {"epochs": 2},
        "training": {"iterations": 80, "groups": 32, "group_size": 8, "keep": 0.5, "learning_rate": 1e-3},
    },
    "Bandit": _BANDIT,
    "BanditRev": _BANDIT,
    "ragen_gym.tasks:Countdown": {
        "env_options": {"count": 2, "highest": 50},
        "turns": {"max_turns": 1, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 16000, "quality": 0.3},
        "warm_start": {"epochs": 2},
        "training": {"iterations": 80, "groups": 32, "group_size": 8, "keep": 0.5, "learning_rate": 1e-3},
    },
}

PRETRAINED_DEFAULTS: Settings = {
    "turns": {"example": True, "max_tokens_per_turn": 256, "max_tokens_per_episode": 4096},
    "warm_start": {"epochs": 0, "batch": 8, "learning_rate": 1e-4},
    "training": {"learning_rate": 1e-6, "critic_learning_rate": 1e-5},
}


def default_settings(game: str, model: str = "") -> Settings:
    """The game's settings, and ``PRETRAINED_DEFAULTS`` over them for a pretrained model."""
    return merged(GAME_DEFAULTS.get(game, {}), PRETRAINED_DEFAULTS if pretrained(model) else {})


def other_defaults(name: str) -> list[tuple[str, Any]]:
    """Defaults of a setting that differ from ``Config``: the games or models, and the value.

    Args:
        name: dotted name, such as ``training.learning_rate``.

    Returns:
        one entry for each value, pretrained models last, since their settings override a game's.
    """
    table, _, key = name.rpartition(".")
    usual = Config()
    found: list[tuple[list[str], Any]] = []
    for who, settings in {**GAME_DEFAULTS, "a pretrained model": PRETRAINED_DEFAULTS}.items():
        here = settings.get(table, {}) if table else settings
        if key not in here or here[key] == getattr(getattr(usual, table) if table else usual, key):
            continue
        same = [names for names, value in found if value == here[key] and settings is not PRETRAINED_DEFAULTS]
        same[0].append(who) if same else found.append(([who], here[key]))
    return [(", ".join(names), value) for names, value in found]


@dataclass(frozen=True)
class Recipe:
    """A whole run; see the module. ``settings`` cover both trainers, the distributed one in the table ``openrlhf``."""

    name: str
    title: str
    source: str
    expect: str
    seen: str
    gpus: int = 0
    gpu_gib: float = 0.0
    memory_gib: float = 0.0
    cluster: str = ""
    settings: Settings = field(default_factory=dict)


def recipe_names() -> list[str]:
    """All recipes in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_recipe(name: str) -> Recipe:
    """The recipe of this name, merged over its base.

    Raises:
        ValueError: an unknown name, or missing or unknown keys in its table [recipe].
    """
    if name not in (known := recipe_names()):
        raise ValueError(f"there is no recipe {name!r}: choose one of {', '.join(known)}.{did_you_mean(name, known)}")
    settings = read_settings_file(FOLDER / f"{name}.toml", keep=True)
    about = settings.pop(ROOT)
    texts = {key: "\n".join(text.splitlines()) for key, text in about.items() if isinstance(text, str)}
    try:
        return Recipe(name=name, settings=settings, **{**about, **texts})
    except TypeError as error:
        raise ValueError(f"the table [recipe] of {name}.toml does not fit: {error}.") from error


def base_of(path: Path) -> str:
    """The base recipe named in a file of settings, or the empty text."""
    about = read_toml(path).get(ROOT, {})
    return str(about.get("base", "")) if isinstance(about, dict) else ""


def read_settings_file(path: Path, *, keep: bool = False) -> Settings:
    """A file of settings merged over its base recipe; ``keep`` keeps the table [recipe].

    Raises:
        ValueError: see ``read_toml``; or an unknown base.
    """
    settings = read_toml(path)
    about = settings.get(ROOT, {})
    if not isinstance(about, dict):
        raise ValueError(f"{path}: recipe is {about!r}; it must be a table: [recipe] with base = NAME.")
    known = [each.name for each in fields(Recipe) if each.name not in ("name", "settings")]
    for key in about:
        if key not in ("base", *known):
            raise ValueError(f"{path}: [recipe] holds {key!r}, but takes base.{did_you_mean(key, ['base', *known])}")
    base = about.pop("base", None)
    if base is not None:
        if base not in recipe_names():
            raise ValueError(f"{path}: its base {base!r} is not a recipe; choose one of {', '.join(recipe_names())}.")
        settings = merged(read_settings_file(FOLDER / f"{base}.toml", keep=True), settings)
    if not keep:
        settings.pop(ROOT, None)
    return settings
