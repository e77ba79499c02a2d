"""Spaces, observations and pictures as JSON and from it: both ends of the wire."""

from __future__ import annotations

import struct
from math import isnan
from typing import Any

import numpy as np
from gymnasium import spaces

from ragen_gym.envs.board_view import TextSpace
from ragen_gym.render.png import decode_png

Json = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


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
