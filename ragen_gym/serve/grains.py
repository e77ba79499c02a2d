"""What an environment is to the server: one interface of JSON values, whatever an action is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ragen_gym.serve.refusals import library_errors, refuse
from ragen_gym.serve.requests import BatchResetRequest, ResetRequest

__all__ = ["Grain", "Json", "Pixels", "picture", "plain", "space_json"]

Json = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Grain:
    """One environment, or one batch, with its state."""

    playing = False

    def about(self) -> Json:
        """What a client must know of it: actions, spaces, horizon."""
        raise NotImplementedError

    def reset(self, request: BatchResetRequest | ResetRequest) -> Json:
        """Start an episode."""
        raise NotImplementedError

    def boards(self) -> list[str]:
        """The boards as text, none before the first reset."""
        raise NotImplementedError

    def levels(self) -> list[str]:
        """The levels being played."""
        raise NotImplementedError

    def messages(self) -> list[dict[str, str]] | None:
        """The conversation of a grain that has one."""
        return None

    def pixels(self, index: int) -> Pixels:
        """The picture of the board of that environment, uint8 (height, width, 3)."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of it."""
        raise NotImplementedError


def space_json(space: Any) -> Json:
    """A space of the suite as JSON: ``Discrete``, ``Text`` or ``Box``."""
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


def plain(observation: Any) -> Any:
    """An observation, or those of a batch, as JSON."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, np.ndarray) and observation.dtype != object:
        return observation.tolist()
    return [None if one is None else plain(one) for one in observation]


def picture(env: Any, index: int, num_envs: int) -> Pixels:
    """The picture of an environment, or of one of a batch.

    Raises:
        Refusal: it was made without pictures, or there is no such environment in it.
    """
    if env.render_mode is None:
        refuse("not_rendering", "this session draws nothing: create it with render=true.")
    if not 0 <= index < num_envs:
        refuse("bad_value", f"index={index} is not an environment of this session: choose 0 to {num_envs - 1}.")
    with library_errors():
        drawn = env.render()
    pixels: Pixels = drawn[index] if isinstance(drawn, tuple) else drawn
    return pixels
