"""The terminal: single keys, typed words, and boards in colour."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TextIO

from ragen_gym.games.game import Board, Game
from ragen_gym.text import EDGE, Vocabulary

__all__ = ["can_read_keys", "colourful", "painted", "read_keys", "read_lines"]

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


def read_keys(stream: TextIO) -> Iterator[str]:
    """Each key as it is pressed, an arrow as its direction, to the end of the input; then the terminal is put back."""
    import termios
    import tty

    number = stream.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)  # not raw: Ctrl-C still interrupts
        while True:
            pressed = os.read(number, 8).decode("utf-8", "replace")
            if not pressed or pressed == "\x04":
                return
            yield from [_ARROWS[pressed]] if pressed in _ARROWS else pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def read_lines(stream: TextIO, prompt: str) -> Iterator[str]:
    """Each line without its end, after a prompt where a person types; ends with the input."""
    while True:
        if stream.isatty():
            print(prompt, end="", flush=True, file=sys.stdout)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip("\n")
