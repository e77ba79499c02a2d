"""``check_env``: whether an environment keeps the suite's promises; ``replay`` plays an episode again."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check

from ragen_gym.core.child_python import run_in_another_process
from ragen_gym.core.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.core.validation import check_number
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import TABLE, find
from ragen_gym.testing.games import require

SEEDS = (0, 2**32 - 1, 2**70)


def check_env(env: str | Env, *, steps: int = 60, processes: bool = True, **options: Any) -> None:
    """Check an environment: Gymnasium's checks, seeds, streams, resets, observations, ends, pickles, batches.

    Args:
        env: an id or name of the table, or an environment that has a spec: one made by ``gymnasium.make`` or
            ``ragen_gym.make_turn``. Wrappers of one's own around it, and a window, are left out.
        steps: actions to play for each seed.
        processes: whether to play in another process too, with another PYTHONHASHSEED (about a second).
        options: arguments of the id.

    Raises:
        AssertionError: what the environment does and what it should do.
        ValueError: the environment is unknown or has no spec.
    """
    spec = make(env, **options).spec
    if spec is None:
        raise ValueError("check_env needs an id, or an environment with a spec; make it by gymnasium.make.")
    check_number("check_env", "steps", steps, 1, whole=True)
    kwargs = {name: value for name, value in spec.kwargs.items() if (name, value) != ("render_mode", "human")}
    spec = replace(spec, additional_wrappers=(), kwargs=kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(make(spec).unwrapped, skip_render_check=True)
    runs: list[tuple[EnvSpec, dict[str, Any], int, list[Any]]] = [
        (spec, {}, seed, some_actions(make(spec), seed, steps)) for seed in SEEDS
    ]
    truth = [replay(*run) for run in runs]
    with ThreadPoolExecutor(4) as pool:
        threads = list(pool.map(lambda run: replay(*run), runs * 4))
    require(threads == truth * 4, f"{spec.id}: the same seed and actions give other episodes in threads.")
    _check_resets(spec, steps)
    _check_noise(spec, steps)
    _check_ends(spec)
    _check_pickle(spec, steps)
    if isinstance(make(spec).unwrapped, StepEnv):
        _check_observations(spec, steps)
        _check_batch(spec, steps)
    if processes:
        require(
            in_another_process(runs) == json.loads(json.dumps(truth)),
            f"{spec.id}: the same seed and actions give other episodes in another process.",
        )


def _check_resets(spec: EnvSpec, steps: int) -> None:
    """Episode k of a seed is the same, whatever was played before it."""
    idle, busy = make(spec), make(spec)
    actions = some_actions(busy, 1, steps)
    replay(busy, {}, 5, actions)
    idle.reset(seed=7)
    busy.reset(seed=7)
    for episode in range(1, 12):
        expected, got = record(*idle.reset()), record(*busy.reset())
        require(got == expected, f"{spec.id}: episode {episode} of a seed depends on what was played before: {got}.")
        clone = make(spec)
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
    env = make(spec)
    actions = some_actions(env, 3, steps)
    plain = replay(env, {}, 11, actions[:1])[0]
    for noise_seed in (0, 1, 2**32 - 1, 2**70):
        first, again = (replay(env, {}, 11, actions, {"noise_seed": noise_seed}) for _ in range(2))
        require(first[0] == plain, f"{spec.id}: noise_seed={noise_seed} changes the level.")
        require(first == again, f"{spec.id}: noise_seed={noise_seed} gives two different episodes.")


def _check_ends(spec: EnvSpec) -> None:
    """A terminated episode takes no action, and neither does one that has not begun."""
    env = make(spec).unwrapped
    actions = some_actions(env, 0, 400)
    _refuses(make(spec).unwrapped, actions[0], f"{spec.id} takes a step before the first reset.")
    env.reset(seed=0)
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        require(not (terminated and truncated), f"{spec.id} is terminated and truncated at once.")
        require(terminated or not info["success"], f"{spec.id}: success without the end of the game.")
        require(isfinite(reward), f"{spec.id} pays {reward!r}.")
        if terminated or truncated:
            _refuses(env, action, f"{spec.id} takes a step after the end.")
            env.reset()


def _check_pickle(spec: EnvSpec, steps: int) -> None:
    """A pickled environment plays on the same from the midst of an episode."""
    env = make(spec)
    actions = some_actions(env, 2, steps)
    env.reset(seed=13)
    _, _, terminated, truncated, _ = env.step(actions[0])
    if terminated or truncated:
        env.reset()
    clone = pickle.loads(pickle.dumps(env))
    for action in actions[1:]:
        ours, its = ((record(step[0], step[4]), *step[1:4]) for step in (env.step(action), clone.step(action)))
        require(ours == its, f"{spec.id}: a pickled copy plays on in another way: {its}.")
        if ours[2] or ours[3]:
            require(record(*env.reset()) == record(*clone.reset()), f"{spec.id}: a pickled copy resets otherwise.")


def _refuses(env: Env, action: Any, otherwise: str) -> None:
    try:
        env.step(action)
    except ResetNeeded:
        return
    raise AssertionError(otherwise)


def _check_observations(spec: EnvSpec, steps: int) -> None:
    """Every observation lies in its space and says the whole board."""
    env = make(spec)
    core: Any = env.unwrapped
    for observation, _ in _walk(env, steps):
        require(observation in env.observation_space, f"{spec.id}: {observation!r} is not in {env.observation_space}.")
        board = core.state[0]
        if isinstance(observation, str):
            read = core.game.parse(observation, core.vocabulary, core.text_format)
            require(read == board, f"{spec.id}: the text reads back as another board:\n{observation}")
        elif core.observation == "grid":
            rows = [list(row) for row in board.split(b"\xff")]
            require(observation.tolist() == rows, f"{spec.id}: the grid is not the board: {observation.tolist()}.")


def _walk(env: Env, steps: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The observation and the information of every reset and step, through the ends of episodes."""
    actions = some_actions(env, 0, steps)
    yield env.reset(seed=0)
    for action in actions:
        observation, _, terminated, truncated, info = env.step(action)
        yield observation, info
        if terminated or truncated:
            yield env.reset()


def _check_batch(spec: EnvSpec, steps: int) -> None:
    """Environment i of a batch seeded s_i plays what the single environment seeded s_i plays, through autoresets."""
    seeds = [*SEEDS, 5]
    batch: Any = gymnasium.make_vec(spec, num_envs=len(seeds))
    singles = [make(spec) for _ in seeds]
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


Env = gymnasium.Env[Any, Any]

# What another process runs: the games that only this process knows, then the same replays.
_CHILD = """
import json, pickle, sys
path, specs, arguments = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from ragen_gym import register
from ragen_gym.games.registry import TABLE
for spec in pickle.loads(specs):
    if spec.name not in TABLE:
        register(spec)
from ragen_gym.testing import replay
print(json.dumps([replay(*one) for one in pickle.loads(arguments)]))
"""


def replay(
    env: str | Env | EnvSpec,
    arguments: dict[str, Any],
    seed: int,
    actions: Sequence[Any],
    options: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Results of these actions, played from ``reset(seed=seed, options=options)`` on.

    Where an episode ends before the actions do, the next one starts. The same arguments give the same answer in every
    process, thread and platform.

    Args:
        env: an id or name of the table, the spec of an environment, or an environment to play in.
        arguments: arguments of the id; empty for a spec or an environment.
        seed: the seed.
        actions: the actions.
        options: the options of the first reset.

    Returns:
        One record for each reset and step, of plain numbers and strings, which ``json`` can write.
    """
    played = make(env, **arguments)
    records = [record(*played.reset(seed=seed, options=options))]
    for action in actions:
        observation, reward, terminated, truncated, info = played.step(action)
        ends = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
        records.append({**record(observation, info), **ends})
        if terminated or truncated:
            records.append(record(*played.reset()))
    return records


def make(env: str | Env | EnvSpec, /, **arguments: Any) -> Env:
    """The environment of an id, of a spec, or itself."""
    if isinstance(env, str):
        return gymnasium.make(find(env).id, disable_env_checker=True, **arguments)
    if arguments:
        raise ValueError(f"arguments {', '.join(arguments)} go with an id; an environment that is made has its own.")
    return env if isinstance(env, gymnasium.Env) else gymnasium.make(env, disable_env_checker=True)


def record(observation: Any, info: dict[str, Any]) -> dict[str, Any]:
    """An observation and what ``info`` says of it, as plain numbers and strings."""
    kept: dict[str, Any] = {key: info[key] for key in ("level_id", "success", "action_mask", "actions") if key in info}
    plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in kept.items()}
    return {"observation": _plain(observation), **plain}


def _plain(observation: Any) -> Any:
    """An observation as plain numbers and strings; of a picture a hash, which is as long as a line."""
    if isinstance(observation, dict):
        return {name: _plain(part) for name, part in observation.items()}
    if isinstance(observation, np.ndarray) and observation.ndim == 3:
        return f"{observation.shape} {sha256(observation.tobytes()).hexdigest()}"
    return observation.tolist() if hasattr(observation, "tolist") else observation


def some_actions(env: Env, seed: int, count: int) -> list[Any]:
    """Actions for a seed: moves drawn uniformly, or replies of one or two moves, one in eight of them malformed."""
    draws = uniforms(episode_keys(stream_key(seed, Stream.LEVEL), 10**6, 1), 0, 3 * count)[0].reshape(count, 3)
    if isinstance(env.action_space, spaces.Discrete):
        moves: list[int] = (draws[:, 0] * int(env.action_space.n)).astype(int).tolist()
        return moves
    env.reset(seed=seed)
    names = env.unwrapped.action_names  # type: ignore[attr-defined]
    thought = "Well." if env.unwrapped.config.think else None  # type: ignore[attr-defined]
    texts: list[str] = []
    for first, second, form in draws:
        pair = [names[int(first * len(names))], names[int(second * len(names))]]
        texts.append("I give up." if form < 1 / 8 else write_reply(pair[: 1 + (form < 0.5)], thought))
    return texts


def in_another_process(runs: Sequence[tuple[Any, ...]]) -> Any:
    """Results of ``replay`` for each of these arguments in a process with another PYTHONHASHSEED.

    Raises:
        RuntimeError: that process failed.
    """
    parts = sys.path, pickle.dumps(list(TABLE.values())), pickle.dumps(list(runs))
    return json.loads(run_in_another_process(_CHILD, pickle.dumps(parts)))
