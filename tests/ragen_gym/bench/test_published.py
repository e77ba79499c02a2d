"""Published rates beside random, blind and optimal play: what is kept is what is played; what the table says."""

from __future__ import annotations

import pytest

from ragen_gym.bench.baselines import PublishedRate, baseline, published_rates
from ragen_gym.bench.suites import SUITES, Published, load_suite
from ragen_gym.cli import main

PAPERS = [name for name in SUITES if load_suite(name).source]


def test_every_protocol_of_others_has_published_rates_and_says_how_it_differs() -> None:
    assert PAPERS == ["ragen-v1", "ragen-2", "spa", "echo", "rllm-frozenlake", "vagen-v1"]
    for suite in map(load_suite, PAPERS):
        assert suite.published
        assert suite.differs
        assert all(sentence.endswith(".") for sentence in suite.differs)
        assert all(0 <= each.success <= 1 for each in suite.published)
        assert {name for each in suite.published for name in each.splits} == {split.name for split in suite.splits}


def test_the_papers_levels() -> None:
    first = {split.name: split.levels for split in load_suite("ragen-v1").splits}
    two = {split.name: split for split in load_suite("ragen-2").splits}
    spa = {split.name: split for split in load_suite("spa").splits}
    assert two["sokoban"].levels[:256] == first["sokoban"], "the same code and seeds as the first paper's"
    assert spa["sokoban"].levels == first["sokoban"][:128]
    assert spa["frozen_lake"].levels == first["frozen_lake"][:128]
    assert {len(split.levels) for split in two.values()} == {512}
    lakes = [split for split in load_suite("rllm-frozenlake").splits if split.name.startswith("lake")]
    assert sum(len(split.levels) for split in lakes) == 100
    [vagen] = [split for split in load_suite("vagen-v1").splits if split.name == "sokoban"]
    env = vagen.make_game()
    for level in set(vagen.boards):
        env.reset(options={"level": level})
        assert env.env.solution().success(*env.env.state, 5) == 1, "solved in at most five moves"


def test_rates_of_several_splits_are_pooled_by_instances() -> None:
    slippery = next(rate for rate in published_rates(["rllm-frozenlake"]) if rate.published.success == 0.22)
    splits = [split for split in load_suite("rllm-frozenlake").splits if split.name in slippery.published.splits]
    played = [(len(split.levels), baseline(split).means["optimal"]) for split in splits]
    assert slippery.n == sum(n for n, _ in played) == 100
    assert slippery.random < slippery.blind < slippery.optimal
    assert slippery.optimal == pytest.approx(sum(n * (rate or 0) for n, rate in played) / 100)


@pytest.mark.parametrize(
    ("success", "verdict"),
    [
        (0.9, "above optimal play: not this protocol"),
        (0.5, ""),
        (0.39, "not above the blind script"),
        (0.22, "not distinguishable from random play"),
        (0.02, "below random play"),
    ],
)
def test_the_verdict(success: float, verdict: str) -> None:
    rate = PublishedRate("spa", Published("x", success, ("frozen_lake",)), 100, 0.2, 0.35, 0.5)
    assert rate.verdict == verdict


@pytest.mark.slow
def test_the_table_of_all_and_of_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "suites", "--published"]) == 0
    said = capsys.readouterr().out
    assert "spa              frozen_lake               SPA, Qwen2.5-1.5B   70.9 %" in said
    assert "above optimal play: not this protocol" in said
    assert "lmgame-bench Sokoban" in said
    assert "no filter" not in said, "only the main results"


def test_the_table_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "suites", "vagen-v1", "--published"]) == 0
    said = capsys.readouterr().out
    assert all(each.who in said for each in load_suite("vagen-v1").published)
    assert "Not reproduced" not in said
    assert main(["bench", "suites", "smoke", "--published"]) == 2
    assert "'smoke' has no published rates: choose one of ragen-v1" in capsys.readouterr().err
