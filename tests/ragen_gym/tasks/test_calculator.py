"""The calculator: calls, results, the answer, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ragen_gym.tasks import Calculator


@pytest.mark.parametrize("options", [{}, {"goods": 6, "calls": 1}, {"goods": 1, "highest": 2}])
def test_the_oracle_calls_once_and_is_right(options: dict[str, int]) -> None:
    env = Calculator(call_cost=0.25, **options)
    for seed in range(30):
        message, _ = env.reset(seed=seed)
        assert message == Calculator(**options).reset(seed=seed)[0]
        said, reward, terminated, _, info = env.step(env.optimal_reply())
        assert (said, reward, terminated, info["calls"]) == (f"Result: {env.total}", 0.0, False, 1)
        assert env.step(env.optimal_reply()) == ("Right.", 0.75, True, False, {"success": True, "calls": 1})
        env.reset(seed=seed)
        assert env.step(env.random_reply(np.random.default_rng(seed)))[2], "a random reply is an answer"


def test_the_message_says_what_the_bill_says() -> None:
    env = Calculator()
    message, _ = env.reset(seed=4)
    (n, price), (m, other) = env.bill
    assert f": {n} " in message
    assert f"at {price} each, {m} " in message
    assert f"at {other} each. What is the total?" in message
    assert env.total == n * price + m * other


def test_what_is_not_a_call_is_said() -> None:
    env = Calculator(calls=2)
    env.reset(seed=0)
    said = [
        env.step(reply)[:3]
        for reply in (
            "What?",
            "<calculator>1</calculator> and more",
            "<calculator>1 / 0</calculator>",
            "Let me see. <calculator>(1 + 2) / 2</calculator>",
            "<calculator>1</calculator>",
            "<answer>three</answer>",
        )
    ]
    assert said == [
        ("Reply with a calculator call or an answer.", -0.1, False),
        ("Reply with a calculator call or an answer.", -0.1, False),
        ("Error: it divides by 0.", 0.0, False),
        ("Result: 3/2", 0.0, False),
        ("No calls are left: answer.", -0.1, False),
        ("Wrong.", 0.0, True),
    ]


def test_options_are_checked() -> None:
    for options, error in (({"goods": 7}, "goods=7"), ({"calls": 4, "call_cost": 0.5}, "call_cost=0.5")):
        with pytest.raises(ValueError, match=error):
            Calculator(**options)
