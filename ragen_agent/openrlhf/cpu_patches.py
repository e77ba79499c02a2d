"""Patches that let OpenRLHF run on a machine without CUDA; with CUDA nothing is patched.

OpenRLHF 0.11 needs CUDA in five places. They are patched from outside:

1. It imports flash-attn unconditionally: see ``ragen_agent.openrlhf.flash_attention``.
2. It calls torch.cuda for the current device, streams and synchronisation: functions without effect replace them.
3. It broadcasts weights from the trainer to vLLM over NCCL, and without NCCL vLLM's communicator disables itself
   silently: the run would go on sampling from the old weights. ``stateless_init_process_group`` broadcasts them over a
   TCPStore instead, which is fast enough for small models.
4. vLLM's worker receives weights on "cuda": ``CpuWorker`` receives them on the CPU.
5. vLLM packs linear weights for the CPU and drops the originals, after which no weight can be loaded: ``CpuWorker``
   makes it keep them.

``prepare`` is installed as Ray's setup hook in every worker process. It patches modules only when they are imported, so
a process that needs no torch does not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

from ragen_agent.inference.torchvision_ops import PatchAfterImport
from ragen_agent.openrlhf.flash_attention import stand_in

__all__ = ["HOOK", "UNSUPPORTED", "VALUES", "CpuWorker", "check_flags", "needed", "prepare"]

HOOK = "ragen_agent.openrlhf.cpu_patches.prepare"
"""The name by which Ray finds ``prepare``."""

UNSUPPORTED = ("--ds.load_in_4bit", "--ds.use_liger_kernel")
"""Flags of OpenRLHF that cannot work without CUDA, but for those that a setting decides or that are refused anyway."""

VALUES = {"--ds.ring_attn_size": ("1",)}
"""Flags for which only these values work without CUDA."""

NEVER = 10**9  # seconds: no tensor is deleted before a slow engine has read it


def needed(accelerator: str) -> bool:
    """True if this run does without CUDA; ``accelerator`` is cuda, cpu or auto.

    Raises:
        ValueError: CUDA was asked for and is not available.
    """
    import torch

    available = torch.cuda.is_available()
    if accelerator == "cuda" and not available:
        raise ValueError(
            "openrlhf.accelerator is 'cuda', but torch sees no CUDA device here; install the CUDA build of torch and "
            "its driver, or use --set openrlhf.accelerator=cpu for a small model."
        )
    return accelerator == "cpu" or not available


def check_flags(flags: Sequence[str]) -> None:
    """Raises a ValueError for flags of OpenRLHF that cannot work on a CPU."""
    words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    for name, value in pairwise([*words, ""]):
        if name in UNSUPPORTED:
            raise ValueError(f"{name} needs CUDA, and this run is on a CPU; leave it out or run it on a GPU.")
        if value not in VALUES.get(name, (value,)):
            allowed = " or ".join(VALUES[name])
            raise ValueError(f"{name} {value} needs CUDA, and this run is on a CPU; use {allowed}, or run it on a GPU.")


def prepare() -> None:
    """Prepares this process for OpenRLHF without CUDA; a second call has no effect."""
    stand_in()
    if not any(getattr(finder, "patches_after_import", None) is _PATCHES for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchAfterImport(_PATCHES))
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])


class _Device(str):
    """The CPU as ``torch.cuda.current_device()`` may return it: a device to move to, but formatted as a number."""

    def __format__(self, spec: str) -> str:
        return "0"


def _patch_torch_cuda(torch: ModuleType) -> None:
    """Replaces the functions of torch.cuda that OpenRLHF calls on every machine."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _Device("cpu")
    cuda.set_device = lambda device: None
    cuda.synchronize = lambda device=None: None
    cuda.current_stream = lambda device=None: None


def _patch_process_group(module: ModuleType) -> None:
    module.stateless_init_process_group = stateless_init_process_group  # type: ignore[attr-defined]


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch": _patch_torch_cuda,
    "openrlhf.utils.distributed_util": _patch_process_group,
}


class _StoreBroadcast:
    """Replaces vLLM's NCCL communicator: tensors are broadcast through a key-value store."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Sends ``tensor`` from rank ``src``, or overwrites it with what that rank sent."""
        import torch

        if self.group.rank == src:
            self._forget()
        here = tensor.detach().cpu()
        bits = here.contiguous().view(torch.uint8).numpy() if self.group.rank == src else None  # NumPy has no bfloat16
        sent = self.group.broadcast_obj(bits, src)
        if self.group.rank != src:
            tensor.copy_(torch.from_numpy(sent.copy()).view(tensor.dtype).view(tensor.shape))

    def _forget(self) -> None:
        """Deletes what was sent before: OpenRLHF waits until all engines have read a tensor before it sends the next.

        The store would keep it for a time, and the weights of a whole model for each synchronisation in it.
        """
        while self.group.entries:
            key, _ = self.group.entries.popleft()
            self.group.store.delete_key(key)


def stateless_init_process_group(address: str, port: int, rank: int, world_size: int, device: Any) -> _StoreBroadcast:
    """Replaces OpenRLHF's function of the same name."""
    from vllm.distributed.utils import StatelessProcessGroup

    group = StatelessProcessGroup.create(
        host=address, port=port, rank=rank, world_size=world_size, data_expiration_seconds=NEVER
    )
    return _StoreBroadcast(group)


class CpuWorker:
    """vLLM's worker extension that receives weights; it has the methods of OpenRLHF's ``WorkerWrap``.

    vLLM imports this class in the worker's process before it loads the model: in time to make linear layers keep their
    weights.
    """

    def init_process_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "gloo",
        use_ray: bool = False,
    ) -> None:
        """Joins the group in which weights are broadcast."""
        import torch

        rank = torch.distributed.get_rank() + rank_offset
        self._weights = stateless_init_process_group(master_address, master_port, rank, world_size, "cpu")

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """Receives one parameter from the trainer and loads it."""
        import torch

        worker: Any = self
        if dtype != worker.model_config.dtype:
            raise ValueError(f"{name} comes as {dtype}, but vLLM runs in {worker.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype)
        self._weights.broadcast(weight, src=0)
        worker.model_runner.model.load_weights(weights=[(name, weight)])


def _keep_linear_weights() -> None:
    import torch
    from vllm.model_executor.layers import utils

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


if "vllm" in sys.modules:  # vLLM is resolving ``CpuWorker``: this is its worker's process
    _keep_linear_weights()
