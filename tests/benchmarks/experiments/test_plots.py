"""The figures of a page: what a reader is to see of the runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from benchmarks.experiments import plots
from benchmarks.experiments.spec import read
from tests.benchmarks.experiments.test_hypothesis_tests import run


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    kept: list[Figure] = []
    save = plots.save_figure

    def keep(figure: Figure, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "save_figure", keep)
    return kept


def test_arms_stand_side_by_side_with_a_panel_for_each_game(tmp_path: Path, figures: list[Figure]) -> None:
    """Each with its start; random play, the blind script and optimal play are named; a control is grey."""
    ends = {"FrozenLake, clipped loss": 0.5, "FrozenLake, random half": 0.3, "Sokoban, GSPO": 0.7}
    runs = {arm: {seed: run(end + 0.02 * seed, start=0.2) for seed in (0, 1)} for arm, end in ends.items()}
    plots.draw_arms(read("stabilisers"), runs, "end", tmp_path / "end.png")
    assert (tmp_path / "end.png").read_bytes().startswith(b"\x89PNG")
    lake, sokoban = figures[0].axes
    assert (lake.get_title(loc="left"), sokoban.get_title(loc="left")) == ("FrozenLake", "Sokoban")
    assert [text.get_text() for text in lake.get_yticklabels()] == ["clipped loss", "random half (control)"]
    means = [container[0] for container in lake.containers]
    assert [mean.get_xdata(orig=False)[0] for mean in means] == pytest.approx([51, 31])
    assert [to_hex(mean.get_color()).upper() for mean in means] == [plots.COLOURS[0], plots.CONTROL]
    starts = [line for line in lake.lines if line.get_marker() == "|" and line.get_markersize() == 16]
    assert [float(np.ravel(line.get_xdata())[0]) for line in starts] == pytest.approx([20, 20])
    assert [text.get_text() for text in lake.texts] == ["random", "blind", "optimal"]


def test_lines_are_named_where_they_end(tmp_path: Path, figures: list[Figure]) -> None:
    """In the first panel, apart from each other though the lines end together, in at most six colours."""
    assert len(set(plots.COLOURS)) == 6
    success = {"vanilla": [0.1, 0.3], "StarPO-S": [0.1, 0.3], "hot random quarter": [0.1, 0.0]}
    runs = {arm: {0: run(rates[-1], rates)} for arm, rates in success.items()}
    plots.draw_curves(read("echo-trap"), runs, tmp_path / "curves.png")
    shown = [axes for axes in figures[0].axes if axes.axison]
    assert len(shown) == len(read("echo-trap").curves)
    names = {text.get_text(): text.get_position()[1] for text in shown[0].texts}
    assert set(names) == {"vanilla", "StarPO-S", "hot random quarter (control)"}
    assert abs(names["vanilla"] - names["StarPO-S"]) > 0.01
    assert not any(axes.texts for axes in shown[1:])
