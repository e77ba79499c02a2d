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
its state through an episode, and ``vec_normalize`` names the file of ``VecNormalize.save``.

Both files are pickles, and a pickle can call any function that it names. Here it may name spaces, arrays, schedules,
and the modules and optimisers of torch and of the two libraries, unless ``run_code=true`` allows everything. Values
that playing does not need are left out where they name more, such as a learning rate that is a function.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import zipfile
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

__all__ = ["SB3Agent", "load_policy", "load_statistics"]

_NAMES = {
    "collections": "deque OrderedDict",
    "gymnasium.spaces.box": "Box",
    "gymnasium.spaces.dict": "Dict",
    "gymnasium.spaces.discrete": "Discrete",
    "gymnasium.spaces.multi_binary": "MultiBinary",
    "gymnasium.spaces.multi_discrete": "MultiDiscrete",
    "numpy": "dtype ndarray",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.random._pcg64": "PCG64",
    "numpy.random._pickle": "__bit_generator_ctor __generator_ctor",
    "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
    "stable_baselines3.common.running_mean_std": "RunningMeanStd",
    "stable_baselines3.common.type_aliases": "TrainFreq TrainFrequencyUnit",
    "stable_baselines3.common.utils": "ConstantSchedule FloatSchedule LinearSchedule",
    "stable_baselines3.common.vec_env.vec_normalize": "VecNormalize",
}
#: Where classes may come from that are modules or optimisers of torch.
_NETWORKS = ("torch.nn.modules.", "torch.optim.", "stable_baselines3.", "sb3_contrib.")
#: What a policy cannot be made without.
_NEEDED = ("policy_class", "policy_kwargs", "observation_space", "action_space")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        module = module.replace("numpy.core.", "numpy._core.")  # of NumPy 1
        if name in _NAMES.get(module, "").split():
            return super().find_class(module, name)
        if module.startswith(_NETWORKS) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, torch.nn.Module | torch.optim.Optimizer):
                return found
        raise ValueError(
            f"it names {module}.{name}, and code of its own may run when it is loaded: --set run_code=true allows "
            "that, if you trust who wrote the file"
        )


def load_policy(algorithm: Any, data: bytes, *, run_code: bool) -> Any:
    """The model that ``model.save`` wrote.

    Args:
        algorithm: its class.
        data: the file.
        run_code: whether code in it may run: Stable-Baselines3 loads it by itself then.

    Raises:
        ValueError: the policy or its spaces need code that may not run.
        Exception: whatever a file that is no policy of this algorithm leads to.
    """
    objects: dict[str, Any] = {}
    if not run_code:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            saved = json.loads(archive.read("data"))
        for name, value in saved.items():
            if isinstance(value, dict) and ":serialized:" in value:
                objects[name] = _unpickled(name, base64.b64decode(value[":serialized:"]))
        objects["env"] = None  # a name there would be imported and made
    objects["buffer_size"] = 1  # of the transitions to replay, for which memory would be taken
    return algorithm.load(io.BytesIO(data), device="cpu", custom_objects=objects)


def load_statistics(data: bytes, *, run_code: bool) -> Any:
    """Statistics that ``VecNormalize.save`` wrote; arguments as of ``load_policy``.

    Raises:
        ValueError: it names code that may not run, or is something else.
        Exception: whatever a file that is no pickle leads to.
    """
    from stable_baselines3.common.vec_env import VecNormalize

    statistics = (pickle.Unpickler if run_code else _Unpickler)(io.BytesIO(data)).load()
    if not isinstance(statistics, VecNormalize):
        raise ValueError(f"it holds {type(statistics).__name__}: give the file that VecNormalize.save() wrote")
    return statistics


def _unpickled(name: str, data: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # whatever such bytes lead to
        if name in _NEEDED:
            raise ValueError(f"{name}: {error}") from error
        return None if name.startswith("_") or name.endswith("_class") else 0.0  # of schedules: nothing is trained


class SB3Agent:
    """Plays a saved policy.

    Args:
        path: the file that ``model.save`` wrote, with or without ``.zip``.
        algorithm: see the module.
        observation: ``"grid"``, ``"rgb"`` or ``"text"``.
        encode: see the module; "" goes by the shape.
        vec_normalize: the file of ``VecNormalize.save``, where the policy was trained with such observations.
        deterministic: whether to play the likeliest move; if not, moves are drawn with the episode's seed.
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
        self._states: dict[tuple[str, int, int], Any] = {}
        self._check_spaces(path)

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
