"""The history of a run, and early stopping by worked examples."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ragen_agent.config import Stops
from ragen_agent.run.alarm import STAGNANT_ITERATIONS, History


def record(number: int, **figures: float) -> dict[str, Any]:
    return {"iteration": number, "success": 0.5, "return": 0.25, "return_std": 0.5, **figures}


START = [record(i, return_std=float(i % 2)) for i in range(10)]
LOW_STD = "after iteration 12: for 2 iterations the return std within groups was below 10 % .* the first 10"


@pytest.mark.parametrize(
    ("stops", "records", "stagnant", "reason"),
    [
        (Stops(), [record(0)] * 9, STAGNANT_ITERATIONS - 1, ""),
        (Stops(), [record(8)], STAGNANT_ITERATIONS, "after iteration 9: for 3 iterations no episode .*The run is dead"),
        (
            Stops(),
            [record(i, invalid_rate=1, reply_tokens=9) for i in range(3)],
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
        # The first ten average 1/2, so what counts is two in a row below 1/20.
        (Stops(return_std_patience=2), [*START, record(10, return_std=0.049), record(11, return_std=0.0)], 0, LOW_STD),
        (Stops(return_std_patience=2), [*START, record(10, return_std=0.05), record(11, return_std=0.0)], 0, ""),
        (Stops(return_std_patience=2), [*START[1:], record(10, return_std=0.0), record(11, return_std=0.0)], 0, ""),
        (Stops(return_std_patience=2), [record(i, return_std=0.0) for i in range(20)], 0, ""),  # it never had any
        (Stops(), [*START, record(10, return_std=0.0), record(11, return_std=0.0)], 0, ""),
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
    fallen = [record(4 + i, return_std=0.0) for i in range(4)]
    found = []
    for each in fallen:
        signs = [sign.name for sign in history.new_signs(each)]
        found.append(signs)
        history.add({**each, "alarm": signs}, stagnant=False)
    assert sorted(name for signs in found for name in signs) == ["return_std_end", "return_std_fall"]


def test_figures_that_an_evaluation_adds_reach_the_live_history() -> None:
    """As in a resumed run, which reads them from ``metrics.jsonl``."""
    history, latest = History([], Stops()), record(0)
    history.add(latest, stagnant=False)
    latest |= {"eval_success": 0.5}
    assert history.records[-1]["eval_success"] == 0.5
