from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config import Config, Training, merged, read_toml, to_toml, with_settings
from ragen_agent.config.game_defaults import GAME_DEFAULTS, PRETRAINED_DEFAULTS, default_settings
from ragen_agent.config.rules import ADVANTAGE_RULES, FILTER_RULES, TOKEN_PARTS
from ragen_agent.training.demo_thoughts import THOUGHTS, thinking
from ragen_agent.training.replies import PARTS
from ragen_agent.training.tasks import make_env
from ragen_gym.core.validation import load_object
from ragen_gym.games.registry import TABLE


@given(
    st.integers(0, 2**60),
    st.floats(1e-6, 1.0),
    st.dictionaries(st.text("abc_", min_size=1), st.integers() | st.booleans() | st.text() | st.floats(0, 1)),
)
def test_toml_gives_the_configuration_back(seed: int, rate: float, knobs: dict[str, object]) -> None:
    config = with_settings(Config(), {"seed": seed, "env_options": knobs, "training": {"learning_rate": rate}})
    assert with_settings(Config(), tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gmae": "Bandit"}, r"unknown setting 'gmae'.*Did you mean game\?"),
        ({"training": {"learning_rat": 1.0}}, r"'training\.learning_rat'.*Did you mean learning_rate\?"),
        ({"training": 3}, "training is 3; it must be a table"),
        ({"training": {"iterations": "many"}}, r"training\.iterations is 'many'; it must be an integer"),
        ({"training": {"iterations": True}}, "must be an integer"),
        ({"training": {"algo": "trpo"}}, r"training\.algo is 'trpo'; choose one of grpo, ppo, dr_grpo"),
        ({"training": {"filter": "best"}}, r"training\.filter is 'best'; choose one of none, top, top_p"),
        ({"training": {"dual_clip": 0.5}}, r"training\.dual_clip is 0\.5; it must be 0 \(none\) or above 1"),
        ({"training": {"credit": "turn"}}, r"training\.credit is 'turn', which needs a critic"),
        ({"training": {"group_size": 1, "algo": "ppo"}}, r"training\.group_size is 1.*the filter ranks groups"),
        ({"training": {"gamma_turn": 2.0}}, r"training\.gamma_turn is 2\.0; it must be from 0 to 1"),
        ({"training": {"replay": -1}}, r"training\.replay is -1; it must be at least 0"),
        ({"stops": {"return_std_share": 0.0}}, r"stops\.return_std_share is 0\.0"),
        ({"diagnostics": {"information_prompts": 1}}, r"diagnostics\.information_prompts is 1; it must be at least 2"),
        ({"games": [{"weight": 1.0}]}, r"games holds \{'weight': 1\.0\}; give tables with game"),
        ({"games": ["Sokoban"]}, r"games holds 'Sokoban'"),
        ({"games": [{"game": "Sokoban", "weight": 0}]}, r"games gives Sokoban the weight 0"),
        ({"curriculum": [{"iteration": 3, "env_options": {}}] * 2}, r"curriculum holds.*ascending"),
        ({"curriculum": [{"env_options": {}}]}, r"curriculum holds"),
        ({"training": {"group_size": 1}}, r"training\.group_size is 1; it must be at least 2"),
        ({"training": {"keep": 0.0}}, "must be above 0 and at most 1"),
        ({"evaluation": {"split": "tets"}}, "choose one of train, validation, test"),
        ({"small_model": {"hidden": 50}}, "multiple of 32"),
        ({"demonstrations": {"moves": []}}, r"demonstrations\.moves"),
        ({"demonstrations": {"moves": ["0.7", 0.3]}}, r"demonstrations\.moves"),
        ({"demonstrations": {"moves": [-0.1, 1.1]}}, r"demonstrations\.moves"),
        ({"demonstrations": {"mistakes": 1.5}}, r"demonstrations\.mistakes is 1\.5; it must be from 0 to 1"),
        ({"demonstrations": {"quality": -0.1}}, r"demonstrations\.quality is -0\.1; it must be from 0 to 1"),
        ({"dtype": "float16"}, "dtype is 'float16'; choose one of auto, float32, bfloat16"),
        ({"lora": {"rank": -1}}, r"lora\.rank is -1"),
        ({"lora": {"alpha": 0.0}}, r"lora\.alpha is 0"),
        ({"lora": {"targets": []}}, r"lora\.targets"),
        ({"training": {"clip_low": 1.0}}, r"training\.clip_low is 1\.0.*below 1"),
        ({"training": {"clip_high": -0.1}}, r"training\.clip_high"),
        ({"training": {"gamma": 1.1}}, r"training\.gamma"),
        ({"training": {"gae_lambda": float("nan")}}, r"training\.gae_lambda"),
        ({"training": {"kl": -1.0}}, r"training\.kl"),
        ({"training": {"entropy_bonus": -1.0}}, r"training\.entropy_bonus"),
        ({"training": {"learning_rate": 0.0}}, r"training\.learning_rate"),
        ({"training": {"critic_learning_rate": -1.0}}, r"training\.critic_learning_rate"),
        ({"training": {"max_grad_norm": 0.0}}, r"training\.max_grad_norm"),
        ({"warm_start": {"learning_rate": 0.0}}, r"warm_start\.learning_rate"),
        ({"small_model": {"layers": 0}}, r"small_model\.layers"),
        ({"small_model": {"feed_forward": 0}}, r"small_model\.feed_forward"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_settings(Config(), settings)


def test_the_rows_of_the_rules_name_what_the_algorithms_have() -> None:
    for rule in FILTER_RULES.values():
        assert callable(load_object(rule.function))
    assert {rule.method for rule in ADVANTAGE_RULES.values() if not rule.critic} == set(algo.METHODS)
    assert {rule.across for rule in ADVANTAGE_RULES.values()} == {"", "group", "batch"}
    assert set(TOKEN_PARTS) == {"all", *PARTS}


def test_each_part_of_starpo_s_may_be_chosen_by_itself() -> None:
    both = Training()
    assert (both.filter_rule, both.kl_estimate, both.upper_clip) == ("top", "none", 0.28)
    vanilla = Training(starpo_s=False)
    assert (vanilla.filter_rule, vanilla.kl_estimate, vanilla.upper_clip) == ("none", "k1", 0.2)
    alone = Training(starpo_s=False, filter="top_p", kl_kind="none", clip="higher")
    assert (alone.filter_rule, alone.kl_estimate, alone.upper_clip) == ("top_p", "none", 0.28)
    assert Training(kl_kind="k2", kl=0.0).kl_estimate == "none"
    single = Training(group_size=1, algo="brpo", filter="none")
    assert with_settings(Config(), {"training": {"group_size": 1, "algo": "brpo", "filter": "none"}}).training == single


def test_games_and_stages_come_back_from_toml() -> None:
    mixed = with_settings(Config(), {"games": [{"game": "Bandit", "weight": 2}, {"game": "FrozenLake"}]})
    staged = with_settings(Config(), {"curriculum": [{"iteration": 5, "env_options": {"size": 5}}]})
    for config in (mixed, staged):
        assert with_settings(Config(), tomllib.loads(to_toml(config))) == config


def test_a_whole_number_may_stand_for_a_fraction() -> None:
    assert with_settings(Config(), {"training": {"temperature": 1}}).training.temperature == 1.0


def test_tables_are_merged_key_by_key() -> None:
    under = {"env_options": {"size": 4, "min_path": 3}, "seed": 1}
    assert merged(under, {"env_options": {"size": 5}}) == {"env_options": {"size": 5, "min_path": 3}, "seed": 1}
    assert under["env_options"] == {"size": 4, "min_path": 3}


@pytest.mark.parametrize("game", GAME_DEFAULTS)
def test_every_recipe_is_valid(game: str) -> None:
    config = with_settings(Config(), {**GAME_DEFAULTS[game], "game": game})
    assert game in TABLE
    assert config.demonstrations.thought in THOUGHTS


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    with pytest.raises(ValueError, match="cannot read"):
        read_toml(file)
    file.write_text("seed = \n")
    with pytest.raises(ValueError, match=r"settings\.toml is not valid TOML"):
        read_toml(file)


def test_a_pretrained_model_has_its_own_recipe_and_a_small_checkpoint_has_not(tmp_path: Path) -> None:
    settings = default_settings("FrozenLake", str(tmp_path))
    assert settings["turns"]["max_tokens_per_turn"] == PRETRAINED_DEFAULTS["turns"]["max_tokens_per_turn"]
    assert settings["env_options"] == GAME_DEFAULTS["FrozenLake"]["env_options"]
    config = with_settings(Config(), {**settings, "model": str(tmp_path)})
    assert "in at most 256 tokens" in make_env(config, "train").reset(seed=0)[0]
    (tmp_path / "config.json").write_text('{"tokenizer_sha256": "0"}')
    assert (
        default_settings("FrozenLake", str(tmp_path)) == default_settings("FrozenLake") == GAME_DEFAULTS["FrozenLake"]
    )
    assert "tokens" not in make_env(config, "train").reset(seed=0)[0]


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("FrozenLake", {"max_turns": 3}, r"--set turns\.max_turns="),
        ("FrozenLake", {"split": "train"}, r"--set evaluation\.split="),
        ("Bandit", {"names": [["A", "B"]]}, "no splits"),
    ],
)
def test_a_knob_that_is_none_is_refused(game: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(with_settings(Config(), {"game": game, "env_options": options}), "train")


def test_the_way_to_the_goal_is_the_same_in_every_text_format() -> None:
    said = set()
    for text_format in ("grid", "coord", "grid_coord"):
        env = make_env(with_settings(Config(), {"env_options": {"text_format": text_format}}), "train")
        env.reset(seed=3)
        said.add(thinking(env, "direction"))
    assert len(said) == 1
    bandit = make_env(with_settings(Config(), {"game": "Bandit"}), "train")
    bandit.reset(seed=0)
    with pytest.raises(ValueError, match="has no player and goal"):
        thinking(bandit, "direction")
