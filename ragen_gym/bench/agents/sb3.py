"""``sb3:PATH``: a policy of Stable-Baselines3, move by move.

The saved file does not say which algorithm wrote it, so ``algorithm`` does: a name in ``stable_baselines3``, or
``module:Class`` for others (``sb3_contrib:MaskablePPO``). What the policy is shown follows from the observation space
that it was trained with:

- the board's grid of tile codes, uint8 (height, width), as ``observation="grid"`` gives it, or (height * width,), as
  Gymnasium's ``FlattenObservation`` makes of it;
- planes of zeros and ones, one for each tile code: (height, width, tiles), (tiles, height, width) or (height * width *
  tiles,), the last two as ``OneHotPlanes`` and ``FlatSymbols`` of ``ragen_gym.wrappers`` give them;
- a picture, with ``observation=rgb``.

Any other encoding is a few lines of a ``python:`` agent. The policy plays as it was trained: one that takes masks
(MaskablePPO) gets ``info["action_mask"]``, a recurrent one keeps its state through an episode, and ``vec_normalize``
names the file of ``VecNormalize.save``.

Both files are pickles, and loading a pickle can run any code: play files only from authors that you trust.
"""

from __future__ import annotations

import hashlib
import pickle
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from gymnasium import spaces

from ragen_gym.bench.agent import AgentFailure, Task
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix


class SB3Agent:
    """Plays a saved policy.

    Args:
        path: the file that ``model.save`` wrote, with or without ``.zip``.
        algorithm: see the module.
        observation: ``"grid"`` or ``"rgb"``.
        vec_normalize: the file of ``VecNormalize.save``, where the policy was trained with such observations.
        deterministic: whether to play the likeliest move; if not, moves are drawn with the episode's seed.

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
        vec_normalize: str = "",
        deterministic: bool = True,
    ) -> None:
        self.name, self.observation, self._deterministic = f"sb3:{path}", observation, deterministic
        file = Path(path) if Path(path).is_file() else Path(f"{path}.zip")
        for each, writer in ((file, "model.save()"), (Path(vec_normalize), "VecNormalize.save()")):
            if not each.is_file() and str(each) != ".":
                raise ValueError(f"{self.name}: there is no such file {each}; give the one that {writer} wrote.")
        loader = _algorithm(algorithm)
        try:
            # No buffer of transitions: its memory would be taken at once.
            model = loader.load(file, device="cpu", custom_objects={"buffer_size": 1})
        except Exception as error:  # whatever a file of something else leads to
            raise ValueError(
                f"{self.name} cannot be loaded as {algorithm}: {type(error).__name__}: {error}. Name the class that "
                "saved it, such as --set algorithm=sb3_contrib:MaskablePPO."
            ) from error
        self._statistics = _statistics(self.name, Path(vec_normalize)) if vec_normalize else None
        self.settings = {
            "algorithm": algorithm,
            "observation": observation,
            "vec_normalize": _digest(Path(vec_normalize)) if vec_normalize else "",
            "deterministic": deterministic,
            "sha256": _digest(file),
        }
        self._policy, self._shape = model.policy, model.observation_space.shape
        self._masked = "action_masks" in signature(self._policy.predict).parameters
        self._states: dict[tuple[str, int, int], Any] = {}
        self._check_spaces()

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
        seen = self._fitted(observation, task)
        if self._statistics:
            seen = self._statistics.normalize_obs(seen)
        masks = {"action_masks": info["action_mask"]} if self._masked else {}
        episode = task.split, task.index, task.rollout
        with torch.random.fork_rng(devices=[], enabled=not self._deterministic):  # of torch's global state
            if not self._deterministic:
                torch.manual_seed(mix(task.seed + info["actions_left"]) & 0x7FFFFFFF)
            action, state = self._policy.predict(
                seen, self._states.get(episode), deterministic=self._deterministic, **masks
            )
        if state is not None:
            self._states[episode] = state
        return int(np.asarray(action).item())

    def end(self, task: Task, record: Any) -> None:
        """Forget the state of the episode."""
        self._states.pop((task.split, task.index, task.rollout), None)

    def _check_spaces(self) -> None:
        seen, actions = self._policy.observation_space, self._policy.action_space
        if not isinstance(actions, spaces.Discrete):
            raise ValueError(f"{self.name} chooses among {actions}: the games take one of Discrete actions.")
        if not isinstance(seen, spaces.Box):
            raise ValueError(f"{self.name} was trained on {seen}: write a python: agent that makes such observations.")
        if self._statistics and getattr(self._statistics.observation_space, "shape", None) != self._shape:
            raise ValueError(
                f"{self.name} takes observations of shape {self._shape}, and vec_normalize holds statistics of "
                f"{self._statistics.observation_space}: give those that were saved with the policy."
            )

    def _fitted(self, observation: Any, task: Task) -> Any:
        """The observation in the shape that the policy takes."""
        fitting = [observation]
        if self.observation == "grid":
            planes = np.eye(task.env.game.codes, dtype=np.float32)[observation]
            fitting += [planes, planes.transpose(2, 0, 1), planes.reshape(-1), observation.reshape(-1)]
        elif self.observation == "rgb":
            fitting.append(observation.transpose(2, 0, 1))
        for seen in fitting:
            if np.shape(seen) == self._shape:
                return seen
        raise AgentFailure(
            Failure.AGENT_ERROR,
            f"the policy takes observations of shape {self._shape}, and {task.split} gives {np.shape(observation)}: "
            "choose the splits that fit with --split, or write a python: agent for stacked frames and other encodings",
        )


def _statistics(name: str, file: Path) -> Any:
    """The ``VecNormalize`` of a file, which knows the mean and the variance of observations."""
    from stable_baselines3.common.vec_env import VecNormalize

    try:
        found = pickle.loads(file.read_bytes())
        held = f"a {type(found).__name__}"
    except Exception as error:  # a file of something else can raise any error
        found, held = None, f"{type(error).__name__}: {error}"
    if isinstance(found, VecNormalize):
        return found
    raise ValueError(
        f"{name}: vec_normalize={str(file)!r} holds no statistics ({held}); give the file that VecNormalize.save() "
        "wrote."
    )


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _algorithm(name: str) -> Any:
    module, _, algorithm = name.rpartition(":")
    module = module or "stable_baselines3"
    try:
        return resolve_name(f"{module}:{algorithm}")
    except ImportError as error:
        raise ImportError(f"sb3: agents need {module.replace('_', '-')}: pip install it first") from error
    except AttributeError as error:
        raise ValueError(
            f"algorithm={name!r} is not one of {module}'s: give its class, such as PPO, DQN, A2C or "
            f"sb3_contrib:MaskablePPO."
        ) from error
