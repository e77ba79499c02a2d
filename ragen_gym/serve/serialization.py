"""Spaces, observations, arguments and pictures as JSON and from it: both ends of the wire."""

from __future__ import annotations

import json
import struct
from math import isnan
from typing import Any

import numpy as np
from gymnasium import spaces

from ragen_gym.core.levels import Level, item_text
from ragen_gym.core.validation import checked_options, items_of, shown
from ragen_gym.envs.board_view import TextSpace
from ragen_gym.render.png import decode_png

__all__ = ["Json", "Pixels", "create_body", "options_body", "pixels", "plain", "request_json", "space_json", "space_of"]

Json = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Arguments of ``ragen_gym.StepEnv`` that the server takes as fields of their own; all others are options of the game.
_FIELDS = ("split", "preset", "levels", "skip_invalid", "observation", "text_format", "vocabulary", "tile_size")


def create_body(env: str, arguments: Json, **fields: Any) -> Json:
    """The request that makes an environment of these arguments of ``ragen_gym.StepEnv``."""
    body: Json = {"env": env, **{k: v for k, v in fields.items() if v not in (None, {})}}
    body["env_options"] = {name: value for name, value in arguments.items() if name not in _FIELDS}
    body |= {name: arguments[name] for name in _FIELDS if arguments.get(name) is not None}
    if "levels" in body:
        levels = items_of(body["levels"])
        if not levels:
            raise ValueError(
                f"levels={shown(body['levels'])} holds no level, and a server reads no files; give the boards, such as "
                "ragen_gym.core.levels.read_levels(path)."
            )
        body["levels"] = [_text(item_text(level)) for level in levels]
    return body


def request_json(body: Json) -> bytes:
    """A request as JSON; numbers and arrays of numpy, such as seeds that a generator drew, become plain ones.

    Raises:
        TypeError: a value that is not JSON.
    """

    def of_numpy(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(f"{value!r} cannot be sent to a server: it is not JSON.")

    return json.dumps(body, default=of_numpy).encode()


def space_json(space: Any) -> Json:
    """A space of the suite as JSON: ``Discrete``, ``Text``, ``Box`` or a ``Dict`` of these."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {name: space_json(each) for name, each in space.items()}}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n)}
    if isinstance(space, spaces.Text):
        charset = "".join(sorted(space.character_set))
        return {"type": "Text", "min_length": space.min_length, "max_length": space.max_length, "charset": charset}
    return {
        "type": "Box",
        "low": int(space.low.min()),
        "high": int(space.high.max()),
        "shape": list(space.shape),
        "dtype": str(space.dtype),
    }


def space_of(about: Any) -> Any:
    """The space that ``space_json`` describes."""
    if about["type"] == "Dict":
        return spaces.Dict({name: space_of(each) for name, each in about["spaces"].items()})
    if about["type"] == "Discrete":
        return spaces.Discrete(about["n"])
    if about["type"] == "Text":
        return TextSpace(about["max_length"], min_length=about["min_length"], charset=frozenset(about["charset"]))
    return spaces.Box(about["low"], about["high"], tuple(about["shape"]), np.dtype(about["dtype"]).type)


def plain(value: Any) -> Any:
    """An observation or a value of an info as JSON; NaN, which JSON does not have, is None."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist()) if value.dtype == object else value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and isnan(value) else value


def pixels(png: bytes) -> Pixels:
    """A PNG as uint8 (height, width, 3)."""
    width, height = struct.unpack(">II", png[16:24])
    return decode_png(png, (height, width, 3))


def options_body(options: Json | None) -> Json:
    """The options of a reset, the level as text.

    Raises:
        ValueError: they are no dict, or one is not known.
    """
    known = checked_options(options, ("level", "noise_seed"))
    return {name: _text(value) if name == "level" else value for name, value in known.items()}


def _text(level: Any) -> Any:
    return level.text if isinstance(level, Level) else level
