"""What every id refuses in every one of its faces, with one clear error: bad options, levels, actions and calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from ragen_gym import make_turn
from ragen_gym.core.text import Vocabulary
from ragen_gym.games.registry import TABLE
from ragen_gym.multiagent import parallel_env


def single(name: str, **arguments: Any) -> Any:
    return gymnasium.make(TABLE[name].id, **arguments)


def batch(name: str, **arguments: Any) -> Any:
    return gymnasium.make_vec(TABLE[name].id, 2, **arguments)


FACES: tuple[Callable[..., Any], ...] = (single, batch, make_turn, parallel_env)
every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
every_name = pytest.mark.parametrize("name", TABLE)


@every_face
@every_name
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"difficulty": 3}, "has no option 'difficulty': it has "),
        ({"split": "dev"}, "split='dev' is not a split: choose one of train, validation, test, or None"),
        ({"preset": "brutal"}, "has no preset 'brutal': it has easy, "),
        ({"preset": 3}, "has no preset 3: it has easy, "),
        (
            {"text_format": "prose"},
            "text_format='prose' is not known: choose one of 'grid', 'spaced', 'coord', 'grid_coord'",
        ),
        ({"vocabulary": "runes"}, "vocabulary='runes' is not known to .*choose one of"),
        ({"vocabulary": Vocabulary("two", "ab")}, "vocabulary 'two'"),
        ({"levels": "nowhere.txt"}, "'nowhere.txt' is not a file"),
        ({"levels": []}, "holds no level"),
        ({"levels": ["?"]}, "."),
    ],
    ids=str,
)
def test_arguments(face: Callable[..., Any], name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, gymnasium.error.Error), match=message):
        face(name, **arguments)


@every_name
def test_what_needs_an_episode_and_actions_out_of_range(name: str) -> None:
    env, envs, turns = single(name), batch(name, autoreset_mode="Disabled"), make_turn(name)
    actions = int(env.action_space.n)
    calls: list[Callable[[], Any]] = [
        lambda: env.step(0),
        lambda: envs.step(np.zeros(2, int)),
        lambda: turns.step("<think>.</think><answer>Up</answer>"),
    ]
    step = env.unwrapped
    of_episodes = ((step, "text level state action_names"), (envs, "texts levels"), (turns, "board level state_id"))
    calls += [partial(getattr, each, attribute) for each, names in of_episodes for attribute in names.split()]
    calls += [step.solution, turns.oracle_action]
    for call in calls:
        with pytest.raises(ResetNeeded, match="reset"):
            call()
    env.reset(seed=0)
    envs.reset(seed=0)
    for action in (-1, actions, 10**9):
        with pytest.raises(ValueError, match=f"action {action} is not one of {name}'s: 0 "):
            env.step(action)
        with pytest.raises(ValueError, match=str(action)):
            envs.step(np.array([0, action]))
    turns.reset(seed=0)
    while not turns.over:
        turns.step("no answer at all")
    for left in range(200, 0, -1):
        if env.unwrapped.step(env.unwrapped.oracle_action(left))[2]:
            break
    with pytest.raises(ResetNeeded, match="reset"):
        env.unwrapped.step(0)
    with pytest.raises(ResetNeeded, match="reset"):
        calls[2]()


def test_a_level_file_for_another_game(tmp_path: Path) -> None:
    path = tmp_path / "levels.txt"
    path.write_text("P_\n_G\n", encoding="utf-8")
    for face in FACES:
        with pytest.raises(ValueError, match=r"holds no board|written in the symbols"):
            face("Sokoban", levels=path)
        with pytest.raises(ValueError, match="the board is 2x2, this environment plays 4x4"):
            face("FrozenLake", levels=path, size=4)


@every_face
@every_name
def test_what_is_no_seed(face: Callable[..., Any], name: str) -> None:
    env = face(name)
    for seed in (True, False, np.True_, -1, "a"):
        for arguments in ({"seed": seed}, {"seed": 1, "options": {"noise_seed": seed}}):
            with pytest.raises(ValueError, match="seed"):
                env.reset(**arguments)
    if face is batch:
        with pytest.raises(ValueError, match=r"seed=\[True, 2\] must be an integer"):
            env.reset(seed=[True, 2])


@every_face
def test_the_options_of_a_reset_are_a_dict_of_those_there_are(face: Callable[..., Any]) -> None:
    env = face("FrozenLake")
    for options in (5, ["level"], "level"):
        with pytest.raises(ValueError, match=r"options=.* is not a dict: give for example"):
            env.reset(options=options)
    with pytest.raises(ValueError, match=r"option='lvl' is not known: choose one of .*'level', 'noise_seed'"):
        env.reset(options={"lvl": "P_\n_G"})


@pytest.mark.parametrize("name", ["FrozenLake", "Bandit"])
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    env = single(name, tile_size=np.int64(16), render_mode="rgb_array", regret=np.int64(5))
    same = single(name, tile_size=16, render_mode="rgb_array", regret=5)
    for each in (env, same):
        each.reset(seed=np.int64(3))
    assert np.array_equal(env.render(), same.render())
    assert type(env.unwrapped.tile_size) is int
    envs = batch(name, observation="rgb", tile_size=np.int32(16), max_episode_steps=np.int64(-1))
    assert envs.reset(seed=np.uint8(3))[0].shape[0] == 2
    pixels = make_turn(name, observation="image", image_tile_size=np.int64(28))
    assert pixels.reset(seed=3)
    two: Any = np.int64(2)
    team = parallel_env(name, players=two, max_cycles=two * 2, tile_size=two * 8, observation="rgb")
    assert (type(team.max_cycles), len(team.possible_agents)) == (int, 2)
    team.reset(seed=two)
    with pytest.raises(ValueError, match=r"tile_size=16\.0 must be a whole number"):
        single(name, tile_size=np.float64(16), observation="rgb")
    with pytest.raises(ValueError, match=r"players=2\.0 must be an integer"):
        parallel_env(name, players=two * 1.0)
