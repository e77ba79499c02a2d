"""The history of a run, and early stopping by worked examples."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ragen_agent.config import Stops
from ragen_agent.run.alarm import STAGNANT_ITERATIONS, History, return_std_stop, validation_stop


def test_return_std_stop_by_hand() -> None:
    """The first ten average 1, so what counts is five in a row below 0.1."""
    start, stops = [2.0, 0.0] * 5, Stops(return_std_patience=5)
    assert not return_std_stop([*start, *[0.09] * 4], stops)
    assert return_std_stop([*start, *[0.09] * 5], stops)
    assert not return_std_stop([*start, *[0.09] * 5], Stops())
    assert not return_std_stop([*start, *[0.09] * 4, 0.1], stops)
    assert return_std_stop([*start, 5.0, 0.1, *[0.09] * 5], stops)
    assert not return_std_stop([0.0] * 40, stops), "it never had any"
    early = Stops(return_std_baseline=1, return_std_share=0.5, return_std_patience=2)
    assert return_std_stop([1.0, 0.4, 0.4], early)


def test_validation_stop_by_hand() -> None:
    stops = Stops(validate_every=1, validation_patience=5)
    assert not validation_stop([0.0] * 4, stops)
    assert validation_stop([0.3, *[0.009] * 5], stops)
    assert not validation_stop([0.3, *[0.009] * 5], Stops())
    assert not validation_stop([0.0, 0.0, 0.01, 0.0, 0.0], stops)
    assert validation_stop([0.2, 0.04], Stops(validate_every=1, validation_patience=1, validation_floor=0.05))


def record(number: int, **figures: float) -> dict[str, Any]:
    return {"iteration": number, "success": 0.5, "return": 0.25, "spread": 0.5, **figures}


@pytest.mark.parametrize(
    ("stops", "records", "stagnant", "reason"),
    [
        (Stops(), [record(0)] * 9, STAGNANT_ITERATIONS - 1, ""),
        (Stops(), [record(8)], STAGNANT_ITERATIONS, "after iteration 9: for 3 iterations no episode .*The run is dead"),
        (
            Stops(),
            [record(i, invalid_rate=1, response_tokens=9) for i in range(3)],
            STAGNANT_ITERATIONS,
            r"does not know the reply format: .* raise warm_start\.epochs and demonstrations\.episodes",
        ),
        (
            Stops(),
            [record(0, invalid_rate=0.99), record(1, invalid_rate=1), record(2, invalid_rate=1)],
            STAGNANT_ITERATIONS,
            r"The run is dead: try a lower training\.learning_rate",
        ),
        (Stops(), [record(8, success=1)], STAGNANT_ITERATIONS, r"success 100 %, return 0.25\)\. .*the game is solved"),
        (
            Stops(return_std_patience=2, return_std_baseline=2),
            [record(0), record(1), record(2, spread=0.01), record(3, spread=0.0)],
            0,
            "after iteration 4: for 2 iterations the return std within groups was below 10 % .* the first 2",
        ),
        (Stops(return_std_patience=2, return_std_baseline=2), [record(0), record(1), record(2, spread=0.01)], 0, ""),
        (
            Stops(validate_every=1, validation_patience=2),
            [record(0, validation=0.0), record(1), record(2, validation=0.0)],
            0,
            "after iteration 3: 2 validations in a row were below 1 %",
        ),
        (
            Stops(sampled_tokens=100),
            [record(0, sampled_tokens=60), record(1, sampled_tokens=40)],
            0,
            "after iteration 2: the rollouts have sampled 100 tokens",
        ),
        (Stops(sampled_tokens=100), [record(0, sampled_tokens=60)], 0, ""),
    ],
)
def test_reasons_to_stop(stops: Stops, records: list[dict[str, Any]], stagnant: int, reason: str) -> None:
    history = History(records, stops)
    history.stagnant = stagnant
    said = history.stop_reason
    assert re.search(reason, said) if reason else said == ""


def test_a_sign_is_new_once_and_stagnation_counts_in_a_row() -> None:
    history = History([], Stops())
    for number in range(4):
        history.add(record(number), stagnant=number != 1)
    assert history.stagnant == 2
    fallen = [record(4 + i, spread=0.0) for i in range(4)]
    found = []
    for each in fallen:
        signs = [sign.name for sign in history.new_signs(each)]
        found.append(signs)
        history.add({**each, "alarm": signs}, stagnant=False)
    assert sorted(name for signs in found for name in signs) == ["spread_end", "spread_fall"]
