"""The figures and tables of a page: what a reader is to see of the runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.experiments import plots
from benchmarks.experiments.hypothesis_tests import compare
from benchmarks.experiments.pages import sweep_tables
from benchmarks.experiments.spec import read
from tests.benchmarks.experiments.test_hypothesis_tests import run


def test_a_sweep_is_a_line_for_each_method_over_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods at two of three rates, in the one game that has a panel; the control has other marks."""
    figures: list[Figure] = []
    save = plots._save

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", keep)
    ends = {"PPO": (0.5, 0.1), "random half": (0.4, 0.3)}
    runs = {
        f"Bandit, {line}, x{factor}": {seed: run(end + 0.02 * seed) for seed in (0, 1)}
        for line, values in ends.items()
        for factor, end in zip((1, 10), values, strict=True)
    }
    plots.draw_sweep(read("stabilisers"), runs, "end", tmp_path / "end.png")
    assert (tmp_path / "end.png").read_bytes().startswith(b"\x89PNG")
    (bandit,) = figures[0].axes
    assert bandit.get_title() == "Bandit"
    drawn = {str(container.get_label()): container[0] for container in bandit.containers}
    assert list(drawn) == ["PPO", "random half (control)"]
    assert drawn["PPO"].get_ydata() == pytest.approx([51, 11])
    assert drawn["PPO"].get_xdata() == pytest.approx([5e-4, 5e-3], rel=0.2)
    assert drawn["PPO"].get_marker() != drawn["random half (control)"].get_marker()
    assert [text.get_text() for text in bandit.get_xticklabels()] == ["0.0005", "0.0015", "0.005"]
    assert len(figures[0].legends) == 1


def test_a_sweep_is_a_table_of_differences_for_each_game(tmp_path: Path) -> None:
    """Only what has runs: a row a method, a column a comparison, what is decided in bold, and random play marked."""
    experiment = read("stabilisers")
    assert experiment.sweep is not None
    noise = np.random.default_rng(0)
    ends = {"PPO": (0.6, 0.1), "GSPO": (0.6, 0.4), "CISPO": (0.6, 0.1)}
    runs = {
        f"Bandit, {line}, x{factor}": {
            seed: run(end + (0.03 * (-1) ** seed if line == "CISPO" else noise.normal(0, 0.01))) for seed in range(8)
        }
        for line, values in ends.items()
        for factor, end in zip((1, 10), values, strict=True)
    }
    findings = [compare(runs, comparison) for comparison in experiment.comparisons]
    lines = sweep_tables(experiment.sweep, findings)
    tables = [line for line in lines if line.startswith("|")]
    assert [line for line in lines if line.startswith("###")] == ["### Bandit"]
    assert "Sokoban: no runs yet." in lines
    assert tables[0].count("(claim: higher)") == 2
    assert [row.split(" | ")[0] for row in tables[2:]] == ["| GSPO", "| CISPO"]
    gspo = tables[2].strip("| ").split(" | ")
    assert gspo[1].endswith(", 8: **equal**")
    assert gspo[2] == "\N{EN DASH}"
    assert gspo[3].startswith("+30.")
    assert gspo[3].endswith(", 8: **higher**")
    assert tables[3].count("open") >= 1
