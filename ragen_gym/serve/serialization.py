"""Spaces, observations, arguments and pictures as JSON and from it: both ends of the wire."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from math import isnan, nan, prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.levels import Level, item_text
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.validation import checked_options, items_of, shown
from ragen_gym.envs.board_view import TextSpace
from ragen_gym.games.values import MoveValue, TurnValue, Value
from ragen_gym.render.png import decode_png, encode_png

__all__ = [
    "Json",
    "Pixels",
    "create_body",
    "images_json",
    "images_of",
    "number_json",
    "number_of",
    "observation_json",
    "options_body",
    "pixels",
    "request_json",
    "space_json",
    "space_of",
    "turn_value_json",
    "turn_value_of",
]

Json = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Numbers of an observation, at most; the largest picture of a server has fewer.
_LARGEST_BOX = 2**24

#: Arguments of ``ragen_gym.StepEnv`` that the server takes as fields of their own; all others are options of the game.
_FIELDS = (
    *("split", "preset", "levels", "skip_invalid"),
    *("observation", "text_format", "vocabulary", "tile_size", "regret"),
)


def create_body(env: str, arguments: Json, **fields: Any) -> Json:
    """The request that makes an environment of these arguments of ``ragen_gym.StepEnv``."""
    body: Json = {"env": env, **{k: v for k, v in fields.items() if v not in (None, {})}}
    body["env_options"] = {name: value for name, value in arguments.items() if name not in _FIELDS}
    body |= {name: arguments[name] for name in _FIELDS if arguments.get(name) is not None}
    if isinstance(body.get("vocabulary"), Vocabulary):
        vocabulary: Vocabulary = body["vocabulary"]
        body["vocabulary"] = {"name": vocabulary.name, "symbols": "".join(vocabulary.symbols)}
    if "levels" in body:
        levels = items_of(body["levels"])
        if not levels:
            raise ValueError(
                f"levels={shown(body['levels'])} holds no level, and a server reads no files; give the boards, such as "
                "ragen_gym.core.levels.read_levels(path)."
            )
        body["levels"] = _text(list(map(item_text, levels)))
    return body


def request_json(body: Json) -> bytes:
    """A request as JSON; numbers and arrays of numpy, such as seeds that a generator drew, become plain ones.

    Raises:
        TypeError: a value that is not JSON.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(f"{value!r} cannot be sent to a server: it is not JSON.")

    return json.dumps(body, default=plain, ensure_ascii=False).encode()


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
    """The space that ``space_json`` describes.

    Raises:
        ValueError: what a server sent is none, or one of more numbers than any picture has.
    """
    try:
        if _numbers(about) > _LARGEST_BOX:
            raise ValueError("too large")
        return _space_of(about)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ValueError(f"the server described a space that cannot be made: {shown(about)}.") from None


def _numbers(about: Any) -> int:
    """How many numbers an observation of a space has."""
    if about["type"] == "Dict":
        return sum(map(_numbers, about["spaces"].values()))
    return abs(int(prod(about.get("shape", ()))))


def _space_of(about: Any) -> Any:
    if about["type"] == "Dict":
        return spaces.Dict({name: _space_of(each) for name, each in about["spaces"].items()})
    if about["type"] == "Discrete":
        return spaces.Discrete(about["n"])
    if about["type"] == "Text":
        return TextSpace(about["max_length"], min_length=about["min_length"], charset=frozenset(about["charset"]))
    return spaces.Box(about["low"], about["high"], tuple(about["shape"]), np.dtype(about["dtype"]).type)


def observation_json(observation: Any) -> Any:
    """An observation, or those of a batch, as JSON."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, np.ndarray) and observation.dtype != object:
        return observation.tolist()
    return [None if one is None else observation_json(one) for one in observation]


def images_json(pictures: Sequence[Pixels]) -> list[str]:
    """Pictures as PNG files in base64."""
    return [b64encode(encode_png(picture)).decode() for picture in pictures]


def images_of(texts: Any, shape: tuple[int, ...]) -> list[Pixels]:
    """The pictures of ``images_json``, each uint8 of ``shape``.

    Raises:
        ValueError: what a server sent is not that; which picture, and what is wrong with it.
    """
    found = []
    for place, text in enumerate(texts):
        try:
            found.append(decode_png(b64decode(text, validate=True), shape))
        except (ValueError, TypeError) as error:  # a binascii.Error is a ValueError
            raise ValueError(f"the server sent a picture, number {place}, that cannot be read: {error}") from None
    return found


def pixels(png: bytes) -> Pixels:
    """A PNG as uint8 (height, width, 3)."""
    try:
        from PIL import Image
    except ImportError:
        raise gymnasium.error.DependencyNotInstalled(
            "pictures need Pillow: run `pip install 'ragen-gym[render]'`."
        ) from None
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def number_json(number: float) -> float | None:
    """A number; None for NaN, which JSON does not have."""
    return None if isnan(number) else number


def number_of(number: float | None) -> float:
    """What ``number_json`` was made of."""
    return nan if number is None else float(number)


def turn_value_json(value: TurnValue) -> Json:
    """A ``TurnValue``, each number as [of the return, of the success]."""
    pairs = {name: list(map(number_json, pair)) for name, pair in zip(value._fields[:-1], value[:-1], strict=True)}
    moves = [
        {"regret": list(map(number_json, m.regret)), "chance": list(map(number_json, m.chance))} for m in value.moves
    ]
    return {**pairs, "moves": moves}


def turn_value_of(fields: Json) -> TurnValue:
    """What ``turn_value_json`` was made of."""

    def value(pair: Sequence[float | None]) -> Value:
        return Value(*map(number_of, pair))

    moves = tuple(MoveValue(value(move["regret"]), value(move["chance"])) for move in fields["moves"])
    return TurnValue(**{name: value(fields[name]) for name in TurnValue._fields[:-1]}, moves=moves)


def options_body(options: Json | None, *others: str) -> Json:
    """The options of a reset, levels as texts; ``others`` are known besides those of every environment.

    Raises:
        ValueError: they are no dict, or one is not known.
    """
    known = checked_options(options, ("level", "noise_seed", *others))
    return {name: _text(value) if name == "level" else value for name, value in known.items()}


def _text(level: Any) -> Any:
    if isinstance(level, Level):
        return level.text
    return [_text(one) for one in level] if isinstance(level, Sequence) and not isinstance(level, str) else level
