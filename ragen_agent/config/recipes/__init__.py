"""Recipes: whole runs as data, for ``ragen-agent train --recipe NAME``.

A recipe is a file of settings, the same tree that ``--config`` takes ([openrlhf] for the distributed trainer), and
next to it a table [recipe] about it:

base          another recipe, whose settings this one overrides
title, source, expect, seen, cluster    text: what it is, whose numbers these are, what curve to expect, whether it was
              run, how the machines are joined
gpus, gpu_gib, memory_gib    what it needs: GPUs, memory of each, and how much of that the fullest one is expected to
              use (``ragen_agent.openrlhf.plan`` does the arithmetic, and a test holds the two together)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ragen_agent.config.io import Settings, merged, read_toml
from ragen_gym.core.validation import did_you_mean

__all__ = ["FOLDER", "ROOT", "Recipe", "base_of", "names", "read", "read_settings_file"]

FOLDER = Path(__file__).parent
ROOT = "recipe"
"""The table of a file that is about the recipe and is no setting."""


@dataclass(frozen=True)
class Recipe:
    """See the module; ``settings`` are those of both trainers, with the distributed one's in the table ``openrlhf``."""

    name: str
    title: str
    source: str
    gpus: int
    gpu_gib: float
    memory_gib: float
    expect: str
    seen: str
    cluster: str = ""
    settings: Settings = field(default_factory=dict)


def names() -> list[str]:
    """All recipes, by the alphabet."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Recipe:
    """The recipe of that name, laid over its base.

    Raises:
        ValueError: there is none, or its table [recipe] lacks something or holds something unknown.
    """
    if name not in names():
        raise ValueError(
            f"there is no recipe {name!r}: choose one of {', '.join(names())}.{did_you_mean(name, names())}"
        )
    settings = read_settings_file(FOLDER / f"{name}.toml", keep=True)
    about = settings.pop(ROOT)
    texts = {key: "\n".join(text.splitlines()) for key, text in about.items() if isinstance(text, str)}
    try:
        return Recipe(name=name, settings=settings, **{**about, **texts})
    except TypeError as error:
        raise ValueError(f"the table [recipe] of {name}.toml does not fit: {error}.") from error


def base_of(path: Path) -> str:
    """The recipe that a file of settings names as its base, or the empty text."""
    about = read_toml(path).get(ROOT, {})
    return str(about.get("base", "")) if isinstance(about, dict) else ""


def read_settings_file(path: Path, *, keep: bool = False) -> Settings:
    """A file of settings laid over the recipe that it names as its base; ``keep`` leaves the table [recipe] in.

    Raises:
        ValueError: see ``read_toml``; or a base that does not exist.
    """
    settings = read_toml(path)
    about = settings.get(ROOT, {})
    if not isinstance(about, dict):
        raise ValueError(f"{path}: recipe is {about!r}; it must be a table: [recipe] with base = NAME.")
    base = about.pop("base", None)
    if base is not None:
        if base not in names():
            raise ValueError(f"{path}: its base {base!r} is no recipe; choose one of {', '.join(names())}.")
        settings = merged(read_settings_file(FOLDER / f"{base}.toml", keep=True), settings)
    if not keep:
        settings.pop(ROOT, None)
    return settings
