"""Checks of arguments: what they accept, and what their messages say."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from ragen_gym.core.validation import check_choice, check_number, did_you_mean, joined, json_or_text


@pytest.mark.parametrize("check", [
    partial(check_number, "Lake", "size", 4, 2, 9, whole=True),
    partial(check_number, "Lake", "slip", 0.5, 0, 1),
    partial(check_number, "Lake", "slip", np.float32(1), 0, 1),
    partial(check_number, "Lake", "penalty", -3),
    partial(check_choice, "split", "test", ("train", "test")),
])  # fmt: skip
def test_good_values(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("check", "message"), [
    (partial(check_number, "Lake", "size", 10, 2, 9, whole=True), "Lake: size=10 must be an integer from 2 to 9."),
    (partial(check_number, "Lake", "size", 2.0, 2, whole=True), "Lake: size=2.0 must be an integer from 2 on."),
    (partial(check_number, "Lake", "size", True, 0, whole=True), "Lake: size=True must be an integer from 0 on."),
    (partial(check_number, "Lake", "slip", float("nan"), 0, 1), "Lake: slip=nan must be a number from 0 to 1."),
    (partial(check_number, "Lake", "penalty", float("inf")), "Lake: penalty=inf must be a number."),
    (partial(check_number, "Lake", "penalty", "none"), "Lake: penalty='none' must be a number."),
    (partial(check_number, "Lake", "cap", -1, 1, 9, whole=True, none=True),
     "Lake: cap=-1 must be None or an integer from 1 to 9."),
    (partial(check_number, "Lake", "penalty", 10**400), f"Lake: penalty=1{'0' * 96}... must be a number."),
    (partial(check_number, "Lake", "penalty", 10**5000), "Lake: penalty=int of very many digits must be a number."),
    (partial(check_choice, "split", ["dev"], ("a", None)), "split=['dev'] is not known: choose one of 'a', None."),
    (partial(check_choice, "split", "dev", ("a", None)), "split='dev' is not known: choose one of 'a', None."),
])  # fmt: skip
def test_bad_values(check: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Sokobann", " Did you mean Sokoban?"), ("frozen_lake", " Did you mean FrozenLake?"), ("chess", "")],
)
def test_hints(name: str, hint: str) -> None:
    assert did_you_mean(name, iter(["FrozenLake", "Sokoban"])) == hint


def test_two_tables_of_options_give_each_one_value() -> None:
    one, other = {"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"d": 3}, "e": [4]}
    assert joined(one, other) == {"a": 1, "b": {"c": 2, "d": 3}, "e": [4]}
    assert one == {"a": 1, "b": {"c": 2}}
    with pytest.raises(ValueError, match=r"^top\.b\.c is given as 2 and as 5: give one of them\.$"):
        joined(one, {"b": {"c": 5}}, "top.")


def test_a_value_is_json_or_a_text() -> None:
    deep = "[" * 100_000
    assert [json_or_text(text) for text in ("3", "true", "[1]", "easy", deep)] == [3, True, [1], "easy", deep]
