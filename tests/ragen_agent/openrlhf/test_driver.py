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
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

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


def test_names_of_one_node_are_not_those_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "OTHER")
    for name in names:
        monkeypatch.setenv(name, "here")
    sent = _environment(RunContext(Config(), OpenRLHF(), str(tmp_path), (), 4), on_cpu=False)
    assert [name for name in names if name in sent] == ["NCCL_DEBUG"]


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


MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: eca4) was "
    "22.37GB / 23.54GB (0.950438), which exceeds the memory usage threshold of 0.950000; Object store memory usage: "
    "[- objects spillable: 0]; Top 10 memory users: PID\tMEM(GB)\tCOMMAND, 3410\t6.02\tpython other.py --a, 7284\t4.08"
    "\tray::PolicyActor, 7748\t1.88\tVLLM::Worker, 7286\t0.78\tray::RolloutRayActor, Refer to the documentation on how"
)


@pytest.mark.filterwarnings("default")
def test_memory_that_ran_out_is_said_in_one_sentence_with_what_to_do() -> None:
    said = explanation(OutOfMemoryError(MEMORY))
    assert said.startswith("the machine's memory ran out (22.37GB / 23.54GB in use), so Ray ended a process of the run")
    assert "process 3410 has 6.02 GB (python other.py --a), process 7284 has 4.08 GB (ray::PolicyActor)" in said
    assert "end other programs, lower openrlhf.micro_batch" in said
    assert len(said) < 500
    assert "memory ran out (nearly all in use)" in explanation(OutOfMemoryError("Ray's words changed"))


@pytest.mark.filterwarnings("default")
def test_a_lost_node_is_named_and_a_process_that_died_on_its_own_is_not_blamed_on_it() -> None:
    """Ray says either, by what it notices first."""
    unavailable = ActorUnavailableError("RpcError: Socket closed", b"0" * 16)
    assert explanation(RayTaskError("f", "traceback", unavailable)).startswith("a process of the run is out of reach")
    context = {"class_name": "PolicyActor", "actor_id": b"0" * 16, "node_ip_address": "192.0.2.2"}
    for text, blamed in (
        ("The actor died because its node has died. Node Id: 7", True),
        ("The actor is dead because its owner has died. Worker exit detail: Owner's node has crashed.", True),
        ("Killed by signal 9", False),
    ):
        died = ActorDiedError(ActorDiedErrorContext(error_message=text, **context))
        assert ("most likely with its node (192.0.2.2): ray status" in explanation(died)) is blamed
