"""Calculator: a task with a tool. The model calls it, reads the result, and answers."""

from __future__ import annotations

import re
import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.validation import check_number
from ragen_gym.tasks.arithmetic import answer_of, evaluate

_CALL = re.compile(r"<calculator>([^<]*)</calculator>\s*")
_GOODS = ("apples", "books", "chairs", "lamps", "pens", "stamps")


class Calculator(gymnasium.Env[str, str]):
    """Say what a purchase costs; a calculator does the sums.

    A reply ends with a call, ``<calculator>12 * 7</calculator>``, whose result is the next message, or with an
    ``<answer>``, which ends the episode. A correct answer earns 1 minus ``call_cost`` for each call, a wrong one 0, and
    a reply that is neither -0.1.

    ## Arguments
    goods: number of kinds of things bought, 1 to 6.
    highest: amounts and prices are drawn from 2 to this.
    calls: maximum calls of an episode; after them only an answer is accepted.
    call_cost: reduction of a correct answer's reward for each call.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, goods: int = 2, highest: int = 99, calls: int = 4, call_cost: float = 0.0) -> None:
        for name, value, low, high in (("goods", goods, 1, 6), ("highest", highest, 2, 10**6), ("calls", calls, 1, 99)):
            check_number("Calculator", name, value, low, high, whole=True)
        check_number("Calculator", "call_cost", call_cost, 0, 1 / calls)
        self.goods, self.highest, self.calls, self.call_cost = goods, highest, calls, call_cost
        self.instructions = (
            "Say what the purchase costs. A calculator computes + - * / and brackets: reply with "
            f"<calculator>expression</calculator> and read its result, at most {calls} times.\n"
            "Then reply with <answer>number</answer>."
        )
        self.observation_space = self.action_space = spaces.Text(1000, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the goods, amounts and prices."""
        super().reset(seed=seed)
        names = self.np_random.permutation(_GOODS)[: self.goods].tolist()
        self.bill = self.np_random.integers(2, self.highest + 1, size=(self.goods, 2)).tolist()
        self.made, self.result = 0, ""
        bought = ", ".join(f"{n} {name} at {price} each" for name, (n, price) in zip(names, self.bill, strict=True))
        return f"Bought: {bought}. What is the total?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compute, or check the answer."""
        answer = answer_of(action)
        if answer is not None:
            right = answer.strip() == str(self.total)
            reward = 1 - self.call_cost * self.made if right else 0.0
            return "Right." if right else "Wrong.", reward, True, False, self._info(right)
        call = _CALL.search(action)
        if call is None or call.end() != len(action) or "<answer>" in action:
            return "Reply with a calculator call or an answer.", -0.1, False, False, self._info(False)
        if self.made == self.calls:
            return "No calls are left: answer.", -0.1, False, False, self._info(False)
        self.made += 1
        try:
            self.result = str(evaluate(call[1])[0])
        except ValueError as error:
            return f"Error: {error}.", 0.0, False, False, self._info(False)
        return f"Result: {self.result}", 0.0, False, False, self._info(False)

    @property
    def total(self) -> int:
        """The right answer."""
        return sum(n * price for n, price in self.bill)

    def optimal_reply(self) -> str:
        """A call with the whole sum; once its result is known, the answer."""
        if self.result == str(self.total) or self.made == self.calls:
            return f"<answer>{self.total}</answer>"
        return f"<calculator>{' + '.join(f'{n} * {price}' for n, price in self.bill)}</calculator>"

    def random_reply(self, rng: np.random.Generator) -> str:
        """A number drawn from those between the least and the greatest total."""
        least, greatest = 4 * self.goods, self.goods * self.highest**2
        return f"<answer>{rng.integers(least, greatest + 1)}</answer>"

    def _info(self, right: bool) -> dict[str, Any]:
        return {"success": right, "calls": self.made}
