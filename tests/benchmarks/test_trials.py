"""The benchmark of learning within a trial: its settings, its script, its replays and its committed page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import trials
from benchmarks.trials import LINES, SETTINGS, TRAINED, computed, made, repeats_the_best, replayed, scripted
from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import read_settings_file
from ragen_agent.tokens.trajectory import Trajectory

BENCHMARKS = Path(trials.__file__).parent


def test_the_models_are_trained_on_the_setting_that_they_are_compared_in() -> None:
    config = with_settings(Config(), read_settings_file(trials.TABLE))
    setting = SETTINGS[TRAINED]
    assert {**config.env_options, "split": config.evaluation.split} == setting.options
    assert config.turns.max_turns == config.turns.max_actions == setting.moves
    assert config.turns.max_actions_per_turn == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_lines_are_rates_in_their_order(name: str) -> None:
    lines = computed(SETTINGS[name], 2)
    assert lines.keys() <= LINES.keys()
    earned = [lines[line]["return"]["mean"] for line in ("random", "greedy", "Bayes-adaptive optimum")]
    assert earned == sorted(earned)
    informed = lines["optimal, informed"]
    assert all(0 <= each["rate"] <= 1 + 1e-9 for line in lines.values() for each in line["success"])
    assert informed["return"]["mean"] >= earned[-1] - 1e-9
    assert len(informed["success"]) == SETTINGS[name].options.get("attempts", 3) >= max(SETTINGS[name].shown)


def test_the_script_repeats_the_attempt_that_won() -> None:
    env = made(SETTINGS["names"])
    for seed in range(40):
        env.reset(seed=seed)
        curve = repeats_the_best(env, np.random.default_rng(seed))
        assert curve.success.tolist() == sorted(curve.success.tolist()), "without slip a win is repeated"
        assert curve.rewards == pytest.approx(curve.success)
    assert scripted(SETTINGS["names"], 3, 5) == scripted(SETTINGS["names"], 3, 5)


def test_a_recorded_trial_is_played_again() -> None:
    env, rng = made(SETTINGS["chance"]), np.random.default_rng(0)
    env.reset(seed=4, options={"noise_seed": 2})
    messages, rewards, over, info = list[dict[str, str]](), list[float](), False, dict[str, Any]()
    while not over:
        reply = env.random_reply(rng)
        messages.append({"role": "assistant", "content": reply})
        _, reward, over, _, info = env.step(reply)
        rewards.append(reward)
    one = np.ones(1)
    record = Trajectory(
        ids=one.astype(np.int64),
        sampled=one.astype(np.bool_),
        log_probs=one.astype(np.float32),
        turn_ends=(0,),
        turn_rewards=(0.0,),
        terminated=True,
        truncated=False,
        success=info["success"],
        failure=None,
        level_id="",
        seed=4,
        messages=tuple(messages),
    )
    curve = replayed(env, record, 2)
    assert tuple(curve.success) == info["successes"]
    assert curve.rewards.tolist() == rewards
    with pytest.raises(RuntimeError, match="seed 4 was not played to its end"):
        replayed(env, Trajectory(**{**vars(record), "messages": tuple(messages[:-1])}), 2)
