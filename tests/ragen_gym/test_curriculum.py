"""The curriculum: harder after successes, easier after failures, never off its ends."""

import gymnasium
import pytest

from ragen_gym.envs.step import StepEnv
from ragen_gym.wrappers import Curriculum

NEAR, FAR = "PG\n__", "P_\n_G"


def stages() -> list[gymnasium.Env[str, int]]:
    return [StepEnv("FrozenLake", size=2, success_rate=1, levels=[board]) for board in (NEAR, FAR)]


def play(env: Curriculum, win: bool) -> int:
    """One episode; the stage it was played in."""
    _, info = env.reset()
    stage: int = info["stage"]
    unwrapped = env.unwrapped
    assert isinstance(unwrapped, StepEnv)
    over, left = False, 3
    while not over:
        action = unwrapped.oracle_action(left) if win else 0
        *_, terminated, _, info = env.step(action)
        over, left = terminated or not left, left - 1
    return stage


def test_it_moves_on_after_successes_and_stays_at_the_last_stage() -> None:
    env = Curriculum(stages(), window=3, up=1.0, down=-1)
    env.reset(seed=0)
    assert [play(env, win=True) for _ in range(9)] == [0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_it_moves_back_after_failures() -> None:
    lake = [StepEnv("FrozenLake", size=2, success_rate=1, levels=["OP\n_G"]) for _ in range(2)]
    env = Curriculum(lake, window=2, up=1.0, down=0.0)
    env.reset(seed=0)
    assert [play(env, win=True) for _ in range(3)] == [0, 0, 1]
    assert [play(env, win=False) for _ in range(4)] == [1, 1, 0, 0]


def test_one_share_between_the_bounds_changes_nothing() -> None:
    lake = [StepEnv("FrozenLake", size=2, success_rate=1, levels=["OP\n_G"]) for _ in range(2)]
    env = Curriculum(lake, window=2, up=1.0, down=0.0)
    env.reset(seed=0)
    assert [play(env, win=bool(i % 2)) for i in range(6)] == [0] * 6


def test_bad_arguments_are_refused() -> None:
    for envs in (stages()[:1], "FrozenLake", ["FrozenLake", "Sokoban"]):
        with pytest.raises(ValueError, match="is made of two environments or more"):
            Curriculum(envs)  # type: ignore[arg-type]
    batches = [gymnasium.make_vec("ragen/FrozenLake-v0", 2, preset=each) for each in ("easy", "hard")]
    with pytest.raises(ValueError, match="Of batches make one for each preset"):
        Curriculum(batches)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="boards of one size"):
        Curriculum([StepEnv("FrozenLake"), StepEnv("FrozenLake", size=5)])
    with pytest.raises(ValueError, match="below up"):
        Curriculum(stages(), up=0.2, down=0.5)
    for wrong in ({"window": 0}, {"window": 1.5}, {"up": "x"}, {"up": 2}, {"down": float("nan")}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"Curriculum: {name}=.* must be an? (integer|number)"):
            Curriculum(stages(), **wrong)


def test_an_environment_that_says_nothing_of_success_is_refused_at_its_end() -> None:
    env = Curriculum([gymnasium.make("CartPole-v1", max_episode_steps=1) for _ in range(2)])
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"a curriculum needs info\['success'\]"):
        env.step(0)
