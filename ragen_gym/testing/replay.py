"""Episodes played again from what names them: an environment, a seed, actions."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ragen_gym.core.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.envs.reply import write_reply
from ragen_gym.games.registry import TABLE, find

__all__ = ["Env", "in_another_process", "make", "record", "replay", "some_actions"]

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
    """What happens when these actions are played from ``reset(seed=seed, options=options)`` on.

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
    played = make(env, arguments)
    records = [record(*played.reset(seed=seed, options=options))]
    for action in actions:
        observation, reward, terminated, truncated, info = played.step(action)
        ends = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
        records.append({**record(observation, info), **ends})
        if terminated or truncated:
            records.append(record(*played.reset()))
    return records


def make(env: str | Env | EnvSpec, arguments: dict[str, Any]) -> Env:
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
    return {"observation": observation.tolist() if hasattr(observation, "tolist") else observation, **plain}


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
    """What ``replay`` gives for each of these arguments in a process with another PYTHONHASHSEED.

    Raises:
        RuntimeError: that process failed.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    parts = sys.path, pickle.dumps(list(TABLE.values())), pickle.dumps(list(runs))
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps(parts),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"the same episodes fail in another process:\n{child.stderr.decode()}")
    return json.loads(child.stdout)
