"""Patches that let OpenRLHF run without flash-attn and, on a machine without CUDA, without CUDA.

``openrlhf.models`` imports flash-attn's helpers whether or not rows are packed. ``stand_in`` is seen by that import
alone: transformers and vLLM still find that flash-attn is not installed. OpenRLHF 0.11 needs CUDA in four further
places, which ``prepare`` patches:

1. It calls torch.cuda for the current device, streams and synchronisation: functions without effect replace them.
2. It broadcasts weights from the trainer to vLLM over NCCL, and without NCCL vLLM's communicator disables itself
   silently: the run would go on sampling from the old weights. ``weight_broadcast`` sends them through a TCPStore
   instead, which is fast enough for small models.
3. vLLM's worker receives weights on "cuda": ``CpuWorker`` receives them on the CPU.
4. vLLM packs linear weights for the CPU and drops the originals, after which no weight can be loaded: ``CpuWorker``
   makes it keep them.

Either is installed as Ray's setup hook in every worker process. Modules are patched only when they are imported, so a
process that needs no torch does not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ragen_agent.inference.torchvision_ops import PatchAfterImport
from ragen_agent.openrlhf.weight_broadcast import stateless_init_process_group

IMPORTER = "openrlhf.models.ring_attn_utils"
MODULES = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
CURE = "use --set openrlhf.attention=sdpa, which pads rows, or pip install flash-attn --no-build-isolation"


def installed() -> bool:
    """True if flash-attn itself is installed."""
    return find_spec("flash_attn") is not None


def check_attention(attention: str) -> None:
    """Raises a ValueError for flash attention without flash-attn, whose helpers pack its rows."""
    if "flash" in attention and not installed():
        raise ValueError(f"openrlhf.attention is {attention!r}, but flash-attn is not installed here: {CURE}.")


def stand_in() -> None:
    """Lets this process import OpenRLHF without flash-attn; without effect where flash-attn is installed."""
    if not installed() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """An entry of ``sys.meta_path`` that puts the stand-in in place while one module is executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IMPORTER or (spec := PathFinder.find_spec(fullname, path)) is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.modules.update({name: _module(name, functions) for name, functions in MODULES.items()})
            try:
                execute(module)
            finally:
                for name in MODULES:
                    del sys.modules[name]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _module(name: str, functions: Sequence[str]) -> ModuleType:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"this needs flash-attn, which is not installed: {CURE}")

    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []  # a package, so that its submodules are looked up in sys.modules
    module.__dict__.update(dict.fromkeys(functions, missing))
    return module


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


if "vllm" in sys.modules:  # vLLM is resolving ``CpuWorker``: this is its worker's process
    from ragen_agent.inference.vllm_engine import keep_linear_weights

    keep_linear_weights()
