"""The settings of each game, and of a pretrained model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import PRETRAINED_DEFAULTS, default_settings, other_defaults
from ragen_agent.tasks.demo_thoughts import THOUGHTS
from ragen_agent.tasks.tasks import make_env
from ragen_gym.games.registry import TABLE, load_task


@pytest.mark.parametrize("game", ["Bandit", "BanditRev", "FrozenLake", "ragen_gym.tasks:Countdown"])
def test_the_defaults_of_every_game_are_valid(game: str) -> None:
    config = with_settings(Config(), {**default_settings(game), "game": game})
    assert config.demonstrations != Config().demonstrations
    assert game in TABLE or load_task(game) is not None
    assert config.demonstrations.thought in THOUGHTS


def test_a_pretrained_model_has_its_own_defaults_and_a_small_checkpoint_has_not(tmp_path: Path) -> None:
    settings = default_settings("FrozenLake", str(tmp_path))
    assert settings["turns"]["max_tokens_per_turn"] == PRETRAINED_DEFAULTS["turns"]["max_tokens_per_turn"]
    assert settings["env_options"] == default_settings("FrozenLake")["env_options"]
    config = with_settings(Config(), {**settings, "model": str(tmp_path)})
    assert "in at most 256 tokens" in make_env(config, "train").reset(seed=0)[0]
    (tmp_path / "config.json").write_text('{"tokenizer_sha256": "0"}')
    assert default_settings("FrozenLake", str(tmp_path)) == default_settings("FrozenLake")
    assert "tokens" not in make_env(config, "train").reset(seed=0)[0]


def test_defaults_of_games_and_of_pretrained_models_are_told_from_those_of_the_settings() -> None:
    rates = other_defaults("training.learning_rate")
    assert rates == [("FrozenLake", 1e-3), ("a pretrained model", 1e-6)]
    assert other_defaults("training.group_size") == [("Bandit, BanditRev", 16)], "FrozenLake has the setting's own"
    assert dict(other_defaults("env_options"))["FrozenLake"] == default_settings("FrozenLake")["env_options"]
    assert other_defaults("seed") == other_defaults("openrlhf.zero_stage") == []
