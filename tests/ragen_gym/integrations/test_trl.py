"""What TRL's tool episodes do without TRL; ``tests/integrations`` trains with the library itself."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_gym import TurnEnv
from ragen_gym.integrations import Rollout, rows
from ragen_gym.integrations.trl import environment_factory, tool_rows
from ragen_gym.integrations.trl_rollout import rollout_func

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


def test_a_tool_plays_the_row_and_groups_differ_in_noise_alone() -> None:
    (row,) = tool_rows("FrozenLake", 1, first_seed=7, **OPTIONS)
    factory = environment_factory("FrozenLake", **OPTIONS)
    assert factory.__name__ == "FrozenLake"
    group = [factory() for _ in range(16)]
    starts = {each.reset(**row) for each in group}
    assert len(starts) == 1
    rollout = Rollout("FrozenLake", **OPTIONS)
    rollout.begin(row["seed"])
    assert isinstance(rollout.env, TurnEnv)
    assert rollout.env.board in starts.pop()
    seen = {each.play("Down || Right || Down || Right") for each in group}
    assert len(seen) > 1
    assert all(isinstance(each.get_reward(), float) for each in group)


def test_a_row_of_another_split_plays_a_level_of_it() -> None:
    lake = environment_factory("FrozenLake", **OPTIONS)()
    for split in ("test", "train", "validation"):
        (row,) = tool_rows("FrozenLake", 1, first_seed=7, split=split, **OPTIONS)
        rollout = Rollout("FrozenLake", split=split, **OPTIONS)
        rollout.begin(7)
        assert isinstance(rollout.env, TurnEnv)
        assert lake.reset(**row).startswith(rollout.env.board)


def test_rows_of_other_levels_are_refused() -> None:
    (row,) = tool_rows("FrozenLake", 1, size=5)
    with pytest.raises(ValueError, match="written with other options of the game"):
        environment_factory("FrozenLake")().reset(**row)


def test_a_prompt_of_no_row_is_refused() -> None:
    play = rollout_func(rows("FrozenLake", 4))
    (other,) = rows("FrozenLake", 1, split="test")
    with pytest.raises(ValueError, match="give rollout_func the rows of eval_dataset too"):
        play([other["prompt"]], None)
