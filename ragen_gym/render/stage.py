"""Where an environment's episodes are drawn: frames for ``rgb_array``, a window for ``human``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragen_gym.games.game import Board, Game, Rule
from ragen_gym.render.brush import Pixels, load_pygame
from ragen_gym.render.caption import KEYS, key_names
from ragen_gym.render.frames import check_tile_size
from ragen_gym.render.picture import picture, picture_shape
from ragen_gym.render.story import Recorder
from ragen_gym.render.window import Window

__all__ = ["Stage", "keys_to_action"]


class Stage(Recorder):
    """Notes what goes through a game's rule and draws it.

    Args:
        game: the game.
        rule: its rule.
        tile_size: side of a tile in pixels.
        title: title of the window.
        fps: frames a second at which a window shows moves.

    Raises:
        ValueError: a tile size out of range.
        gymnasium.error.DependencyNotInstalled: pygame is missing.
    """

    def __init__(self, game: Game, rule: Rule, tile_size: int, title: str, fps: int) -> None:
        super().__init__(rule)
        load_pygame()
        self.game, self.tile_size = game, check_tile_size(tile_size)
        self._title, self._fps = title, fps
        self._window: Window | None = None

    def picture(self, board: Board) -> Pixels:
        """The episode on this board as it stands, uint8 (height, width, 3); fresh memory."""
        return picture(self.game, self.story(board), self.tile_size)

    def show(self, board: Board) -> None:
        """Show the episode in the window, which opens at the first call."""
        if self._window is None:
            height, width, _ = picture_shape(self.game, self.tile_size)
            self._window = Window(width, height, self._title, self._fps)
        self._window.show(self.picture(board))

    def watching(self, observe: Callable[[Board], Any]) -> Callable[[Board], Any]:
        """The same observation of a board, shown in the window whenever it is made: at each reset and step."""

        def observe_and_show(board: Board) -> Any:
            self.show(board)
            return observe(board)

        return observe_and_show

    def close(self) -> None:
        """Close the window, if one is open."""
        if self._window is not None:
            self._window.close()
            self._window = None


def keys_to_action(game: Game) -> dict[tuple[int, ...], int]:
    """Pygame's key codes of each action, for `gymnasium.utils.play.play`: letters or digits, and the arrows."""
    pygame = load_pygame()
    keys: dict[tuple[int, ...], int] = {
        (ord(key),): action.value for action, key in zip(game.Action, key_names(game), strict=True)
    }
    arrows: dict[tuple[int, ...], int] = {
        (getattr(pygame, f"K_{action.name}"),): action.value for action in game.Action if action.name in KEYS
    }
    return keys | arrows
