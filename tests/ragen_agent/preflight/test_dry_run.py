"""What a run would be, shown without a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.preflight.dry_run import marked, random_returns, returns_in_words, scripted_episode
from ragen_agent.run.policy import Policy
from ragen_gym import make_turn

RECIPE = ["train", "--recipe", "qwen2.5-0.5b-sokoban"]
GPUS = ["--backend", "openrlhf", "--set", "openrlhf.accelerator=cuda"]
QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["train", "--dry-run", *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ((3, 1024, 2560), "3 of at most 1,024 tokens and {} of prompt and messages are {}, but"),
        ((3, 820, 2560), "3 of at most 820 tokens"),  # by the prompt alone
        ((1, 2560, 2560), "1 of at most 2,560 tokens"),
        ((3, 780, 2560), ""),
        ((1, 1024, 2560), ""),
    ],
)
def test_replies_that_cannot_fit_the_episode_are_warned_of(
    turns: tuple[int, int, int], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Every episode with whole replies would be cut, and the run would say nothing until then."""
    monkeypatch.chdir(tmp_path)
    names = ("max_turns", "max_tokens_per_turn", "max_tokens_per_episode")
    flags = [word for pair in zip(names, turns, strict=True) for word in ("--set", "turns.{}={}".format(*pair))]
    said = shown(capsys, *flags)
    assert ("Warning Replies of FrozenLake may not fit" in said) == bool(words)
    assert words.partition("{}")[0] in said
    if words:
        [raised] = re.findall(r"Raise it to (\d+)", said)
        assert int(raised) > turns[2]
        assert "Replies of FrozenLake may not fit" not in shown(
            capsys, *flags[:4], "--set", f"turns.max_tokens_per_episode={raised}"
        )


@pytest.mark.parametrize(
    ("settings", "idle"),
    [([], False), (["openrlhf.colocate=false"], True), (["openrlhf.colocate=false", "openrlhf.staleness=1"], True)],
)
def test_gpus_that_stand_idle_are_named(
    settings: list[str], idle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [word for setting in settings for word in ("--set", setting)]
    assert ("Idle: the GPUs that train (1)" in shown(capsys, *GPUS, *flags)) == idle


def test_a_config_file_is_enough_for_the_memory_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(QWEN3_4B))
    said = shown(capsys, *GPUS, "--set", "model=mine")
    assert re.search(r"7\.49 GiB (actor|all) +(actor: )?weights, always", said), "4,022.5 million parameters of 2 bytes"
    assert "The tokenizer of mine is not here" in said
    said = shown(capsys, *GPUS, "--set", "model=Qwen/Qwen3-30B-A3B")
    assert "Unknown" in said
    assert "hf download Qwen/Qwen3-30B-A3B config.json --local-dir models/Qwen3-30B-A3B" in said
    assert "--model models/Qwen3-30B-A3B" in said


def test_a_trial_without_an_oracle_needs_no_scripted_episode(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--game", "ragen_gym.tasks:TrialEnv", "--set", "env_options.game=Bandit", "--set"]
    flags += ["env_options.oracle=false", "--set"]
    assert "scripted episode" not in shown(capsys, *flags, "warm_start.epochs=0")
    assert main(["train", "--dry-run", *flags, "warm_start.epochs=1"]) == 2
    assert "a trial has one with oracle=true and turns.max_actions_per_turn=1" in capsys.readouterr().err


def test_a_recipes_expectation_is_of_its_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--recipe", "qwen2.5-0.5b-sokoban", "--backend", "openrlhf", "--dry-run"
    assert "Expect:" in shown(capsys, *flags)
    assert "Expect:" not in shown(capsys, *flags, "--model", "Qwen/Qwen3-4B")


def test_a_dry_run_shows_everything_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [*RECIPE, "--backend", "openrlhf", "--dry-run", "--seed", "7", "--set", "openrlhf.flags=--ds.overlap_comm"]
        )
        == 0
    )
    said = capsys.readouterr().out
    for part in (
        "seed = 7",
        "[openrlhf]",
        "python -P -m openrlhf.cli.train_ppo_ray",
        "--rollout.batch_size 8",
        "--train.seed 7",
        "--ds.overlap_comm",
        "8 prompts (levels) x 16 samples = 128 episodes",
        "2 x 16 = 32 episodes to train on",
        "so 1 update of the policy and of the critic",
        "25,600 episodes",
        "GPUs: 1, shared by all",
        "about 51.3 of 80 GiB",
        "not run here",
        "<think>⟦</think><answer>",  # what the paper's prompt begins is not sampled
    ):
        assert part in said, part
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_how_far_ahead_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--set", "openrlhf.staleness=1", "--set", "openrlhf.colocate=false"]
    assert main(["train", "--backend", "openrlhf", "--dry-run", *flags, "--out", "run"]) == 0
    said = capsys.readouterr().out
    assert "--train.async_enable" in said
    assert "While an iteration is trained the next is played: by weights that are 1 update behind" in said


def test_the_local_trainer_never_plays_with_older_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--set", "openrlhf.staleness=1", "--out", str(tmp_path / "run")]) == 2
    assert not [*tmp_path.iterdir()], "no folder is made for settings that are refused"
    capsys.readouterr()
    assert main(["train", "--dry-run", "--set", "openrlhf.staleness=1"]) == 2
    assert "openrlhf.staleness is a setting of the distributed trainer alone" in capsys.readouterr().err


def test_a_dry_run_of_the_local_trainer_has_the_same_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert 'game = "FrozenLake"' in said
    assert "32 prompts (levels) x 8 samples = 256 episodes" in said
    assert "keeps 16 of 32 groups" in said
    assert "openrlhf" not in said
    assert "⟦<think>" in said
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_a_context_that_is_too_small_as_the_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Policy.build(Config())
    save_checkpoint(policy.model, policy.tokenizer, tmp_path / "model")
    words = ["train", "--model", str(tmp_path / "model"), "--dry-run", "--set"]
    assert main([*words, "turns.max_tokens_per_episode=100000"]) == 2
    said = capsys.readouterr()
    assert "turns.max_tokens_per_episode is 100000, but the model reads at most" in said.err
    assert not said.out
    assert main([*words, "turns.max_tokens_per_episode=500"]) == 0


@pytest.mark.parametrize("command", [["train", "--dry-run"], ["tokens"]])
def test_a_folder_that_is_no_model_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, message in (("other", "holds no config.json"), ("config.json", "holds no tokenizer")):
        (tmp_path / file).write_text("{}")
        assert main([*command, "--model", str(tmp_path)]) == 2
        assert f"model {tmp_path}: it {message}" in capsys.readouterr().err
    (tmp_path / "config.json").unlink()
    (tmp_path / "checkpoint").mkdir()
    assert main([*command, "--model", str(tmp_path)]) == 2
    assert f"{tmp_path / 'checkpoint'} is the run's" in capsys.readouterr().err


def test_a_picture_marks_exactly_the_sampled_tokens() -> None:
    agent = Policy.build(with_settings(Config(), {"small_model": {"hidden": 32, "layers": 1}}))
    episode = scripted_episode(agent.config, agent.chat)
    text = marked(episode, agent.chat)
    assert re.sub("[⟦⟧]", "", text.plain) == agent.tokenizer.decode(episode.ids.tolist())
    sampled = "".join(re.findall("⟦(.*?)⟧", text.plain, re.DOTALL))
    assert sampled == agent.tokenizer.decode(episode.ids[episode.sampled].tolist())
    assert [str(span.style) for span in text.spans].count("bold green") == len(episode.turn_ends)


def test_one_move_on_a_lake_reaches_nothing_and_no_level_teaches() -> None:
    """The goal of these levels is further away than one move, so every episode earns 0."""
    env = make_turn("FrozenLake", size=6, max_turns=1, max_actions=1, max_actions_per_turn=1)
    for seed in range(8):
        env.reset(seed=seed)
        board = env.state_text.write(env.env.state[0]).split("\n")
        player, goal = (next((y, row.find(c)) for y, row in enumerate(board) if c in row) for c in "PG")
        assert abs(player[0] - goal[0]) + abs(player[1] - goal[1]) > 1
    returns = random_returns(env, 4)
    assert returns.shape == (8, 4)
    assert not returns.any()
    assert "differ on 0 of 8 levels, with 4 episodes on each" in returns_in_words(returns)
    assert "Returns and their episodes: 0 (32)." in returns_in_words(returns)


def test_both_arms_of_a_bandit_are_drawn_and_the_draw_repeats() -> None:
    returns = random_returns(make_turn("Bandit"), 16)
    assert (returns.max(1) > returns.min(1)).all()
    assert np.array_equal(returns, random_returns(make_turn("Bandit"), 16))


def test_many_returns_are_cut_to_the_commonest() -> None:
    text = returns_in_words(np.array([[1.0, 1.0], [0.5, 2.0], [3.0, 4.0], [5.0, -0.1], [7.0, 7.0]]))
    assert "differ on 3 of 5 levels" in text
    assert text.endswith("-0.1 (1), 0.5 (1), 1 (2), 2 (1), 3 (1), 7 (2), and 2 others.")
