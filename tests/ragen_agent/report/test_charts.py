"""What the page draws, without a browser: groups, courses, scales, alarms, sentences."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent.config import Config, Stops, with_settings
from ragen_agent.report.charts import POINTS, axis, panels, seed_curves, tick_labels
from ragen_agent.report.rates import rates_table, sentences
from ragen_agent.report.runs import RecordedRun, group_by_settings
from ragen_agent.run.alarm import History
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.update.metrics import format_metric, smooth

SIZES = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


def made(name: str, metrics: list[dict[str, Any]], after: float | None = None, **settings: Any) -> RecordedRun:
    config = with_settings(Config(), settings)
    summary: dict[str, Any] = {}
    if after is not None:
        summary = {
            "before": {"rate": 0.3, "low": 0.2, "high": 0.4, "n": 100},
            "after": {"rate": after, "low": after - 0.05, "high": after + 0.05, "n": 100},
            "random": {"rate": 0.1, "low": 0.0, "high": 0.2, "n": 100},
            "optimal": {"rate": 1.0, "low": 0.9, "high": 1.0, "n": 100},
        }
    return RecordedRun(name, RunFolder(Path(name)), config, summary, metrics)


def series(values: list[float], name: str = "return_std") -> list[dict[str, Any]]:
    return [{"iteration": place, name: value} for place, value in enumerate(values)]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    runs = [
        made("one", []),
        made("two", [], seed=1, threads=2, hub={"model": "me/two"}),
        made("other", [], training={"keep": 0.5}),
        made("again", [], seed=1),
    ]
    groups = group_by_settings(runs)
    assert [[run.name for run in group.runs] for group in groups] == [["one", "two"], ["other"], ["again"]]
    assert [group.name for group in groups] == ["one", "other", "again"], "the same settings twice: the folders' names"
    assert [group.name for group in group_by_settings(runs[:3])] == ["keep 0.25", "keep 0.5"]
    games = group_by_settings(
        [made("x", [], game="Bandit"), made("y", [], game="Sokoban", training={"starpo_s": False})]
    )
    assert [group.name for group in games] == ["Bandit, StarPO-S", "Sokoban, StarPO"]
    assert [group.name for group in group_by_settings(runs[:2])] == ["FrozenLake"]
    few = group_by_settings([made("x", []), made("y", [], evaluation={"levels": 12})])
    assert [group.name for group in few] == ["evaluation.levels 256", "evaluation.levels 12"], "levels of what"


@given(st.lists(st.lists(SIZES, min_size=1, max_size=30), min_size=1, max_size=4), st.floats(0.05, 1))
def test_the_band_holds_every_seed_and_its_mean(seeds: list[list[float]], weight: float) -> None:
    runs = [made(f"run{k}", series(values), seed=k) for k, values in enumerate(seeds)]
    course = seed_curves(group_by_settings(runs), "return_std", weight)[0]
    assert course.at.tolist() == list(range(1, max(map(len, seeds)) + 1))
    for values in seeds:
        smoothed = np.array(smooth(values, weight))
        assert (course.low[: len(values)] <= smoothed).all()
        assert (course.high[: len(values)] >= smoothed).all()
    assert (course.low <= course.mean + 1e-6).all()
    assert (course.mean <= course.high + 1e-6).all()
    assert [values.tolist() for _, values in course.raw] == seeds


@given(st.lists(SIZES, min_size=1, max_size=40))
def test_an_axis_holds_all_values(values: list[float]) -> None:
    scale, ticks = axis("grad_norm", [np.array(values)])
    heights = scale.height(np.array(values))
    assert ((heights >= -0.01) & (heights <= 1000.01)).all()
    assert 2 <= len(ticks) <= 6
    assert ticks == sorted(ticks)
    assert len({*tick_labels("grad_norm", ticks)}) == len(ticks)
    for low, high in pairwise(values):
        if low < high:
            assert scale.height(low) >= scale.height(high), "upwards is more"


def test_a_spike_makes_an_axis_logarithmic() -> None:
    usual = [0.5, 0.6, 0.4, 0.5]
    assert not axis("grad_norm", [np.array([*usual, 5.0])])[0].logarithmic
    scale, ticks = axis("grad_norm", [np.array([*usual, 500.0])])
    assert scale.logarithmic
    assert [format_metric("grad_norm", tick) for tick in ticks] == ["0.1", "1", "10", "100", "1000"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.119, 0.131], ["0.115", "0.120", "0.125", "0.130", "0.135"]),
        ([0.16, 0.22], ["0.16", "0.18", "0.2", "0.22"]),
        ([-0.131, -0.119], ["-0.135", "-0.130", "-0.125", "-0.120", "-0.115"]),
        ([12_100.0, 13_400.0], ["12000", "12500", "13000", "13500"]),
    ],
)
def test_grid_lines_have_texts_that_differ(values: list[float], labels: list[str]) -> None:
    found = tick_labels("grad_norm", axis("grad_norm", [np.array(values)])[1])
    assert [label.replace("\N{MINUS SIGN}", "-") for label in found] == labels


def test_long_runs_keep_their_spikes() -> None:
    values = [1.0] * 1200
    values[777] = 9.0
    (panel,) = panels(group_by_settings([made("long", series(values))]), 0.25)
    drawn = points(panel["lines"][0]["raw"][0])
    assert len(drawn) <= POINTS + 2
    assert min(y for _, y in drawn) == pytest.approx(1000 - 1000 * 9 / 10, abs=1)
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)

    (panel,) = panels(group_by_settings([made("one", series(values)), made("two", series(values[1:]), seed=1)]), 1.0)
    band = points(panel["lines"][0]["band"].rstrip("Z"))
    assert max(x for x, _ in band) == 1000
    assert min(y for _, y in band) == pytest.approx(1000 - 1000 * 9 / 10, abs=1)


def test_every_line_of_a_chart_has_its_name() -> None:
    runs = [
        made(f"run{k}", series([0.0, 0.1 * k, 0.1 * k], "success"), training={"learning_rate": (k + 1) * 1e-4})
        for k in range(4)
    ]
    (panel,) = panels(group_by_settings(runs), 1.0)
    assert [line["colour"] for line in panel["lines"]] == [0, 1, 2, 3]
    heights = [label["y"] for label in panel["labels"]]
    assert all(later - earlier >= 58 for earlier, later in pairwise(heights))
    assert [label["text"] for label in panel["labels"]] == ["0.0004", "0.0003", "0.0002", "0.0001"]
    (alone,) = panels(group_by_settings(runs[:1]), 1.0)
    assert alone["labels"] == []


def test_lines_of_one_colour_each_have_their_values_under_the_pointer() -> None:
    runs = [made(f"run{k}", series([0.1 * k]), training={"learning_rate": (k + 1) * 1e-4}) for k in range(7)]
    (panel,) = panels(group_by_settings(runs), 1.0)
    assert [colour for colour, _ in panel["readout"]["places"]] == [0, 1, 2, 3, 4, 5, 0]
    assert len({said for _, [[_, said]] in panel["readout"]["places"]}) == 7


def test_alarms_are_marked_where_they_were_raised() -> None:
    history = History([], Stops())
    for k in range(30):
        record: dict[str, Any] = {"iteration": k, "success": 0.8 if k < 20 else 0.1, "entropy": 0.5}
        record |= {"return_std": 0.4 if k < 15 else 0.02, "grad_norm": 9.0 if k == 17 else 0.5}
        record |= {"invalid_rate": 0.0 if k < 22 else 0.9}
        history.add(record | {"alarm": [sign.name for sign in history.new_signs(record)]}, False)
    run = made("dying", [*map(dict, history.records)])
    assert [sign.name for sign in run.signs] == ["return_std_fall", "gradient_spike", "invalid_rise"]
    assert {sign.name: sign.iteration for sign in run.signs} == {
        "return_std_fall": 16,
        "gradient_spike": 17,
        "invalid_rise": 23,
    }
    marks = {panel["name"]: panel["signs"] for panel in panels(group_by_settings([run]), 0.25)}
    (spike,) = marks["grad_norm"]
    assert spike["x"] == pytest.approx(1000 * 17 / 29, abs=0.1)
    assert spike["said"] == "dying: gradient spike after iteration 18"
    assert len(marks["success"]) == 3
    assert marks["entropy"] == []


def test_sentences_claim_no_more_than_the_intervals() -> None:
    alike = [made(f"s{k}", [], after=0.3 + d, seed=k) for k, d in enumerate((0.1, -0.1, 0.02))]
    better = [
        made(f"b{k}", [], after=0.7 + d, seed=k, training={"keep": 0.5}) for k, d in enumerate((0.01, -0.01, 0.02))
    ]
    groups = group_by_settings([*alike, *better])
    said_of = sentences(groups)
    assert any("keep 0.25: success went" in s and s.endswith(", not significant.") for s in said_of)
    assert any("keep 0.5: success went" in s and s.endswith(" seeds), significant.") for s in said_of)
    assert any(
        s.startswith("keep 0.5 against keep 0.25, after reinforcement. The difference is +40.0 points") for s in said_of
    )
    (one,) = [s for s in sentences(group_by_settings(better[:1])) if s.startswith("Success went")]
    assert "one seed says nothing of how seeds differ" in one
    table = rates_table(groups)
    random = next(row for row in table[0]["rows"] if row["name"] == "random")
    assert (random["interval"], random["seeds"], random["episodes"]) == ("0.0 to 20.0", [], 100), "measured once"
    after = next(row for row in table[0]["rows"] if row["name"] == "after")
    assert len(after["seeds"]) == 3
    assert after["episodes"] == 300
