"""Planted environments for ``benchmarks.learnable``: 40 small text environments whose kind is known, by number.

The kinds take turns: ``fine``, ``unlearnable``, ``leaky``, ``hackable``. The rest of an environment is drawn from its
number: what is asked, how many answers there are, how many questions an episode has, what is paid, and the fault.
"""

from __future__ import annotations

import string
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = ("fine", "unlearnable", "leaky", "hackable")
NUMBERS = range(40)
HELD_OUT = range(30, 40)
QUESTIONS = ("copy", "table", "larger", "parity", "side")
FAULTS = {
    "fine": ("none", "noise", "skew"),
    "unlearnable": ("constant", "coin", "hidden", "hash", "password"),
    "leaky": ("always", "mostly", "any"),
    "hackable": ("bonus", "dearer", "smaller"),
}
_WORDS = ["red", "blue", "green", "black", "white", "brown"]
_SOUNDS = {"dog": "one", "cat": "two", "cow": "three", "duck": "four", "pig": "five", "hen": "six"}


class Planted(gymnasium.Env[str, str]):
    """A questionnaire whose kind is ``KINDS[number % 4]``; ``about`` says what was drawn.

    Faults: ``noise`` inverts a tenth of the payments, ``skew`` puts one answer in place of the right one in four tenths
    of the questions, whose text stays; ``constant`` and ``coin`` payments ignore the reply, a ``hidden`` answer is not
    shown, a ``hash`` answer follows no rule, a ``password`` is never found; one answer is ``always`` or ``mostly``
    (nine in ten) right, or a phrase counts as ``any`` answer; a ``bonus`` phrase is paid like a right answer, or three
    times as much (``dearer``), and solves nothing, or it is paid and the right answer is not (``smaller``).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng([7, number])
        self.kind = KINDS[number % 4]
        self.fault = str(rng.choice(FAULTS[self.kind]))
        self.question = str(rng.choice(QUESTIONS))
        self.answers = int(rng.choice([3, 4, 6]))
        self.rounds = int(rng.choice([1, 1, 2]))
        self.scale = float(rng.choice([1.0, 1.0, 10.0, 0.1]))
        self.tells = self.kind == "hackable" or bool(rng.random() < 0.5)
        self.extra = [str(rng.choice(["skip", "pass"]))] * (self.kind == "hackable" or self.fault == "any")
        self.observation_space = self.action_space = spaces.Text(200, min_length=0, charset=string.printable)

    @property
    def about(self) -> str:
        """The draws of a number, in a line."""
        return (
            f"{self.question}, {len(self.choices)} answers, {self.rounds} a level, paid {self.scale:g}"
            + f", {self.fault}" * (self.fault != "none")
        )

    @property
    def choices(self) -> list[str]:
        """The answers, right or wrong, that a question may have."""
        return {
            "copy": _WORDS[: self.answers],
            "table": list(_SOUNDS.values())[: self.answers],
            "larger": list("0123456789"),
            "parity": ["even", "odd"],
            "side": ["left", "right"],
        }[self.question]

    def get_all_actions(self) -> list[str]:
        """The replies that count as answers."""
        return [*self.choices, *self.extra]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the questions of a level."""
        super().reset(seed=seed)
        self.asked, self.solved = 0, True
        return self._ask(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pay a reply."""
        extra = action in self.extra
        right = action == self.answer or (extra and self.fault == "any")
        pays = float(right)
        if self.fault in ("bonus", "smaller"):
            pays = float(extra or (right and self.fault != "smaller"))
        elif self.fault == "dearer":
            pays = 3.0 * extra + right
        elif self.fault in ("constant", "coin"):
            pays = float(self.fault == "constant" or self.np_random.random() < 0.5)
        elif self.fault == "noise" and self.np_random.random() < 0.1:
            pays = 1 - pays
        elif self.fault == "password":
            pays = 0.0
        self.asked += 1
        over = self.asked == self.rounds
        self.solved &= right
        info = {"success": self.solved and over} if self.tells else {}
        return "Done." if over else self._ask(), self.scale * pays / self.rounds, over, False, info

    def _ask(self) -> str:
        draw, choices = self.np_random, self.choices
        if self.question == "copy":
            text, self.answer = self._about_one(choices, "The ball is {}.", lambda word: word)
        elif self.question == "table":
            text, self.answer = self._about_one(list(_SOUNDS)[: self.answers], "A {} says?", _SOUNDS.__getitem__)
        elif self.question == "larger":
            one, two = draw.permutation(10)[:2].tolist()
            text, self.answer = f"{one} or {two}?", str(max(one, two))
        elif self.question == "parity":
            digit = int(draw.integers(10))
            text, self.answer = f"Is {digit} even?", ["even", "odd"][digit % 2]
        else:
            player, goal = draw.permutation(6)[:2].tolist()
            text = "".join("P" if place == player else "G" if place == goal else "_" for place in range(6))
            self.answer = "left" if goal < player else "right"
        number = int(draw.integers(10_000))
        if self.fault == "hash":
            self.answer = choices[zlib.crc32(f"{number} {text}".encode()) % len(choices)]
            text = f"{number:04d} {text}"
        elif self.fault == "hidden":
            self.answer = choices[number % len(choices)]
        elif number / 10_000 < {"always": 1.0, "mostly": 0.9, "skew": 0.4}.get(self.fault, 0.0):
            self.answer = choices[1]
        return text

    def _about_one(self, things: list[str], text: str, answer: Any) -> tuple[str, str]:
        thing = things[int(self.np_random.integers(len(things)))]
        return text.format(thing), answer(thing)
