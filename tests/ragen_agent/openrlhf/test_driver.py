"""The driver: what it says of errors somewhere in the cluster, and what its workers may load."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from ray.exceptions import RayTaskError

from ragen_agent.config import Config
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.driver import _start_ray, explanation
from ragen_agent.openrlhf.launch import _environment
from ragen_agent.openrlhf.processes import RunContext


@pytest.mark.filterwarnings("default")
def test_the_first_error_is_the_one_that_is_told() -> None:
    inner = RayTaskError("f", "traceback", ValueError("the game says no"))
    outer = RayTaskError("g", "traceback", inner)
    assert explanation(outer) == "ValueError: the game says no"
    assert explanation(KeyError()) == "KeyError"


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


@pytest.mark.filterwarnings("default")
def test_a_saved_state_that_holds_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own classes are loaded, and no others."""
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    from ragen_agent.openrlhf.ray_actors import trust_states

    monkeypatch.chdir(tmp_path)
    context = RunContext(Config(), OpenRLHF(), str(tmp_path), (), 4)
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.setenv(name, _environment(context, on_cpu=True)[name])
    trust_states()
    engine = TorchCheckpointEngine()
    torch.save({"scaler": LossScaler(2.0), "stage": ZeroStageEnum(2), "weights": torch.ones(2)}, "good.pt")
    assert engine.load("good.pt")["scaler"].cur_scale == 2.0
    torch.save({"module": Evil()}, "evil.pt")
    with pytest.raises(pickle.UnpicklingError) as error:
        engine.load("evil.pt")
    assert not Path("ran").exists()
    assert "weights_only" not in explanation(error.value)


@pytest.mark.filterwarnings("default")
def test_workers_import_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the module of a game that the run plays, which lies there. vLLM's engine is a worker's child.

    Nothing of CUDA is patched in these, and OpenRLHF is imported all the same.
    """
    import ray

    for name in ("json", "gymnasium", "ragen_gym", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').close()\n", encoding="utf-8")
    (tmp_path / "game_of_mine.py").write_text("HERE = 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    context = RunContext(Config(), OpenRLHF(), str(tmp_path), (), 4)
    given = {"GIVEN": "1", **_environment(context, on_cpu=True)}
    start = {"environment": given, "modules": ["game_of_mine"], "cpu": False, "devices": 0}
    _start_ray("", start)
    try:

        @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
        def found() -> tuple[list[str], int]:
            import gymnasium  # noqa: F401
            import openrlhf.models  # noqa: F401  # which imports flash-attn, here or not

            child = multiprocessing.get_context("spawn").Process(target=os.getpid)
            child.start()
            child.join()
            assert child.exitcode == 0
            return sys.path, import_module("game_of_mine").HERE

        path, here = ray.get(found.remote())
    finally:
        ray.shutdown()
        sys.modules.pop("game_of_mine", None)
    assert here == 1
    assert str(tmp_path) not in path[:-1], "last, if at all"
    assert not (tmp_path / "ran").exists()
