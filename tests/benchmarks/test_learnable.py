"""Verdicts without a model on the planted environments, and the share of a blind policy there."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import read_results
from benchmarks.learnable import RIGHT, ROOT, _page, constant_reply
from benchmarks.planted import KINDS, NUMBERS, Planted


@pytest.mark.parametrize("number", range(4), ids=KINDS)
def test_the_verdict_of_the_best_constant_reply_is_the_recorded_one(number: int) -> None:
    rows = read_results(ROOT / "benchmarks", "learnable")["rows"]
    row = next(row for row in rows if row["number"] == number)
    found = constant_reply(Planted(number))
    assert found == row["constant_reply"]
    assert (found == RIGHT[row["kind"]]) == (row["kind"] != "fine")  # it never reads


@pytest.mark.parametrize("number", [number for number in NUMBERS if Planted(number).fault == "skew"])
def test_the_share_of_a_blind_policy_where_answers_are_overwritten(number: int) -> None:
    planted = Planted(number)
    planted.reset(seed=0)
    asked = Counter((planted._ask(), planted.answer) for _ in range(20_000))
    answers, texts = Counter[str](), dict[str, int]()
    for (text, answer), count in asked.items():
        answers[answer] += count
        texts[text] = max(texts.get(text, 0), count)
    chance = asked.total() / len(planted.choices)
    share = (max(answers.values()) - chance) / (sum(texts.values()) - chance)
    # Of n alike likely answers (0.4 (1 - 1/n)) / (0.6 (1 - 1/n)); the larger of two digits is 1 in one of 45 pairs.
    larger = (0.4 + 0.6 / 45 - 0.1) / (0.6 + 0.4 / 45 - 0.1)
    assert share == pytest.approx(larger if planted.question == "larger" else 2 / 3, abs=0.05)


def test_the_page_of_a_run_that_has_only_begun() -> None:
    results = read_results(ROOT / "benchmarks", "learnable")
    begun = _page({**results, "rows": results["rows"][:1], "others": []})
    assert begun.count("Not run yet.") == 2
    assert "| 0 | fine |" in begun
