"""The bandits in pictures: two slot machines with their names, the lever pulled, and what they paid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ragen_gym.render.canvas import Canvas, Colour, Pixels

if TYPE_CHECKING:
    from ragen_gym.games.game import Game
    from ragen_gym.render.recorder import Recording

#: Side of a machine in tiles: its name must be legible.
CELL = 6

_ROOM: Colour = (44, 36, 58)
_CARPET: Colour = (86, 40, 66)
_CARPET_LINE: Colour = (112, 56, 84)
_BODY: Colour = (198, 54, 66)
_BODY_DARK: Colour = (148, 34, 50)
_CHROME: Colour = (206, 210, 220)
_CHROME_DARK: Colour = (150, 156, 172)
_SIGN: Colour = (255, 244, 214)
_INK: Colour = (58, 30, 40)
_BULB: Colour = (255, 208, 80)
_SCREEN: Colour = (26, 30, 44)
_DIM: Colour = (122, 128, 150)
_GOLD: Colour = (250, 200, 62)
_GOLD_DARK: Colour = (206, 146, 24)
_NOTHING: Colour = (240, 110, 110)
_KNOB: Colour = (250, 178, 42)
_BLACK: Colour = (18, 16, 24)


def draw_tile(canvas: Canvas, game: Game, tile: int) -> None:
    """A machine that nobody has pulled; ``tile`` is the arm's code, an index of ``game.arms``."""
    _machine(canvas, game.arms[tile], False, [])  # type: ignore[attr-defined]


def draw_move(pixels: Pixels, game: Game, recording: Recording, tile: int) -> None:
    """Both machines after the pulls so far: the last lever down, each machine's pays below it."""
    if not recording.moves:
        return
    side = CELL * tile
    names = game.action_names(recording.board)
    last_action = recording.moves[-1][0]
    for action, name in enumerate(names):
        pays = [pay for pulled, pay in recording.moves if pulled == action]
        canvas = Canvas(1, 1, side)
        _machine(canvas, name, action == last_action, pays)
        pixels[:, action * side : (action + 1) * side] = canvas.pixels()


def lines_of(name: str) -> list[str]:
    """A name in one or two lines of much the same length: RealEstateAgent is RealEstate, Agent."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z\s]+", name) or [name]
    breaks = [("".join(words[:i]), "".join(words[i:])) for i in range(1, len(words))]
    return list(min(breaks, key=lambda pair: max(map(len, pair)))) if breaks else [name]


def _machine(canvas: Canvas, name: str, pulled: bool, pays: list[float]) -> None:
    canvas.fill(_ROOM)
    canvas.rectangle(0, 0.84, 1, 0.16, _CARPET)
    canvas.rectangle(0, 0.84, 1, 0.012, _CARPET_LINE)
    if pulled:
        for radius, opacity in ((0.47, 26), (0.44, 30), (0.41, 36)):
            canvas.ellipse(0.47, 0.5, radius, radius, (255, 220, 130, opacity))
    canvas.ellipse(0.47, 0.925, 0.37, 0.04, (20, 14, 24, 130))
    _lever(canvas, pulled)
    canvas.rectangle(0.15, 0.30, 0.64, 0.62, _BODY_DARK, 0.05)
    canvas.rectangle(0.15, 0.30, 0.64, 0.595, _BODY, 0.05)
    canvas.rectangle(0.18, 0.33, 0.58, 0.015, (226, 96, 104), 0.007)
    _sign(canvas, name, pulled)
    _window(canvas, pulled, pays)
    canvas.rectangle(0.24, 0.715, 0.46, 0.13, _CHROME_DARK, 0.03)
    canvas.rectangle(0.255, 0.73, 0.43, 0.10, _BLACK, 0.02)
    if pulled and pays[-1] > 0:
        _coins(canvas, pays[-1])
    elif pays:
        canvas.text(0.47, 0.78, 0.04, f"{len(pays)} pulled, {sum(pays):g} won", _DIM, 0.40)


def _lever(canvas: Canvas, pulled: bool) -> None:
    canvas.rectangle(0.78, 0.50, 0.055, 0.13, _CHROME_DARK, 0.02)
    knob = (0.895, 0.735) if pulled else (0.895, 0.43)
    canvas.line([(0.825, 0.565), (0.875, 0.565 + (0.05 if pulled else -0.05)), knob], 0.032, _CHROME)
    canvas.circle(*knob, 0.052, _GOLD_DARK)
    canvas.circle(knob[0] - 0.006, knob[1] - 0.008, 0.044, _KNOB)
    canvas.circle(knob[0] - 0.018, knob[1] - 0.02, 0.013, (255, 232, 170))


def _sign(canvas: Canvas, name: str, lit: bool) -> None:
    lines = lines_of(name)
    if canvas.unit < 96 or canvas.pixel_font:  # so small or so coarse that the name needs all the room
        canvas.rectangle(0, 0.01, 0.96, 0.36, _GOLD if lit else _GOLD_DARK, 0.05)
        canvas.rectangle(0.02, 0.03, 0.92, 0.32, _SIGN, 0.03)
        for i, line in enumerate(lines):
            canvas.text(0.48, 0.19 + (i - (len(lines) - 1) / 2) * 0.155, 0.15, line, _INK, 0.89)
        return
    canvas.rectangle(0.06, 0.05, 0.82, 0.31, _BODY_DARK, 0.06)
    canvas.rectangle(0.075, 0.065, 0.79, 0.28, _GOLD if lit else _GOLD_DARK, 0.05)
    canvas.rectangle(0.11, 0.10, 0.72, 0.21, _SIGN, 0.03)
    for i, line in enumerate(lines):
        canvas.text(
            0.47, 0.205 + (i - (len(lines) - 1) / 2) * 0.09, 0.11 if len(lines) == 1 else 0.09, line, _INK, 0.68
        )
    for i in range(8):
        for y in (0.0825, 0.3275):
            canvas.circle(0.12 + i * 0.1, y, 0.011, (255, 250, 220) if lit == (i % 2 == 0) else _BULB)


def _window(canvas: Canvas, pulled: bool, pays: list[float]) -> None:
    canvas.rectangle(0.20, 0.40, 0.54, 0.27, _CHROME_DARK, 0.035)
    canvas.rectangle(0.205, 0.405, 0.53, 0.255, _CHROME, 0.035)
    canvas.rectangle(0.225, 0.425, 0.49, 0.215, _SCREEN, 0.02)
    lit = _GOLD if pays and pays[-1] > 0 else _NOTHING
    canvas.text(0.47, 0.5325, 0.13, f"{pays[-1]:g}" if pays else "?", lit if pulled else _DIM, 0.44)


def _coins(canvas: Canvas, pay: float) -> None:
    """A coin for each tenth that was paid, at most ten."""
    number = max(1, min(10, round(10 * pay)))
    for i in range(number):
        x = 0.47 + (i - (number - 1) / 2) * 0.038
        y = 0.795 - (0.012 if i % 2 else 0)
        canvas.circle(x, y, 0.032, _GOLD_DARK)
        canvas.circle(x, y - 0.004, 0.026, _GOLD)
