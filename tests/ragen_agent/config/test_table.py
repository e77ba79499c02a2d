"""Settings read from, written to and laid over files and tables."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent.config import Config, merged, read_toml, to_toml, with_settings


@given(
    st.integers(0, 2**60),
    st.floats(1e-6, 1.0),
    st.dictionaries(st.text("abc_", min_size=1), st.integers() | st.booleans() | st.text() | st.floats(0, 1)),
)
def test_toml_gives_the_configuration_back(seed: int, rate: float, options: dict[str, object]) -> None:
    config = with_settings(Config(), {"seed": seed, "env_options": options, "training": {"learning_rate": rate}})
    assert with_settings(Config(), tomllib.loads(to_toml(config))) == config


def test_mixtures_and_curricula_come_back_from_toml() -> None:
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


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    with pytest.raises(ValueError, match="cannot read"):
        read_toml(file)
    file.write_text("seed = \n")
    with pytest.raises(ValueError, match=r"settings\.toml is not valid TOML"):
        read_toml(file)
