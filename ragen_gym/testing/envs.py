"""``check_env``: whether an environment keeps the suite's promises, through Gymnasium's own interface."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check

from ragen_gym.envs.step import StepEnv
from ragen_gym.testing.episode import require
from ragen_gym.testing.replay import Env, in_another_process, make, record, replay, some_actions

__all__ = ["check_env"]

SEEDS = (0, 2**32 - 1, 2**70)


def check_env(env: str | Env, *, steps: int = 60, processes: bool = True, **options: Any) -> None:
    """Check an environment: Gymnasium's checks, seeds, streams, resets, observations, episode ends, clones, batches.

    Args:
        env: an id or name of the table, or an environment that has a spec: one made by ``gymnasium.make`` or
            ``ragen_gym.make_turn``.
        steps: actions to play for each seed.
        processes: whether to play in another process too, with another PYTHONHASHSEED (about a second).
        options: arguments of the id.

    Raises:
        AssertionError: what the environment does and what it should do.
        ValueError: the environment is unknown or has no spec.
    """
    spec = make(env, options).spec
    if spec is None:
        raise ValueError("check_env needs an id, or an environment with a spec; make it by gymnasium.make.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(make(spec, {}).unwrapped, skip_render_check=True)
    runs: list[tuple[EnvSpec, dict[str, Any], int, list[Any]]] = [
        (spec, {}, seed, some_actions(make(spec, {}), seed, steps)) for seed in SEEDS
    ]
    truth = [replay(*run) for run in runs]
    with ThreadPoolExecutor(4) as pool:
        threads = list(pool.map(lambda run: replay(*run), runs * 4))
    require(threads == truth * 4, f"{spec.id}: the same seed and actions give other episodes in threads.")
    _check_resets(spec, steps)
    _check_noise(spec, steps)
    _check_ends(spec)
    if isinstance(make(spec, {}).unwrapped, StepEnv):
        _check_observations(spec, steps)
        _check_batch(spec, steps)
    if processes:
        require(
            in_another_process(runs) == json.loads(json.dumps(truth)),
            f"{spec.id}: the same seed and actions give other episodes in another process.",
        )


def _check_resets(spec: EnvSpec, steps: int) -> None:
    """Episode k of a seed is the same, whatever was played before it."""
    idle, busy = make(spec, {}), make(spec, {})
    actions = some_actions(busy, 1, steps)
    replay(busy, {}, 5, actions)
    idle.reset(seed=7)
    busy.reset(seed=7)
    for episode in range(1, 12):
        expected, got = record(*idle.reset()), record(*busy.reset())
        require(got == expected, f"{spec.id}: episode {episode} of a seed depends on what was played before: {got}.")
        clone = make(spec, {})
        clone.reset(seed=7)
        for _ in range(episode):
            clone.reset()
        for action in actions[: episode % 4]:
            played = [env.step(action) for env in (busy, clone)]
            first, again = ((record(step[0], step[4]), *step[1:4]) for step in played)
            require(first == again, f"{spec.id}: episode {episode} of a seed has other noise after other play.")
            if first[2] or first[3]:
                break


def _check_noise(spec: EnvSpec, steps: int) -> None:
    """``noise_seed`` leaves the level alone, and repeats."""
    env = make(spec, {})
    actions = some_actions(env, 3, steps)
    plain = replay(env, {}, 11, actions[:1])[0]
    for noise_seed in (0, 1, 2**32 - 1, 2**70):
        first, again = (replay(env, {}, 11, actions, {"noise_seed": noise_seed}) for _ in range(2))
        require(first[0] == plain, f"{spec.id}: noise_seed={noise_seed} changes the level.")
        require(first == again, f"{spec.id}: noise_seed={noise_seed} gives two different episodes.")


def _check_ends(spec: EnvSpec) -> None:
    """A terminated episode takes no action, and neither does one that has not begun."""
    env = make(spec, {}).unwrapped
    actions = some_actions(env, 0, 400)
    _refuses(make(spec, {}).unwrapped, actions[0], f"{spec.id} takes a step before the first reset.")
    env.reset(seed=0)
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        require(not (terminated and truncated), f"{spec.id} is terminated and truncated at once.")
        require(terminated or not info["success"], f"{spec.id}: success without the end of the game.")
        require(isfinite(reward), f"{spec.id} pays {reward!r}.")
        if terminated or truncated:
            _refuses(env, action, f"{spec.id} takes a step after the end.")
            env.reset()


def _refuses(env: Env, action: Any, otherwise: str) -> None:
    try:
        env.step(action)
    except ResetNeeded:
        return
    raise AssertionError(otherwise)


def _check_observations(spec: EnvSpec, steps: int) -> None:
    """Every observation lies in its space and says the whole board."""
    env = make(spec, {})
    core: Any = env.unwrapped

    def check(observation: Any) -> None:
        require(observation in env.observation_space, f"{spec.id}: {observation!r} is not in {env.observation_space}.")
        board = core.state[0]
        if isinstance(observation, str):
            read = core.game.parse(observation, core.vocabulary, core.text_format)
            require(read == board, f"{spec.id}: the text reads back as another board:\n{observation}")
        elif core.observation == "grid":
            rows = [list(row) for row in board.split(b"\xff")]
            require(observation.tolist() == rows, f"{spec.id}: the grid is not the board: {observation.tolist()}.")

    check(env.reset(seed=0)[0])
    for action in some_actions(env, 0, steps):
        observation, _, terminated, truncated, _ = env.step(action)
        check(observation)
        if terminated or truncated:
            check(env.reset()[0])


def _check_batch(spec: EnvSpec, steps: int) -> None:
    """Environment i of a batch seeded s_i plays what the single environment seeded s_i plays, through autoresets."""
    seeds = [*SEEDS, 5]
    batch: Any = gymnasium.make_vec(spec, num_envs=len(seeds))
    singles = [make(spec, {}) for _ in seeds]
    columns = [some_actions(env, seed, steps) for env, seed in zip(singles, seeds, strict=True)]
    try:
        observations, infos = batch.reset(seed=seeds)
        truth = [env.reset(seed=seed) for env, seed in zip(singles, seeds, strict=True)]
        _compare(spec, [_row(observations, infos, i) for i in range(len(seeds))], [record(*pair) for pair in truth])
        ended = [False] * len(seeds)
        for actions in zip(*columns, strict=True):
            observations, rewards, terminated, truncated, infos = batch.step(np.array(actions))
            got = [
                {**_row(observations, infos, i), "ends": (float(rewards[i]), bool(terminated[i]), bool(truncated[i]))}
                for i in range(len(seeds))
            ]
            expected = []
            for i, env in enumerate(singles):
                if ended[i]:
                    observation, info = env.reset()
                    reward, over, cut = 0.0, False, False
                else:
                    observation, reward, over, cut, info = env.step(actions[i])  # type: ignore[assignment]
                ended[i] = over or cut
                expected.append({**record(observation, info), "ends": (float(reward), over, cut)})
            _compare(spec, got, expected)
    finally:
        batch.close()


def _row(observations: Any, infos: dict[str, Any], i: int) -> dict[str, Any]:
    return record(observations[i], {key: infos[key][i] for key in ("level_id", "success", "action_mask")})


def _compare(spec: EnvSpec, got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        ours["success"], theirs["success"] = bool(ours["success"]), bool(theirs["success"])
        require(ours == theirs, f"{spec.id}: environment {i} of a batch gives {ours}, the single one {theirs}.")
