"""The single environment: observations, streams, ends, bad input."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random

from ragen_gym.core.levels import Level, write_levels
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.core.text import TextFormat
from ragen_gym.envs.board_view import OBSERVATIONS
from ragen_gym.envs.episode_stream import Episodes
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import make_turn
from ragen_gym.envs.vector import BatchEnv
from ragen_gym.games.frozen_lake import FrozenLake, generate
from ragen_gym.games.grid import GridGame
from ragen_gym.games.registry import TABLE
from ragen_gym.multiagent import parallel_env
from ragen_gym.testing import check_env

LAKE = "P__O\n____\n_O__\n___G"
LAKES = [LAKE, "P___\n____\n____\n___G", "G__P\n____\n____\n____"]
GRIDS = [name for name, spec in TABLE.items() if issubclass(spec.game_class, GridGame)]
VIEWS: list[dict[str, Any]] = [
    *({"text_format": text_format} for text_format in get_args(TextFormat)),
    {"observation": "grid"},
    {"vocabulary": "letters"},
    {"split": "test"},
]


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("name", GRIDS)
def test_every_view_keeps_the_suites_promises(name: str, view: dict[str, Any]) -> None:
    check_env(name, processes=False, **view)


@pytest.mark.parametrize("name", TABLE)
def test_observations_are_not_the_environments_own_arrays(name: str) -> None:
    env = StepEnv(name, observation="grid")
    observation, info = env.reset(seed=1)
    before = env.state
    observation[:], info["action_mask"][:] = 0, 9
    assert env.state == before
    assert env.step(0)[4]["action_mask"].max() <= 1


def test_an_episode_by_hand() -> None:
    env = StepEnv("FrozenLake", success_rate=1, render_mode="ansi")
    text, info = env.reset(seed=0, options={"level": LAKE})
    assert (text, env.render(), env.level) == (LAKE, LAKE, Level("FrozenLake", LAKE))
    assert info.keys() == {"level_id", "action_mask", "success"}
    assert info["action_mask"].tolist() == [0, 1, 1, 0]
    assert env.solution().success(env.state[0], env.state[1], 6) == 1
    plan = [env.oracle_action(6)]
    assert env.step(plan[0])[1:4] == (0.0, False, False)
    assert env.text in ("_P_O\n____\n_O__\n___G", "___O\nP___\n_O__\n___G")
    for left in range(5, 1, -1):
        assert env.step(env.oracle_action(left))[1:4] == (0.0, False, False)
    text, reward, terminated, truncated, info = env.step(env.oracle_action(1))
    assert (text, reward, terminated, truncated, info["success"]) == (
        "___O\n____\n_O__\n___√",
        1.0,
        True,
        False,
        True,
    )
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step(0)


def test_without_a_seed_episodes_differ_between_environments() -> None:
    assert len({tuple(env.reset()[0] for _ in range(3)) for env in (StepEnv("FrozenLake") for _ in range(8))}) == 8


def test_levels_can_be_played_in_order(tmp_path: Path) -> None:
    texts = [LAKE, "P___\n____\n____\n___G", "G__P\n____\n____\n____"]
    path = tmp_path / "levels.txt"
    write_levels(path, [Level("FrozenLake", text) for text in texts])
    places: list[Any] = [0, 2, np.int64(1), 0]
    played = [texts[place] for place in places]
    env, batch = StepEnv("FrozenLake", levels=path), BatchEnv("FrozenLake", num_envs=4, levels=path)
    several = parallel_env("FrozenLake", players=1, levels=path)
    assert [env.reset(options={"level": place})[0] for place in places] == played
    assert list(batch.reset(options={"level": places})[0]) == played
    several.reset(options={"level": 2})
    assert str(several.level) == texts[2]
    for bad in (3, -1):
        with pytest.raises(ValueError, match=rf"FrozenLake: level={bad} must be an integer from 0 to 2\."):
            env.reset(options={"level": bad})
    with pytest.raises(ValueError, match="level=True is not a level"):
        env.reset(options={"level": True})
    with pytest.raises(ValueError, match="level=0 is not a level"):
        StepEnv("FrozenLake").reset(options={"level": 0})
    kept = StepEnv("FrozenLake", levels=path, split=env.game.split_of(env.game.board(LAKE)))
    assert kept.reset(options={"level": 0})[0] == LAKE


@pytest.mark.parametrize("kwargs", [{}, {"split": "test"}, {"split": "train"}, {"levels": LAKES}], ids=str)
def test_the_families_of_the_levels_of_seeds(kwargs: dict[str, Any]) -> None:
    env, other = StepEnv("FrozenLake", **kwargs), StepEnv("FrozenLake", **kwargs)
    env.reset(seed=5)
    families = env.level_families(range(40))
    env.step(0)
    for seed, family in enumerate(families):
        other.reset(seed=seed)
        assert family == other.game.family(other.game.board(other.level))
    other.reset(seed=5)
    other.step(0)
    assert (env.reset()[1]["level_id"], env.level_families([])) == (other.reset()[1]["level_id"], [])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"spilt": "train"}, "FrozenLake has no option 'spilt': .* Did you mean split?"),
    ({"desc": ["SFG"]}, "the board is 1x3, and FrozenLake: height=1 must be an integer from 2 to 64"),
    ({"max_turns": 3}, "FrozenLake has no option 'max_turns': .* is an option of turns: ragen_gym.make_turn takes it"),
    ({"observation": "pixels"}, f"observation='pixels' is not known: choose one of .*{OBSERVATIONS[0]!r}"),
    ({"render_mode": "opengl"}, "render_mode='opengl' is not known: choose one of 'ansi'"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD, ids=lambda value: str(value)[:30])
def test_bad_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StepEnv("FrozenLake", **kwargs)


@pytest.mark.parametrize("action", [-1, 4, 1.0, 1.5, "0", None, True, np.array([1]), [1]])
def test_bad_actions(action: Any) -> None:
    env = StepEnv("FrozenLake")
    env.reset(seed=0)
    before = env.state
    with pytest.raises(ValueError, match=r"is not one of FrozenLake's: 0 LEFT, 1 DOWN, 2 RIGHT, 3 UP\."):
        env.step(action)
    assert env.state == before


@pytest.mark.parametrize("action", [np.int64(1), np.array(1), np.int8(1), np.uint64(1)])
def test_numpy_integers_are_actions(action: Any) -> None:
    env, plain = StepEnv("FrozenLake"), StepEnv("FrozenLake")
    env.reset(seed=0)
    plain.reset(seed=0)
    assert env.step(action)[0] == plain.step(1)[0]


def test_the_generator_of_a_seed_is_made_as_gymnasium_makes_it() -> None:
    env, turns = StepEnv("FrozenLake"), make_turn("FrozenLake")
    env.reset(seed=7)
    assert env.np_random_seed == 7
    assert env.np_random.bit_generator.state == np_random(7)[0].bit_generator.state
    drawn = env.np_random.random()
    env.reset()
    assert env.np_random.random() != drawn, "a reset without a seed goes on with the generator"
    env.reset(seed=np.int64(7))  # type: ignore[arg-type]
    assert copy.deepcopy(env).np_random.random() == drawn
    turns.reset(seed=7)
    assert turns.np_random is turns.env.np_random
    turns.np_random = np_random(9)[0]
    assert turns.env.np_random is turns.np_random


@pytest.mark.parametrize("name", ["FrozenLake", "Bandit", "BanditRev", "Sokoban", "LargeSokoban"])
def test_the_oracle_takes_any_number_of_actions(name: str) -> None:
    env = gymnasium.make(f"ragen/{name}-v0").unwrapped
    assert isinstance(env, StepEnv)
    env.reset(seed=5)
    budgets: list[Any] = [10**5, 10**9, 10**30, np.int64(10**12)]
    actions = {env.oracle_action(left) for left in budgets}
    assert len(actions) == 1
    for wrong in (-1, 1.5, True, "3", None):
        with pytest.raises(ValueError, match=f"actions_left={wrong!r} must be an integer from 0 on"):
            env.oracle_action(wrong)  # type: ignore[arg-type]


def test_a_level_that_cannot_be_made_ends_no_episode_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # FrozenLake hands the number to its kernel, so that it is not compiled in, as Sokoban's would be.
    monkeypatch.setattr(generate, "MAX_TRIES", 1)
    game = FrozenLake(min_path=4)

    def can_be_made(seed: int, episode: int) -> bool:
        with suppress(ValueError):
            game.generate(episode_keys(stream_key(seed, Stream.LEVEL), episode, 1), None)
            return True
        return False

    for seed in range(6):
        made = next(episode for episode in range(1000) if not can_be_made(seed, episode))
        episodes = Episodes(game, seed, None, None)
        assert len({episodes.take()[3] for _ in range(made)}) == made
        for _ in range(2):
            with pytest.raises(ValueError, match="no level in 1 draws"):
                episodes.take()
