"""The settings of the server, and an estimate of the memory of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragen_gym.core.settings import check_settings, setting
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.games.game import Game

if TYPE_CHECKING:
    from ragen_gym.serve.schemas import CreateRequest

__all__ = ["Limits", "session_bytes"]


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Raises:
        ValueError: a number out of range.
    """

    max_memory: int = setting(2**31, "bytes that all open sessions may come to hold", low=1, unit="bytes")
    session_ttl: float = setting(
        900.0, "seconds without a request after which a session is closed", above=0, unit="seconds"
    )
    max_body: int = setting(2**18, "bytes of a request's body", low=1, unit="bytes")
    max_reply: int = setting(2**18, "characters of all replies of an episode", low=1)

    def __post_init__(self) -> None:
        check_settings(self)


def session_bytes(game: Game, request: CreateRequest, turns: TurnConfig, max_reply: int) -> int:
    """An upper estimate of the bytes that a session comes to hold; measured for every game at its largest."""
    levels = [text.split("\n") for text in request.levels or []]
    height = max([game.height, *map(len, levels)])
    width = max([game.width, *(len(line) for lines in levels for line in lines)])
    board = height * width
    held = 2**16 + sum(1_024 + 16 * len(text) for text in request.levels or [])
    held += 4 * board * 256 if request.num_envs is None else (1_024 + 32 * board) * request.num_envs
    if request.grain == "turn":
        pixels = 0
        if turns.sees:
            from ragen_gym.render.frames import frame_shape

            side = frame_shape(game, turns.image_tile_size)[0] // game.height
            margin = int(turns.image_coordinates)
            pixels = (height + margin) * (width + margin) * side**2 * 3
        # Five pictures more for the bounds of the space and for the painter.
        held += (turns.max_turns + 1) * (pixels + 8 * board) + 5 * pixels + 4 * max_reply
    return held
