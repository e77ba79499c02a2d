"""The environments of a run."""

from __future__ import annotations

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.training.tasks import make_env


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("FrozenLake", {"max_turns": 3}, r"--set turns\.max_turns="),
        ("FrozenLake", {"split": "train"}, r"--set evaluation\.split="),
        ("Bandit", {"names": [["A", "B"]]}, "no splits"),
    ],
)
def test_an_option_that_is_not_the_games_is_refused(game: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(with_settings(Config(), {"game": game, "env_options": options}), "train")
