"""The comparison of computed success with episodes: what it finds, and that it goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.exact_episodes import BLOCK, _page, agreement, check
from ragen_agent.config import Config, with_settings
from ragen_agent.exact.results import REFERENCES
from ragen_agent.run.policy import Policy
from ragen_gym.core.storage import write_atomic


def records(error: float, levels: int = 100, episodes: int = 4000) -> list[dict[str, Any]]:
    """Wins of levels with known chances, some impossible and some sure; the computed ones are off by an error."""
    rng = np.random.default_rng(0)
    chances = np.concatenate([[0.0, 1.0], rng.uniform(0, 1, levels - 2)])
    stated = np.clip(chances + error, 0, 1)[:, None] + np.array([-1e-6, 1e-6])
    return [
        {
            "success_rate": rate,
            "min_path": 3,
            "episodes": episodes,
            "exact": stated.tolist(),
            "wins": rng.binomial(episodes, chances).tolist(),
            "references": dict.fromkeys(REFERENCES, 0.1),
        }
        for rate in (1.0, 0.8)
    ]


def test_right_values_agree_and_wrong_ones_do_not() -> None:
    right, wrong = agreement(records(0.0)[0]), agreement(records(0.01)[0])
    assert 90 < right["df"] <= 98, "the impossible and the sure levels are not in the chi-square"
    assert min(right["chi2_p"], right["gap_p"], right["level_p"]) > 0.05
    assert abs(right["gap"]) < 3 * right["error"] < 0.003
    assert wrong["gap"] == pytest.approx(-0.01, abs=0.002)
    assert wrong["gap_p"] < 1e-6
    lone = records(0.0)[1]
    lone["exact"][7] = [each + 0.05 for each in lone["exact"][7]]
    assert agreement(lone)["level_p"] < 1e-3
    assert agreement(lone)["gap_p"] > 0.01


def test_wins_where_none_is_possible_are_found() -> None:
    won = records(0.0)[0]
    won["wins"][0] = 3
    assert agreement(won)["level_p"] < 1e-2


def test_the_page_says_whether_they_agree() -> None:
    def page(error: float) -> str:
        return _page({"machine": "", "parameters": 1, "temperature": 1.0, "lakes": records(error)})

    assert "**Level by level the wins agree with the computed success**" in page(0.0)
    assert "the wins do not agree with the computed success" in page(0.01)


def test_the_check_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env_options": {"size": 3, "min_path": 1},
        "turns": {"think": False, "history": 0, "max_turns": 1, "max_actions_per_turn": 1, "max_tokens_per_turn": 4},
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    }
    config = with_settings(Config(), settings)
    policy, kept = Policy.build(config), tmp_path / "check.jsonl"
    whole = check(policy, config, kept, 2, 4 * BLOCK)
    assert [each["episodes"] for each in whole] == [BLOCK] * 2
    assert [each["size"] for each in whole] == [3] * 2, "the lakes of the run"
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 4, "values and a block of each lake"
    write_atomic(kept, "".join(lines[:3]) + lines[3][:20])  # it was killed
    again = check(policy, config, kept, 2, 8 * BLOCK)
    assert [each["exact"] for each in again] == [[*map(list, each["exact"])] for each in whole]
    assert kept.read_text(encoding="utf-8").splitlines(keepends=True)[:4] == lines
    assert [each["episodes"] for each in again] == [2 * BLOCK] * 2
