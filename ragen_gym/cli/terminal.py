"""The terminal: single keys, typed words, and boards in colour."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ragen_gym.core.text import EDGE, Vocabulary
from ragen_gym.games.game import Board, Game

__all__ = ["can_read_keys", "colourful", "painted", "read_lines", "single_keys"]

#: ANSI colours by the start of a tile's name; the first that fits is taken.
_COLOURS = {
    "PLAYER_IN_HOLE": "1;31",
    "PLAYER": "1;33",
    "BOX_ON_TARGET": "1;32",
    "BOX": "33",
    "TARGET": "1;31",
    "GOAL": "1;32",
    "HOLE": "34",
    "WALL": "2",
}

_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
_ARROWS |= {key.replace("[", "O"): word for key, word in _ARROWS.items()}

_END = "\x04"  # Ctrl-D


def colourful(stream: TextIO) -> bool:
    """Whether colours belong here: a terminal that is not dumb, and no NO_COLOR (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def painted(game: Game, board: Board, vocabulary: Vocabulary, text: str) -> str:
    """A board's text for a person: in colour, a space between the symbols of a grid."""
    if not vocabulary.symbols:
        return "\n".join(f"{place} {line}" for place, line in enumerate(text.split("\n"), 1))
    colours = [next((c for start, c in _COLOURS.items() if tile.name.startswith(start)), "") for tile in game.Tile]
    rows = bytes(board).split(bytes([EDGE]))
    return "\n".join(
        " ".join(
            f"\x1b[{colours[tile]}m{vocabulary.symbols[tile]}\x1b[0m" if colours[tile] else vocabulary.symbols[tile]
            for tile in row
        )
        for row in rows
    )


def can_read_keys(stream: TextIO) -> bool:
    """Whether single keys can be read: a terminal of a system that has ``termios``."""
    try:
        import termios  # noqa: F401  (absent on Windows)
    except ImportError:
        return False
    return stream.isatty()


@contextmanager
def single_keys(stream: TextIO) -> Iterator[Iterator[str]]:
    """Each key as it is pressed, an arrow as its direction, to the end of the input; puts the terminal back after."""
    import termios
    import tty

    before = termios.tcgetattr(stream.fileno())
    tty.setcbreak(stream.fileno())  # not raw: Ctrl-C still interrupts
    try:
        yield _keys(stream.fileno())
    finally:
        termios.tcsetattr(stream.fileno(), termios.TCSADRAIN, before)


def _keys(number: int) -> Iterator[str]:
    while True:
        pressed = os.read(number, 64).decode("utf-8", "replace")
        for key in re.findall(r"\x1b[\[O][A-D]|.", pressed, re.DOTALL):
            if key == _END:
                return
            yield _ARROWS.get(key, key)
        if not pressed:
            return


def read_lines(stream: TextIO, prompt: str) -> Iterator[str]:
    """Each line without its end, after a prompt where a person types; ends with the input."""
    while True:
        if stream.isatty():
            print(prompt, end="", flush=True, file=sys.stdout)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip("\n")
