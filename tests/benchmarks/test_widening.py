"""Figures of levels whose chance training raises, where the answer is known, and the page held to its records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.widening import main, write_page
from benchmarks.widening_values import (
    BEST,
    COARSE,
    LONG,
    MORE,
    PLANS,
    POLICIES,
    PRETRAINED,
    RL,
    SMALL,
    START,
    TEMPERATURES,
    TRAINED,
    Record,
    Table,
    best_temperature,
    config_of,
    interval,
    level_facts,
    levels_of,
    solved,
)
from ragen_agent.exact.results import pass_at_k
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.policy import Policy
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import append_json_lines, read_json_lines
from tests.benchmarks.test_credit import taught

SURE = 2e-4  # from the middle of an interval to its ends


@pytest.fixture(scope="module")
def policy() -> Policy:
    return taught("lake", "<answer>Right || Right</answer>", "<answer>Down</answer>", "<answer>Down || Down</answer>")


def made_records(**chances: list[float]) -> list[Record]:
    """Records of two equal seeds, with these chances of success by level; a policy without any has the start's."""
    facts = {name: [[0.25, 0.5]] * 4 for name in ("random", "blind", "optimal")}
    levels = {"seed": [0, 1, 2, 3], "path": [3] * 4, **facts}
    records: list[Record] = [{"machine": "one", "parameters": 1, "levels": levels}]
    for name in POLICIES:
        ends = [[max(0.0, p - SURE), min(1.0, p + SURE)] for p in chances.get(name, chances[START])]
        for turns in PLANS[SMALL].masses:
            each = {"policy": name, "turns": turns, "temperature": 0.5, "entropy": 1.0}
            records += [{"seed": seed, **each, "success": [[end] * turns for end in ends]} for seed in (1, 0)]
    return records


def test_levels_turn_only_where_the_bounds_are_sure() -> None:
    start, after = [0.0, 0.0009, 0.2, 0.0], [0.2, 0.2, 0.0, 0.1]
    table = Table(made_records(**{START: start, RL: after, MORE: [0.2, 0.0, 0.0009, 0.0]}))
    possible, impossible = table.turned(RL)
    assert possible.tolist() == [[True, False, False, False]] * 2, "0.0009 and 0.1 lie within their own bounds"
    assert impossible.tolist() == [[False, False, True, False]] * 2
    assert [int(each.sum()) for each in table.turned(MORE)] == [2, 0]
    assert [int(each.sum()) for each in table.turned(START)] == [0, 0]


def test_levels_that_rose_are_held_against_the_start_in_long_episodes(tmp_path: Path) -> None:
    records = made_records(**{START: [0.0, 0.0, 0.2, 0.0], RL: [0.2, 0.2, 0.2, 0.0]})
    for each in records:
        if each.get("policy") == START and each["turns"] == LONG:
            each["success"][0][-1] = [0.5, 0.5]
    write_page(tmp_path, records)
    page = (tmp_path / "widening.md").read_text(encoding="utf-8")
    assert "| RL | 2, 2 | 0, 0 |" in page
    assert "a chance above 0.001 on 1, 1, and above" in page
    assert f"| {START}, 2 turns | 10.0 (" in page, "what RL adds"


def test_pass_at_k_and_its_difference() -> None:
    records = made_records(**{START: [0.5, 0.0, 0.1, 1.0], RL: [0.3, 0.3, 0.3, 0.3]})
    table = Table(records)
    (first,) = (each for each in records if (each.get("policy"), each.get("seed"), each.get("turns")) == (START, 0, 2))
    known = [{"success_by_turn": each} for each in first["success"]]
    for k in (1, 8, 512):
        assert table.passed(START, k, TRAINED)[0].mean(0) == pytest.approx(pass_at_k(known, k, TRAINED))
    gain = table.gain(RL, START, 8, TRAINED)[0]
    assert (gain[:, 0] <= gain[:, 1]).all()
    assert gain.mean(1)[1] == pytest.approx(1 - 0.7**8, abs=8 * SURE)
    assert table.passed("random", 2, TRAINED)[0, 0] == pytest.approx([0.75, 0.75])


def test_intervals_hold_a_mean_over_random_seeds_and_levels() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        seeds, levels, noise = rng.normal(0, 0.3, (3, 1)), rng.normal(0, 1, (1, 64)), rng.normal(0, 1, (3, 64))
        found = interval((seeds + levels + noise)[..., None].repeat(2, -1))
        held += found.low <= 0 <= found.high
    assert held / 400 >= 0.93
    values = rng.random(20)
    one, known = interval(values[None, :, None] + np.array([-0.01, 0.01])), mean_interval(list(values))
    assert (one.low, one.high) == pytest.approx((known.low - 0.01, known.high + 0.01))


def test_the_control_has_the_temperature_with_the_highest_success(policy: Policy) -> None:
    levels = levels_of(policy.config, policy, 4, TRAINED)
    found = best_temperature(policy, levels)
    means = {each: np.mean([v.of("success") for v in solved(policy, levels, each, COARSE)]) for each in TEMPERATURES}
    assert means[found] == max(means.values()) > min(means.values())


def test_facts_of_levels(policy: Policy) -> None:
    facts = level_facts(levels_of(config_of(0), policy, 12, TRAINED))
    for random, blind, (short, long) in zip(*(facts[each] for each in ("random", "blind", "optimal")), strict=True):
        assert short <= long == 1
        assert all(0 <= each <= most for each, most in zip(random, (short, long), strict=True))
        assert all(each in (0, 1) and each <= most for each, most in zip(blind, (short, long), strict=True))
    assert min(facts["path"]) >= 3, "as the game's settings say"


def test_the_command_goes_on_and_writes_its_page(policy: Policy, tmp_path: Path) -> None:
    for seed in range(2):
        (tmp_path / "runs" / f"seed{seed}").mkdir(parents=True)
        for folder in ("warm", "checkpoint", "imitation"):
            save_checkpoint(policy.model, policy.tokenizer, tmp_path / "runs" / f"seed{seed}" / folder)
    command = ["--quick", "--seeds", "0", "1", "--runs", f"{tmp_path}/runs", "--out", f"{tmp_path}/out"]
    assert main(command) == 0
    records = tmp_path / "out" / "widening.jsonl"
    before = read_json_lines(records)
    assert len(before) == 1 + 2 * (4 + 3)
    page = (tmp_path / "out" / "widening.md").read_text(encoding="utf-8")
    data = records.read_bytes()
    records.write_bytes(data[: len(data) - 100])  # it was killed
    assert main(command) == 0
    assert read_json_lines(records) == before
    assert (tmp_path / "out" / "widening.md").read_text(encoding="utf-8") == page
    with pytest.raises(SystemExit):
        main(command[1:])


def test_a_pretrained_model_has_a_section_of_its_own(policy: Policy, tmp_path: Path) -> None:
    records, rows = tmp_path / "widening.jsonl", made_records(**{START: [0.0, 0.2, 0.0, 0.1], RL: [0.2, 0.3, 0.2, 0.3]})
    append_json_lines(records, rows)
    (tmp_path / f"{PRETRAINED}-seed0").mkdir()
    for folder in ("warm", "checkpoint", "imitation"):
        save_checkpoint(policy.model, policy.tokenizer, tmp_path / f"{PRETRAINED}-seed0" / folder)
    command = ["--model", PRETRAINED, "--quick", "--runs", str(tmp_path), "--out", str(tmp_path)]
    assert main(command) == 0
    found = read_json_lines(records)
    assert found[: len(rows)] == rows
    assert {each["policy"] for each in found[len(rows) :] if "policy" in each} == {START, RL, MORE}
    assert all(each["model"] == PRETRAINED for each in found[len(rows) :])
    table = Table(found, PRETRAINED)
    assert table.facts["path"].min() >= 2
    assert 0 <= table.chances(START, 1).min() <= table.chances(START, TRAINED).max() <= 1
    page = (tmp_path / "widening.md").read_text(encoding="utf-8")
    assert "## A pretrained model" in page
    assert BEST in page.split("## A pretrained model")[0]
    assert BEST not in page.split("## A pretrained model")[1].split("## How it was measured")[0]
