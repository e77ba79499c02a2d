"""``sb3:PATH``: a policy of Stable-Baselines3, move by move.

The saved file does not say which algorithm wrote it, so ``algorithm`` does: a name in ``stable_baselines3``, or
``module:Class`` for others (``sb3_contrib:MaskablePPO``). What the policy is shown follows from the observation space
that it was trained with:

- the board's grid of tile codes, uint8 (height, width), as ``observation="grid"`` gives it;
- planes of zeros and ones, one for each tile code: (height, width, tiles), (tiles, height, width) or (height * width *
  tiles,), the last two as ``OneHotPlanes`` and ``FlatSymbols`` of ``ragen_gym.wrappers`` give them;
- a picture, with ``observation=rgb``;
- anything else with ``encode=module:function``, a function from what ``observation`` gives to what the policy takes.

Loading a saved policy runs code that is in it: load only what you trust.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

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
        deterministic: whether to play the likeliest move; if not, moves are drawn with the episode's seed. (What DQN
            explores on top of it NumPy's global state decides.)

    Raises:
        ValueError: no such file or algorithm, or a file that cannot be loaded.
        ImportError: Stable-Baselines3 is not installed.
    """

    def __init__(
        self,
        path: str,
        *,
        algorithm: str = "PPO",
        observation: str = "grid",
        encode: str = "",
        deterministic: bool = True,
    ) -> None:
        file = Path(path) if Path(path).is_file() else Path(f"{path}.zip")
        if not file.is_file():
            raise ValueError(f"sb3:{path}: there is no such file; give the one that model.save() wrote.")
        self.name, self.observation, self._deterministic = f"sb3:{path}", observation, deterministic
        self.settings = {
            "algorithm": algorithm,
            "observation": observation,
            "encode": encode,
            "deterministic": deterministic,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest()[:16],
        }
        loader = _algorithm(algorithm)
        try:
            self._model = loader.load(file, device="cpu")
        except Exception as error:  # whatever a file that is no policy of this algorithm leads to
            raise ValueError(f"sb3:{path} cannot be loaded as {algorithm}: {type(error).__name__}: {error}") from error
        self._shape = self._model.observation_space.shape
        self._encode: Callable[[Any], Any] | None = find(encode) if encode else None

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The policy's move.

        Raises:
            AgentFailure: the policy was trained with observations of another shape.
        """
        import torch

        seen = self._encode(observation) if self._encode else self._fitted(observation, task)
        if self._deterministic:
            action, _ = self._model.predict(seen, deterministic=True)
        else:
            with torch.random.fork_rng(devices=[]):  # policies draw from torch's global state
                torch.manual_seed(mix(task.seed + info["actions_left"]) & 0x7FFFFFFF)
                action, _ = self._model.predict(seen, deterministic=False)
        return int(np.asarray(action).item())

    def _fitted(self, observation: Any, task: Task) -> Any:
        """The observation in the shape that the policy takes."""
        shape = np.shape(observation)
        if shape == self._shape:
            return observation
        if self.observation == "grid":
            codes = task.env.game.codes
            planes = np.eye(codes, dtype=np.float32)[observation]
            for seen in (planes, planes.transpose(2, 0, 1), planes.reshape(-1)):
                if seen.shape == self._shape:
                    return seen
        if self.observation == "rgb" and (shape[2], *shape[:2]) == self._shape:
            return observation.transpose(2, 0, 1)
        raise AgentFailure(
            Failure.AGENT_ERROR,
            f"the policy takes observations of shape {self._shape}, and {task.split} gives {shape}: choose the splits "
            f"that fit with --split, or give encode=module:function",
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
