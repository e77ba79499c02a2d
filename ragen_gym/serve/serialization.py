"""What the clients send and read: arguments as JSON, spaces and pictures from it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.levels import Level
from ragen_gym.core.text import Vocabulary

__all__ = ["create_body", "given", "options_body", "pixels", "space_of"]

#: Arguments of `ragen_gym.StepEnv` that the server takes as fields of their own; all others are knobs of the game.
_FIELDS = ("split", "preset", "levels", "observation", "text_format", "vocabulary", "tile_size")


def create_body(env: str, arguments: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The request that makes an environment of these arguments of `ragen_gym.StepEnv`."""
    body: dict[str, Any] = {"env": env, **{k: v for k, v in fields.items() if v not in (None, {})}}
    body["knobs"] = {name: value for name, value in arguments.items() if name not in _FIELDS}
    body |= {name: arguments[name] for name in _FIELDS if arguments.get(name) is not None}
    if isinstance(body.get("vocabulary"), Vocabulary):
        vocabulary: Vocabulary = body["vocabulary"]
        body["vocabulary"] = {"name": vocabulary.name, "symbols": "".join(vocabulary.symbols)}
    if isinstance(body.get("levels"), str) or hasattr(body.get("levels"), "__fspath__"):
        raise ValueError(
            "levels: a server reads no files; give the boards, such as ragen_gym.core.levels.read_levels(path)."
        )
    if "levels" in body:
        body["levels"] = [str(level) for level in body["levels"]]
    return body


def space_of(about: dict[str, Any]) -> Any:
    """The space that a server describes."""
    if about["type"] == "Discrete":
        return spaces.Discrete(about["n"])
    if about["type"] == "Text":
        return spaces.Text(about["max_length"], min_length=about["min_length"], charset=frozenset(about["charset"]))
    return spaces.Box(about["low"], about["high"], tuple(about["shape"]), np.dtype(about["dtype"]).type)


def pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A PNG as uint8 (height, width, 3)."""
    try:
        from PIL import Image
    except ImportError:
        raise gymnasium.error.DependencyNotInstalled(
            "pictures need Pillow: run `pip install 'ragen-gym[render]'`."
        ) from None
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def options_body(options: dict[str, Any] | None) -> dict[str, Any]:
    """The options of a reset, levels as texts."""
    if options is not None and not isinstance(options, dict):
        raise ValueError(f"options={options!r} is not a dict: give for example {{'noise_seed': 3}}.")
    return {name: _text(value) if name == "level" else value for name, value in (options or {}).items()}


def _text(level: Any) -> Any:
    if isinstance(level, Level):
        return level.text
    return [_text(one) for one in level] if isinstance(level, Sequence) and not isinstance(level, str) else level


def given(body: dict[str, Any]) -> dict[str, Any]:
    """What is not None."""
    return {name: value for name, value in body.items() if value is not None}
