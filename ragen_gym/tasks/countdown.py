"""Countdown: combine given numbers into a target, with an oracle by exhaustive search."""

from __future__ import annotations

import string
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import gcd
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.validation import check_number
from ragen_gym.tasks.arithmetic import OPERATORS, answer_of, evaluate

_CACHED = 256  # sets of numbers: five of them and all their parts are 31, and take up to 7 MB


class Countdown(gymnasium.Env[str, str]):
    """Write an expression that uses each of the given numbers once and equals the target.

    The target is drawn uniformly from the whole numbers above 0 that can be reached with all of the numbers, so every
    problem is solvable. A correct answer earns 1, an answer that is not an expression of the numbers -0.1, any other 0.

    ## Arguments
    count: number of numbers, 2 to 5.
    highest: the numbers are drawn from 1 to this.
    signs: the allowed operators, some of ``+-*/``.
    attempts: maximum answers of an episode; after a wrong one the next message gives its value.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    #: As ``Game.training``. Seven in ten replies of the demonstrator are random; which sign leads to the target is
    #: discovered.
    training: ClassVar[dict[str, Any]] = {
        "env_options": {"count": 2, "highest": 50},
        "turns": {"max_turns": 1, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 16000, "quality": 0.3},
        "warm_start": {"epochs": 2},
        "training": {"iterations": 80, "groups": 32, "group_size": 8, "keep": 0.5, "learning_rate": 1e-3},
    }

    def __init__(self, count: int = 3, highest: int = 9, signs: str = "+-*", attempts: int = 1) -> None:
        limits = ("count", count, 2, 5), ("highest", highest, 1, 99), ("attempts", attempts, 1, 99)
        for name, value, low, high in limits:
            check_number("Countdown", name, value, low, high, whole=True)
        if not isinstance(signs, str) or not signs or set(signs) - set(OPERATORS) or len(set(signs)) < len(signs):
            raise ValueError(f"Countdown: signs={signs!r} must hold some of {''.join(OPERATORS)}, each at most once.")
        self.count, self.highest, self.signs, self.attempts = count, highest, signs, attempts
        self.instructions = (
            "Write an expression that equals the target. Use each number once, and "
            f"{' '.join(signs)} and brackets.\nReply with <answer>expression</answer>."
        )
        self.observation_space = self.action_space = spaces.Text(1000, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the numbers, shown in increasing order, and the target."""
        super().reset(seed=seed)
        for _ in range(1000):
            drawn = self.np_random.integers(1, self.highest + 1, size=self.count).tolist()
            self.numbers = tuple(sorted(drawn))
            self._reached = _reached(self.numbers, self.signs)
            targets = sorted(
                numerator for numerator, denominator in self._reached if numerator > 0 and denominator == 1
            )
            if targets:
                self.target = Fraction(targets[int(self.np_random.integers(len(targets)))])
                self.left = self.attempts
                return self._ask(), {}
        raise ValueError(f"Countdown: no numbers up to {self.highest} reach a whole number above 0 by {self.signs!r}.")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Check an answer."""
        self.left -= 1
        said, reward = self._judge(action)
        right = reward == 1
        over = right or not self.left
        return said if over else f"{said}\n{self._ask()}", reward, over, False, {"success": right}

    def optimal_reply(self) -> str:
        """An expression that equals the target."""
        return f"<answer>{self._reached[self.target.as_integer_ratio()]}</answer>"

    def random_reply(self, rng: np.random.Generator) -> str:
        """The numbers in random order, with random signs and brackets."""
        parts = [str(number) for number in rng.permutation(self.numbers)]
        while len(parts) > 1:
            place = int(rng.integers(len(parts) - 1))
            joined = f"{parts[place]} {self.signs[rng.integers(len(self.signs))]} {parts[place + 1]}"
            parts[place : place + 2] = [joined if len(parts) == 2 else f"({joined})"]
        return f"<answer>{parts[0]}</answer>"

    def _ask(self) -> str:
        return f"Numbers: {' '.join(map(str, self.numbers))}. Target: {self.target}."

    def _judge(self, reply: str) -> tuple[str, float]:
        expression = answer_of(reply)
        if expression is None:
            return "Reply with <answer>expression</answer>.", -0.1
        try:
            value, numbers = evaluate(expression)
        except ValueError as error:
            return f"That is no expression: {error}.", -0.1
        if sorted(numbers) != list(self.numbers) or set(expression) & set(OPERATORS) - set(self.signs):
            return f"Use each number once, and {' '.join(self.signs)}.", -0.1
        return f"That is {value}.", float(value == self.target)


def expressions(numbers: tuple[int, ...], signs: str) -> dict[Fraction, str]:
    """Every value that the numbers can be combined into, each with the first expression found."""
    return {Fraction(*ratio): expression for ratio, expression in _reached(numbers, signs).items()}


@lru_cache(_CACHED)
def _reached(numbers: tuple[int, ...], signs: str) -> dict[tuple[int, int], str]:
    """``expressions`` by numerator and denominator, which is several times as fast as with ``Fraction``."""
    if len(numbers) == 1:
        return {(numbers[0], 1): str(numbers[0])}
    found: dict[tuple[int, int], str] = {}
    places = range(len(numbers))
    for size in places[1:]:
        for chosen in combinations(places, size):
            left = _reached(tuple(numbers[i] for i in chosen), signs)
            right = _reached(tuple(numbers[i] for i in places if i not in chosen), signs)
            for (a, b), x in left.items():
                for (c, d), y in right.items():
                    for sign in signs:
                        if sign == "*":
                            over, under = a * c, b * d
                        elif sign == "/":
                            over, under = (a * d, b * c) if c > 0 else (-a * d, -b * c)
                        else:
                            over, under = (a * d + b * c if sign == "+" else a * d - b * c), b * d
                        if under:
                            shared = gcd(over, under)
                            value = over // shared, under // shared
                            if value not in found:
                                found[value] = f"{_bracketed(x)} {sign} {_bracketed(y)}"
    return found


def _bracketed(expression: str) -> str:
    return f"({expression})" if " " in expression else expression
