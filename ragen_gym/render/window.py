"""A window that shows pictures and hears keys."""

from __future__ import annotations

from ragen_gym.render.brush import Pixels, load_pygame

__all__ = ["Window"]

#: What a key says, where it is not the character that it types.
_WORDS = {"left": "left", "right": "right", "up": "up", "down": "down", "return": "n", "space": "n", "escape": "q"}


class Window:
    """One window. Once the person has closed it, it stays closed and shows nothing more.

    Args:
        width: width of the pictures in pixels.
        height: their height.
        title: what its title bar says.
        fps: pictures a second at most.
    """

    def __init__(self, width: int, height: int, title: str, fps: int) -> None:
        self._pygame = load_pygame()
        self._pygame.display.init()
        self._screen = self._pygame.display.set_mode((width, height))
        self._pygame.display.set_caption(title)
        self._clock = self._pygame.time.Clock()
        self._fps = fps
        self.closed = False

    def show(self, picture: Pixels) -> None:
        """Show a picture, uint8 (height, width, 3), no sooner than 1 / fps seconds after the last one."""
        if not self.closed and self._pygame.event.peek(self._pygame.QUIT):
            self.close()
        if self.closed:
            return
        self._pygame.surfarray.blit_array(self._screen, picture.swapaxes(0, 1))
        self._pygame.event.pump()
        self._pygame.display.flip()
        self._clock.tick(self._fps)

    def key(self) -> str | None:
        """Wait for a key: an arrow's direction or the character typed; None once the window is closed."""
        pygame = self._pygame
        while not self.closed:
            event = pygame.event.wait()
            if event.type == pygame.QUIT:
                self.close()
            elif event.type == pygame.WINDOWEXPOSED:
                pygame.display.flip()
            elif event.type == pygame.KEYDOWN:
                word = _WORDS.get(pygame.key.name(event.key)) or event.unicode
                if word:
                    return str(word)
        return None

    def close(self) -> None:
        """Close the window."""
        if not self.closed:
            self.closed = True
            self._pygame.display.quit()
