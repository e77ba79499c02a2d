"""Gradients by return std: the norms are those of an update's own step, and the expected ones are told from noise."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.local.backend import RolloutWorker
from ragen_agent.local.gradients import bucket_groups, gradient_buckets
from ragen_agent.local.policy_update import Learner, update
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_agent.update.iteration import Iteration
from tests.ragen_agent.displays import quiet

BANDIT: dict[str, Any] = {
    "game": "Bandit",
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"max_tokens_per_turn": 20, "think": False},
    "training": {"iterations": 2, "groups": 4, "group_size": 4, "minibatch": 1000, "max_grad_norm": float("inf")},
    "demonstrations": {"episodes": 2000, "quality": 0.5},
    "evaluation": {"levels": 8},
}
KL = {"starpo_s": False, "kl_kind": "k1", "kl": 0.5}


@cache
def warm() -> Policy:
    """A model that writes well-formed replies most of the time, and plays both arms."""
    agent = Policy.build(with_settings(Config(), BANDIT))
    rows = generate_demonstrations(agent.config, agent, agent.config.demonstrations, quiet())
    imitate(agent.config, agent, rows, "warm start", quiet(), epochs=2)
    return agent


def policy(training: dict[str, Any]) -> Policy:
    agent = warm()
    return replace(agent, config=with_settings(agent.config, {"training": training}))


def moved(agent: Policy) -> Policy:
    """The same policy with other weights."""
    other = replace(agent, model=copy.deepcopy(agent.model))
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))), alpha=0.05)
    return other


def step_norm(agent: Policy, groups: int, reference: Policy | None, **training: Any) -> float:
    """The gradient norm of a training step on the same episodes, with other settings of the loss."""
    settings = replace(agent.config.training, filter="none", **training)
    worker = RolloutWorker(agent.config, agent)
    rollouts = worker.play(settings.iterations, worker.instances(settings.iterations, groups))
    iteration = Iteration.score_and_filter(settings.iterations, rollouts.trajectories, rollouts.games, settings, 0)
    model = copy.deepcopy(agent.model)
    learner = Learner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        agent.engine.bias,
        reference_model=None if reference is None else reference.model,
        longest=agent.config.turns.max_tokens_per_episode,
    )
    return update(learner, *iteration.update_on, settings, seed=0)["grad_norm"]


@pytest.mark.parametrize(
    "kl", [{**KL, "advantage_length_weight": True}, {**KL, "kl_kind": "k3", "kl_place": "loss"}], ids=["reward", "loss"]
)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_each_norm_is_that_of_a_step_with_this_term_alone(kl: dict[str, Any], aggregation: str) -> None:
    agent = policy({**kl, "entropy_bonus": 0.1, "aggregation": aggregation})
    reference = moved(agent)
    everything, *buckets = gradient_buckets(agent, 13, reference)
    alone = {
        "task": step_norm(agent, 13, None, entropy_bonus=0.0),
        "entropy": step_norm(agent, 13, None, zero_task_advantage=True),
        "kl": step_norm(agent, 13, reference, entropy_bonus=0.0, zero_task_advantage=True),
    }
    assert all(norm > 0 for norm in alone.values())
    assert {term: everything[term] for term in alone} == pytest.approx(alone, rel=1e-4)
    assert [each["groups"] for each in buckets] == [2, 2, 2, 2, 2, 3]
    assert sum(each["tokens"] for each in buckets) == everything["tokens"]
    assert [each["return_std"] for each in buckets] == sorted(each["return_std"] for each in buckets)


def test_groups_of_equal_returns_have_no_task_gradient_and_the_bonus_has_one() -> None:
    """The bonus's gradient hardly depends on the draw, so the estimate from halves comes close to the norm."""
    _, first, *_, last = gradient_buckets(policy({"entropy_bonus": 0.1, "group_size": 2}), 48)
    assert first["return_std_high"] == 0
    assert first["task"] == first["task_expected"] == 0
    assert last["task"] > 0
    for bucket in (first, last):
        assert bucket["entropy_expected"] == pytest.approx(bucket["entropy"], rel=0.2)


def test_the_expected_gradient_of_pure_noise_is_told_from_its_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns drawn by coin have an expected gradient of 0: norms are large, and the estimates average to 0."""
    agent = policy({"algo": "dr_grpo", "entropy_bonus": 0.0})
    play, generator = RolloutWorker.play, torch.Generator().manual_seed(0)

    def by_coin(self: RolloutWorker, *given: Any) -> Any:
        found = play(self, *given)
        coins = torch.randint(2, (len(found.trajectories),), generator=generator).tolist()
        played = [
            t if t.failure else replace(t, turn_rewards=(float(coin), *[0.0] * (len(t.turn_rewards) - 1)))
            for t, coin in zip(found.trajectories, coins, strict=True)
        ]
        return replace(found, trajectories=played)

    monkeypatch.setattr(RolloutWorker, "play", by_coin)
    found = [bucket for _ in range(16) for bucket in gradient_buckets(agent, 24)[1:]]
    expected = sum(math.copysign(each["task_expected"] ** 2, each["task_expected"]) for each in found)
    assert abs(expected) < 0.75 * sum(each["task"] ** 2 for each in found)


def test_buckets_are_equally_large_and_the_last_has_the_remainder() -> None:
    found = bucket_groups(torch.tensor([0.5, 0.0, 0.3, 0.1, 0.2, 0.9, 0.4, 0.8, 0.6, 0.7, 0.05, 1.0, 2.0]))
    assert [each.tolist() for each in found] == [[1, 10], [3, 4], [2, 6], [0, 8], [9, 7], [5, 11, 12]]


@pytest.mark.parametrize(
    ("training", "groups", "said"),
    [
        ({"algo": "ppo"}, 12, "a checkpoint holds none"),
        ({"policy_loss": "clip_cov"}, 12, "a bucket has no gradient of its own"),
        ({}, 11, "give at least 12, two for each of the buckets"),
    ],
)
def test_refusals_name_the_way_out(training: dict[str, Any], groups: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gradient_buckets(policy(training), groups)


def test_the_command_writes_what_the_report_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(
        'game = "Bandit"\n[small_model]\nhidden = 32\nlayers = 1\nfeed_forward = 32\n'
        "[demonstrations]\nepisodes = 64\n[training]\niterations = 1\ngroups = 4\ngroup_size = 4\nstarpo_s = false\n"
        "[evaluation]\nlevels = 8\n",
        encoding="utf-8",
    )
    run = tmp_path / "run"
    assert main(["train", "--config", str(settings), "--out", str(run)]) == 0
    capsys.readouterr()
    text = (run / "config.toml").read_text(encoding="utf-8")
    uploads = text.replace('[hub]\nmodel = ""', '[hub]\nmodel = "me/lake"')
    assert uploads != text
    (run / "config.toml").write_text(uploads, encoding="utf-8")
    assert main(["gradients", str(run), "--groups", "12"]) == 0, "it uploads nothing, so it needs no consent"
    assert "KL term" in capsys.readouterr().out
    written = json.loads((run / "gradients.json").read_text(encoding="utf-8"))
    assert [each["bucket"] for each in written["buckets"]] == [0, 1, 2, 3, 4, 5, 6]
    assert all(each["kl"] >= 0 and each["entropy"] > 0 for each in written["buckets"])
    assert main(["report", str(run)]) == 0
    page = next(run.glob("*.html")).read_text(encoding="utf-8")
    assert '<h2 id="gradients">' in page
    assert f"{written['buckets'][1]['entropy']:.2e}" in page
    assert main(["gradients", str(run / "checkpoint")]) == 2
    assert "give --out FILE" in capsys.readouterr().err
    (run / "warm").rename(run / "elsewhere")
    assert main(["gradients", str(run), "--groups", "12"]) == 0
    said = capsys.readouterr()
    assert "The KL term is left out" in said.out + said.err
