"""The command: refusals, figures against the library's own, and results that are kept level by level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.exact import results
from ragen_agent.exact.level import ExactLevel, check_exact
from ragen_agent.exact.policy_value import solve
from ragen_agent.exact.results import SAMPLES, pass_at_k, references
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run import evaluation
from ragen_agent.run.evaluation import blind_rate, evaluated_levels, optimal_rate, random_rate, scripted_rate
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.rollout import Instance
from ragen_gym.envs.policies import random_reply, random_value
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.frozen_lake import FrozenLake

EXACT: dict[str, Any] = {"turns": {"think": False, "history": 0, "max_tokens_per_turn": 6}}
FLAGS = [flag for name, value in EXACT["turns"].items() for flag in ("--set", f"turns.{name}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that was drawn and never trained."""
    shape = {"hidden": 32, "layers": 1, "feed_forward": 32}
    policy = Policy.build(with_settings(Config(), {"small_model": shape, **EXACT}))
    folder = tmp_path_factory.mktemp("models") / "small"
    save_checkpoint(policy.model, policy.tokenizer, folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "turns.think is true"),
        ({"turns": {"think": False}}, "turns.history is -1"),
        ({"turns": {"think": False, "history": 2}}, "turns.history is 2"),
        ({"turns": {"think": False, "history": 0, "summary": 1}}, "turns.summary is 1"),
        ({"game": "ragen_gym.tasks:Countdown", "turns": {"think": False, "history": 0}}, "text task"),
        ({"turns": {"think": False, "history": 0, "observation": "image"}}, "pictures cannot be read"),
    ],
)
def test_refusals_name_the_reason_and_another_way(settings: dict[str, Any], reason: str) -> None:
    config = with_settings(Config(), settings)
    with pytest.raises(ValueError, match=rf"{reason}(.|\n)*ragen-agent eval"):
        check_exact(make_env(config, "train"), config.turns)


@pytest.mark.parametrize(("success_rate", "refused"), [(0.8, True), (1.0, False)])
def test_noise_with_unknown_chances_is_refused(
    success_rate: float, refused: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A game that keeps the thresholds of its slips to itself; without slip it is solved."""
    monkeypatch.setattr(FrozenLake, "noise_in_params", False)
    game = ["--set", f"env_options.success_rate={success_rate}", "--levels", "1", "--mass", "0.1"]
    code = main(["exact", str(checkpoint), *game, *FLAGS, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert code == (2 if refused else 0)
    assert ("so the chances of a move are unknown (Game.noise_in_params)" in said) == refused
    assert ("Estimate the score from episodes instead: ragen-agent eval" in said) == refused


def test_a_filter_of_the_model_neither_samples_nor_counts() -> None:
    """The engine samples at a temperature alone, whatever a checkpoint recommends, and so does the sum over replies."""
    config = with_settings(Config(), {**EXACT, "evaluation": {"levels": 2}})
    policy = Policy.build(with_settings(config, {"small_model": {"hidden": 32, "layers": 1}}))
    env, instances = evaluated_levels(config)
    assert isinstance(env, TurnEnv)

    def found() -> tuple[Any, ...]:
        reader = TreeReader(policy.model, len(policy.tokenizer), 1.0)
        value = solve(reader, [ExactLevel(env, policy.chat, config.turns, instances[0])], mass=0.5)[0].of("moves")
        return value, [t.ids.tolist() for t in policy.play(policy.processes("test", 2), instances, 1.0, 0)]

    before = found()
    generation = policy.model.generation_config
    assert generation is not None
    generation.do_sample, generation.top_p, generation.top_k, generation.temperature = True, 0.1, 1, 0.2
    assert found() == before


def test_references_are_the_evaluators_own() -> None:
    config = with_settings(
        Config(), {**EXACT, "env_options": {"size": 3, "success_rate": 0.7}, "evaluation": {"levels": 12}}
    )
    policy = Policy.build(with_settings(config, {"small_model": {"hidden": 32, "layers": 1}}))
    env, instances = evaluated_levels(config)
    assert isinstance(env, TurnEnv)
    found = [references(ExactLevel(env, policy.chat, config.turns, each)) for each in instances]
    mean = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    assert mean["optimal"] == pytest.approx(optimal_rate(env, instances).rate)
    assert mean["blind"] == pytest.approx(blind_rate(env, instances).rate)
    assert mean["random"] == pytest.approx(random_rate(env, instances).rate)
    many = [Instance(each.seed, noise) for each in instances for noise in range(300)]
    sampled = scripted_rate(env, many, random_reply, 0)
    assert mean["random"] == pytest.approx(sampled.rate, abs=5 * (0.25 / len(many)) ** 0.5)


def test_random_play_is_sampled_where_it_meets_too_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_settings(Config(), {**EXACT, "env_options": {"size": 3}, "evaluation": {"levels": 1}})
    env, instances = evaluated_levels(config)
    assert isinstance(env, TurnEnv)
    policy = Policy.build(with_settings(config, {"small_model": {"hidden": 32, "layers": 1}}))
    exact = references(ExactLevel(env, policy.chat, config.turns, instances[0]))
    monkeypatch.setattr(results, "MOST_STATES", 5)
    sampled = references(ExactLevel(env, policy.chat, config.turns, instances[0]))
    assert sampled["random"] == pytest.approx(exact["random"], abs=5 * (0.25 / sampled["random_episodes"]) ** 0.5)
    assert {"random_episodes"} == set(sampled) - set(exact)
    monkeypatch.setattr(evaluation, "MOST_STATES", 5)
    successes = 64 * random_rate(env, instances * 64).rate
    assert successes == round(successes) != 64 * exact["random"]
    env.reset(seed=instances[0].seed)
    with pytest.raises(OverflowError, match="more than 5 states"):
        random_value(env.env, env.actions_left, 5)


def test_pass_at_k() -> None:
    records = [
        {"success": [0.5, 0.5], "success_by_turn": [[0.0, 0.0], [0.5, 0.5]]},
        {"success": [0.0, 0.1], "success_by_turn": [[0.0, 0.1], [0.0, 0.1]]},
    ]
    assert pass_at_k(records, 2) == pytest.approx((0.375, (0.75 + 0.19) / 2))
    assert pass_at_k(records, 1, turns=1) == pytest.approx((0.0, 0.05))


def test_the_command(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["exact", str(checkpoint), *FLAGS, "--mass", "0.02", "--out", str(out)]
    assert main([*command, "--levels", "3"]) == 0
    printed = capsys.readouterr().out
    assert "exact success on 3 test levels" in printed
    assert "optimal" in printed
    assert "for 1 more" in printed, "the predicted cost"
    lines = (out / "levels.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (out / "levels.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:50])  # it was killed
    assert main([*command, "--levels", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    again = (out / "levels.jsonl").read_text().splitlines()
    assert again[:2] == lines[:2]
    for name in ("success", "return", "moves", "malformed"):
        assert json.loads(again[2])[name] == pytest.approx(json.loads(lines[2])[name])
    assert found["levels"] == len(again) == 4
    assert found == json.loads((out / "summary.json").read_text())
    low, high = found["success"]
    assert 0 <= low <= high <= low + 0.02 + 1e-9
    assert found["pass_at_k"]["1"][-1] == pytest.approx([low, high])
    assert set(found["pass_at_k"]) == {str(k) for k in SAMPLES}
    page = (out / "page.html").read_text(encoding="utf-8")
    for record in map(json.loads, again):
        assert record["level_id"] in page
        assert record["states"][0]["message"].splitlines()[1] in page
    assert main([*command[:-4], "--mass", "0.5", "--out", str(out)]) == 2
    assert "other: mass" in capsys.readouterr().err


def test_full_memory_names_the_bound_to_loosen(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def grow(*_: Any) -> Any:
        return torch.empty(2**50)

    monkeypatch.setattr(TreeReader, "_grow", grow)
    assert main(["exact", str(checkpoint), *FLAGS, "--levels", "2", "--nodes", "300", "--out", str(tmp_path)]) == 2
    assert "lower --nodes, now 300" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mass", "1.5", *FLAGS], "--mass is 1.5; it must be above 0 and below 1"),
        (["--nodes", "0", *FLAGS], "--nodes is 0; it must be 1 or more"),
        ([], "turns.think is true"),
    ],
)
def test_mistakes_are_one_line(
    checkpoint: Path, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exact", str(checkpoint), "--out", str(tmp_path / "out"), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
