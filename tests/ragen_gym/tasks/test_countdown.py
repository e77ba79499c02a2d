"""Countdown: its oracle against every expression, its answers, its errors."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest

from ragen_gym.tasks import Countdown
from ragen_gym.tasks.arithmetic import answer_of, evaluate
from ragen_gym.tasks.countdown import expressions


def test_the_oracle_finds_exactly_the_values_that_expressions_have() -> None:
    found = set()
    for a, b, c in permutations(("2", "3", "7")):
        for x, y in product("+-*/", repeat=2):
            for text in (f"({a} {x} {b}) {y} {c}", f"{a} {x} ({b} {y} {c})"):
                found.add(evaluate(text)[0])
    reached = expressions((2, 3, 7), "+-*/")
    assert set(reached) == found
    for value, text in reached.items():
        assert evaluate(text)[0] == value
        assert sorted(evaluate(text)[1]) == [2, 3, 7]


@pytest.mark.parametrize("options", [{}, {"count": 2, "signs": "/"}, {"count": 4, "highest": 99}, {"signs": "-"}])
def test_every_problem_is_solvable_and_the_oracle_solves_it(options: dict[str, object]) -> None:
    env, rng, drawn = Countdown(**options), np.random.default_rng(0), 0.0  # type: ignore[arg-type]
    for seed in range(60):
        message, _ = env.reset(seed=seed)
        assert message == Countdown(**options).reset(seed=seed)[0]  # type: ignore[arg-type]
        assert env.target > 0
        assert env.target.denominator == 1
        said, reward, terminated, truncated, info = env.step(env.optimal_reply())
        assert (reward, terminated, truncated, info) == (1.0, True, False, {"success": True}), (message, said)
        env.reset(seed=seed)
        drawn += (reward := env.step(env.random_reply(rng))[1])
        assert reward in (0, 1), "a random reply is an expression of the numbers"
    assert drawn < 60


def test_five_numbers_give_the_same_problem_everywhere() -> None:
    env = Countdown(count=5, highest=99, signs="+-*/")
    assert env.reset(seed=0)[0] == "Numbers: 27 31 51 64 85. Target: 273."
    assert env.optimal_reply() == "<answer>(27 + 64) * (85 - (31 + 51))</answer>"


@pytest.mark.parametrize(
    ("reply", "reward", "said"),
    [
        ("<answer>2 * (3 + 1)</answer>", 1.0, "That is 8."),
        ("I think so. <answer>(1+3)*2</answer>\n", 1.0, "That is 8."),
        ("<answer>1 + 2 + 3</answer>", 0.0, "That is 6."),
        ("<answer>3 / 2 - 1</answer>", 0.0, "That is 1/2."),
        ("<answer>8</answer>", -0.1, "Use each number once"),
        ("<answer>2 * (3 + 1) * 1</answer>", -0.1, "Use each number once"),
        ("<answer>2 ** 3 - 1</answer>", -0.1, "only whole numbers"),
        ("<answer>-1 + 2 + 3</answer>", -0.1, "only whole numbers"),
        ("<answer>1 / (2 - 2)</answer>", -0.1, "it divides by 0"),
        ("<answer>__import__('os')</answer>", -0.1, "only whole numbers"),
        (f"<answer>{'(' * 300}1</answer>", -0.1, "at most 200"),
        (f"<answer>{'(' * 150}1</answer>", -0.1, "only whole numbers"),
        ("<answer></answer>", -0.1, "only whole numbers"),
        ("<answer>1</answer><answer>2</answer>", -0.1, "Reply with"),
        ("2 * (3 + 1)", -0.1, "Reply with"),
    ],
)
def test_answers_are_judged(reply: str, reward: float, said: str) -> None:
    env = Countdown(signs="+-*/")
    env.reset(seed=0)
    env.numbers, env.target = (1, 2, 3), Fraction(8)
    message, earned, terminated, _, info = env.step(reply)
    assert said in message
    assert (earned, terminated, info["success"]) == (reward, True, reward == 1)


def test_a_wrong_answer_is_said_and_another_one_asked_for() -> None:
    env = Countdown(attempts=2)
    message, _ = env.reset(seed=0)
    said, reward, terminated, _, _ = env.step("<answer>1</answer>")
    assert (reward, terminated) == (-0.1, False)
    assert said.endswith(f"\n{message}")
    assert env.step(env.optimal_reply())[1:3] == (1.0, True)


def test_signs_that_are_not_allowed_are_refused() -> None:
    env = Countdown(count=2, signs="-")
    env.reset(seed=0)
    env.numbers, env.target = (2, 5), Fraction(3)
    assert env.step("<answer>2 + 5</answer>")[1] == -0.1
    for options, error in (
        ({"count": 6}, "count=6"),
        ({"signs": "+^"}, r"signs='\+\^'"),
        ({"signs": ""}, "signs=''"),
        ({"attempts": 0}, "attempts=0"),
    ):
        with pytest.raises(ValueError, match=error):
            Countdown(**options)
    with pytest.raises(ValueError, match="no numbers up to 1 reach a whole number above 0 by '-'"):
        Countdown(count=2, highest=1, signs="-").reset(seed=0)


def test_an_answer_is_what_the_reply_ends_with() -> None:
    assert answer_of("so <answer> 3 </answer> ") == " 3 "
    assert answer_of("<answer>1 < 2</answer>") == "1 < 2"
    assert answer_of("<answer>3</answer> or so") is None
    assert answer_of("<answer>3</answer> or </answer>") is None


def test_many_tags_are_read_in_no_time() -> None:
    began = time.process_time()
    assert answer_of("<answer>" * 12_000) is None
    assert time.process_time() - began < 1
