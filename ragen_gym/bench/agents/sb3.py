"""``sb3:PATH``: a policy of Stable-Baselines3, move by move.

The saved file does not say which algorithm wrote it, so ``algorithm`` does: a name in ``stable_baselines3``, or
``module:Class`` for others (``sb3_contrib:MaskablePPO``). What the policy is shown follows from the observation space
that it was trained with:

- the board's grid of tile codes, uint8 (height, width), as ``observation="grid"`` gives it, or (height * width,), as
  Gymnasium's ``FlattenObservation`` makes of it;
- planes of zeros and ones, one for each tile code: (height, width, tiles), (tiles, height, width) or (height * width *
  tiles,), the last two as ``OneHotPlanes`` and ``FlatSymbols`` of ``ragen_gym.wrappers`` give them;
- a picture, with ``observation=rgb``;
- anything else with ``encode=module:function``, a function from what ``observation`` gives to what the policy takes.

It plays as it was trained: a policy that takes masks (MaskablePPO) gets ``info["action_mask"]``, a recurrent one keeps
its state through an episode, and ``vec_normalize`` names the file of ``VecNormalize.save``. Code in these files does
not run unless ``run_code=true`` says so (``ragen_gym.bench.agents.sb3_files``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from gymnasium import spaces

from ragen_gym.bench.agent import AgentFailure, Task
from ragen_gym.bench.agents.python import find
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix

__all__ = ["SB3Agent"]


class SB3Agent:
    """Plays a saved policy.

    Args:
        path: the file that ``model.save`` wrote, with or without ``.zip``.
        algorithm: see the module.
        observation: ``"grid"``, ``"rgb"`` or ``"text"``.
        encode: see the module; "" goes by the shape.
        vec_normalize: the file of ``VecNormalize.save``, where the policy was trained with such observations.
        deterministic: whether to play the likeliest move; if not, moves are drawn with the episode's seed, those with
            which DQN explores among them.
        run_code: whether code in the files may run.

    Raises:
        ValueError: no such file or algorithm, a file that cannot be loaded, or a policy of other actions.
        ImportError: Stable-Baselines3 is not installed.
    """

    def __init__(
        self,
        path: str,
        *,
        algorithm: str = "PPO",
        observation: str = "grid",
        encode: str = "",
        vec_normalize: str = "",
        deterministic: bool = True,
        run_code: bool = False,
    ) -> None:
        file = Path(path) if Path(path).is_file() else Path(f"{path}.zip")
        if not file.is_file():
            raise ValueError(f"sb3:{path}: there is no such file; give the one that model.save() wrote.")
        if vec_normalize and not Path(vec_normalize).is_file():
            raise ValueError(
                f"sb3:{path}: there is no file vec_normalize={vec_normalize!r}; give the one that VecNormalize.save() "
                "wrote."
            )
        loader = _algorithm(algorithm)
        from ragen_gym.bench.agents.sb3_files import load_policy, load_statistics

        saved, statistics = file.read_bytes(), Path(vec_normalize).read_bytes() if vec_normalize else b""
        self.name, self.observation, self._deterministic = f"sb3:{path}", observation, deterministic
        self.settings = {
            "algorithm": algorithm,
            "observation": observation,
            "encode": encode,
            "vec_normalize": _digest(statistics) if statistics else "",
            "deterministic": deterministic,
            "sha256": _digest(saved),
        }
        try:
            model = load_policy(loader, saved, run_code=run_code)
        except Exception as error:  # whatever a file that is no policy of this algorithm leads to
            raise ValueError(
                f"sb3:{path} cannot be loaded as {algorithm}: {type(error).__name__}: {error}. Name the class that "
                "saved it, such as --set algorithm=sb3_contrib:MaskablePPO."
            ) from error
        try:
            self._statistics = load_statistics(statistics, run_code=run_code) if statistics else None
        except Exception as error:
            raise ValueError(f"sb3:{path}: vec_normalize={vec_normalize!r} cannot be loaded: {error}") from error
        self._policy, self._shape = model.policy, model.observation_space.shape
        self._encode: Callable[[Any], Any] | None = find(encode) if encode else None
        self._masked = "action_masks" in signature(self._policy.predict).parameters
        self._exploration = getattr(model, "exploration_rate", 0.0)  # DQN's, which its policy knows nothing of
        self._states: dict[tuple[str, int, int], Any] = {}
        self._check_spaces(path)
        self._notice = "" if self._statistics else _normalised(model, bool(encode))

    def start(self) -> str:
        """A notice where the policy seems to lack its statistics."""
        return self._notice

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The policy's move.

        Raises:
            AgentFailure: the policy was trained with observations of another shape, or with other actions.
        """
        import torch

        if self._policy.action_space.n != len(info["action_names"]):
            raise AgentFailure(
                Failure.AGENT_ERROR,
                f"the policy has {self._policy.action_space.n} actions, and {task.split} {len(info['action_names'])}: "
                "choose the splits that fit with --split",
            )
        seen = self._encode(observation) if self._encode else self._fitted(observation, task)
        if self._statistics:
            seen = self._statistics.normalize_obs(seen)
        seed = mix(task.seed + info["actions_left"])
        if not self._deterministic and self._exploration:
            rng = np.random.default_rng(seed)
            if rng.random() < self._exploration:
                return int(rng.integers(self._policy.action_space.n))
        masks = {"action_masks": info["action_mask"]} if self._masked else {}
        episode = task.split, task.index, task.rollout
        with torch.random.fork_rng(devices=[], enabled=not self._deterministic):  # of torch's global state
            if not self._deterministic:
                torch.manual_seed(seed & 0x7FFFFFFF)
            action, state = self._policy.predict(
                seen, self._states.get(episode), deterministic=self._deterministic, **masks
            )
        if state is not None:
            self._states[episode] = state
        return int(np.asarray(action).item())

    def end(self, task: Task, record: Any) -> None:
        """Forget the state of the episode."""
        self._states.pop((task.split, task.index, task.rollout), None)

    def _check_spaces(self, path: str) -> None:
        seen, actions = self._policy.observation_space, self._policy.action_space
        if not isinstance(actions, spaces.Discrete):
            raise ValueError(f"sb3:{path} chooses among {actions}: the games take one of Discrete actions.")
        if not isinstance(seen, spaces.Box) and not self._encode:
            raise ValueError(
                f"sb3:{path} was trained on {seen}: give encode=module:function, which makes such an observation of "
                "what `observation` shows."
            )
        if self._statistics and getattr(self._statistics.observation_space, "shape", None) != self._shape:
            raise ValueError(
                f"sb3:{path} takes observations of shape {self._shape}, and vec_normalize holds statistics of "
                f"{self._statistics.observation_space}: give those that were saved with the policy."
            )

    def _fitted(self, observation: Any, task: Task) -> Any:
        """The observation in the shape that the policy takes."""
        shape = np.shape(observation)
        if shape == self._shape:
            return observation
        if self.observation == "grid":
            codes = task.env.game.codes
            planes = np.eye(codes, dtype=np.float32)[observation]
            for seen in (planes, planes.transpose(2, 0, 1), planes.reshape(-1), observation.reshape(-1)):
                if seen.shape == self._shape:
                    return seen
        if self.observation == "rgb" and (shape[2], *shape[:2]) == self._shape:
            return observation.transpose(2, 0, 1)
        raise AgentFailure(
            Failure.AGENT_ERROR,
            f"the policy takes observations of shape {self._shape}, and {task.split} gives {shape}: choose the splits "
            f"that fit with --split, or give encode=module:function (a policy of several frames needs a python: agent "
            "that keeps them)",
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _normalised(model: Any, encoded: bool) -> str:
    """A notice if the last observation of training, or the space itself, holds what no environment shows."""
    space, last = model.observation_space, model._last_obs
    if not isinstance(space, spaces.Box) or not isinstance(last, np.ndarray) or last.shape[1:] != space.shape:
        return ""
    if (encoded or (space.low >= 0).all()) and ((space.low <= last) & (last <= space.high)).all():
        return ""
    return (
        f"the last observations of training lie from {last.min():g} to {last.max():g}, as VecNormalize makes them: "
        "give the file of its save() with --set vec_normalize=FILE, or the policy plays worse than it is"
    )


def _algorithm(name: str) -> Any:
    module, _, algorithm = name.rpartition(":")
    module = module or "stable_baselines3"
    try:
        found = resolve_name(f"{module}:{algorithm}")
    except ImportError as error:
        raise ImportError(f"sb3: agents need {module.replace('_', '-')}: pip install it first") from error
    except AttributeError:
        found = None
    if not hasattr(found, "load"):
        raise ValueError(
            f"algorithm={name!r} is not one of {module}'s: give its class, such as PPO, DQN, A2C or "
            f"sb3_contrib:MaskablePPO."
        )
    return found
