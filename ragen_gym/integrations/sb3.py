"""Stable-Baselines3: a batch of ``gymnasium.make_vec`` as its ``VecEnv``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv


class BatchVecEnv(VecEnv):
    """A batch that returns what ``make_vec_env`` of single environments returns for the same seeds, but faster.

    Args:
        env: made by ``gymnasium.make_vec`` with ``autoreset_mode="SameStep"``, in wrappers or not.

    Raises:
        ValueError: another mode, or observations that are text; the message says how to make it.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode, space = env.metadata.get("autoreset_mode"), getattr(env, "single_observation_space", None)
        if mode is not AutoresetMode.SAME_STEP or isinstance(space, gymnasium.spaces.Text):
            raise ValueError(
                f"{env} must be a batch in mode SameStep that shows numbers: gymnasium.make_vec(id, num_envs, "
                'autoreset_mode="SameStep", observation="grid") in ragen_gym.wrappers.BatchFlatSymbols, for example.'
            )
        self.env: Any = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata, self._began = env.metadata, time.time()

    def reset(self) -> Any:
        """Start episodes, with the seeds and options that were set."""
        options = {key: [each.get(key) for each in self._options] for key in set().union(*self._options)}
        observations, infos = self.env.reset(seed=self._seeds, options=options)
        self.reset_infos = _rows(infos)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._reset_seeds()  # both count once
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Keep the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Play a move in each. Infos of an episode's end also hold what ``Monitor`` adds, and ``is_success``."""
        observations, rewards, terminated, truncated, batch = self.env.step(self._actions)
        self._returns, self._lengths = self._returns + rewards, self._lengths + 1
        dones, infos, seconds = terminated | truncated, _rows(batch), round(time.time() - self._began, 6)
        for i, info in zip(np.flatnonzero(dones), _rows(batch.get("final_info", {}), dones), strict=True):
            self.reset_infos[i], infos[i] = infos[i], info
            info["episode"] = {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": seconds}
            info |= {"terminal_observation": batch["final_obs"][i], "is_success": info["success"]}
        for info, cut in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        self._returns[dones] = self._lengths[dones] = 0
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the batch."""
        self.env.close()

    def get_images(self) -> list[Any]:
        """The pictures of the boards, which ``render`` puts side by side."""
        return list(self.env.render() or ())

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Attribute of this name of the single environments."""
        which = self._get_indices(indices)
        value = getattr(self if attr_name.endswith("_space") else self.env.unwrapped, attr_name)
        if callable(value):
            return [lambda i=i: self.env_method(attr_name, indices=i)[0] for i in which]
        return [value for _ in which]

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """The masks, bool (actions,), for ``"action_masks"``."""
        if method_name != "action_masks":
            raise AttributeError(f"a batch has no {method_name}() for each environment, only action_masks().")
        return list(self.env.unwrapped.action_masks()[list(self._get_indices(indices))])

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused."""
        raise AttributeError(f"a batch has one {attr_name} for all: make it again with other arguments to change it.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """True for ``Monitor``, whose work the batch does."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


def _rows(infos: dict[str, Any], which: Any = ...) -> list[dict[str, Any]]:  # one for each environment of ``which``
    keys = [key for key in infos if f"_{key}" in infos and not key.startswith("final_")]
    columns = (column.tolist() if column.ndim == 1 else column for column in (infos[key][which] for key in keys))
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
