"""Files of Stable-Baselines3, read without running code that they hold.

``model.save`` and ``VecNormalize.save`` write pickles, and a pickle can call any function that it names. Here it may
name spaces, arrays, schedules, and the modules and optimisers of torch and of the two libraries; nothing else is
looked up. What playing does not need is left out where it names more, such as a learning rate that is a function.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from typing import Any

from stable_baselines3.common.vec_env import VecNormalize

__all__ = ["load_policy", "load_statistics"]

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


def load_statistics(data: bytes, *, run_code: bool) -> VecNormalize:
    """Statistics that ``VecNormalize.save`` wrote; arguments as of ``load_policy``.

    Raises:
        ValueError: it names code that may not run, or is something else.
        Exception: whatever a file that is no pickle leads to.
    """
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
