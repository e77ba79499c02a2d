"""Renderer of an environment's episodes: frames for ``rgb_array``, a window for ``human``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ragen_gym.games.game import Board, Game, Rule
from ragen_gym.render.canvas import Pixels, load_pygame
from ragen_gym.render.frames import picture
from ragen_gym.render.recorder import Recording


class Renderer:
    """Stands before a game's rule, notes what goes through it and draws it.

    An environment that draws calls ``rule`` in place of its game's own, so one that does not draw loses no time.

    Args:
        game: the game.
        rule: its rule.
        tile_size: side of a tile in pixels.
        window: where it is shown.
    """

    def __init__(self, game: Game, rule: Rule, tile_size: int, window: Window) -> None:
        self.game, self.tile_size = game, tile_size
        self._rule, self._window = rule, window
        self._recording = Recording(b"")

    def rule(self, board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
        """The game's rule, noted."""
        recording = self._of(board)
        recording.before = bytes(board)
        reward, recording.outcome = self._rule(board, state, action, u, params)
        recording.moves.append((action, reward))
        return reward, recording.outcome

    def picture(self, board: Board) -> Pixels:
        """The episode on this board as it stands, uint8 (height, width, 3); fresh memory."""
        return picture(self.game, self._of(board), self.tile_size)

    def _of(self, board: Board) -> Recording:
        """The recording of the episode that is played on this very board; a new one where it is new."""
        if self._recording.board is not board:
            self._recording = Recording(board)
        return self._recording

    def watching(self, observe: Callable[[Board], Any]) -> Callable[[Board], Any]:
        """The same observation of a board, shown in the window whenever it is made: at each reset and step."""

        def observe_and_show(board: Board) -> Any:
            self._window.show(self.picture(board))
            return observe(board)

        return observe_and_show

    def close(self) -> None:
        """Close the window, if one is open."""
        self._window.close()


class Window:
    """A window that opens at the first picture. Once the person has closed it, it shows nothing more until ``close``.

    Pygame has one window in a process: it shows the environment that was last reset or played.

    Args:
        title: what its title bar says.
        fps: pictures a second at most.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is missing.
    """

    _shown: ClassVar[Window | None] = None

    def __init__(self, title: str, fps: int) -> None:
        self._pygame = load_pygame()
        self._title, self._fps = title, fps
        self._clock = self._pygame.time.Clock()
        self.closed = False

    def __reduce__(self) -> tuple[type[Window], tuple[str, int]]:
        return Window, (self._title, self._fps)  # a copy opens a window of its own

    def show(self, picture: Pixels) -> None:
        """Show a picture, uint8 (height, width, 3), no sooner than 1 / fps seconds after the last one."""
        if self.closed:
            return
        display = self._pygame.display
        size = picture.shape[1], picture.shape[0]
        if Window._shown is not self or display.get_surface() is None or display.get_surface().get_size() != size:
            display.init()
            display.set_mode(size)
            display.set_caption(self._title)
            Window._shown = self
        if self._pygame.event.peek(self._pygame.QUIT):
            self._quit()
            return
        self._pygame.surfarray.blit_array(display.get_surface(), picture.swapaxes(0, 1))
        self._pygame.event.pump()
        display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window, if it is open; the next picture opens another one."""
        if Window._shown is self:
            self._quit()
        self.closed = False

    def _quit(self) -> None:
        self.closed, Window._shown = True, None
        self._pygame.display.quit()
