"""Resources of a run: threads, memory, a GPU; the CPU's features are in ``ragen_gym.core.threads``."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any

import torch

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_gym.core.threads import free_cores


def cpu_threads(config: Config) -> int:
    """Threads of torch on the CPU: ``config.threads``.

    For 0: 1 for the small model, whose products are too small to be shared; for a pretrained model OMP_NUM_THREADS
    where it is set, else ``free_cores``.
    """
    if config.threads:
        return config.threads
    if not pretrained(config.model):
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else free_cores()


def release_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library can (glibc's ``malloc_trim``), and that of a GPU.

    Updates free tensors of ever other sizes. glibc and torch keep the pieces, which fit no later tensor, and the
    process grows.
    """
    torch.cuda.empty_cache()  # nothing where CUDA was not used
    with suppress(OSError, AttributeError, TypeError):  # no such function, or, on Windows, no such library
        ctypes.CDLL(None).malloc_trim(0)


def peak_memory_gib() -> float:
    """The most memory that this process has held at once, in GiB, without a GPU's; 0 where the system does not say."""
    with suppress(ImportError):
        import resource  # not on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)
    return 0.0


def place_of(model: torch.nn.Module) -> str:
    """Device and dtype of a model, such as ``cuda:0 (NVIDIA H100 80GB HBM3), bfloat16``."""
    weight = next(model.parameters())
    gpu = f" ({torch.cuda.get_device_name(weight.device)})" if weight.is_cuda else ""
    return f"{weight.device}{gpu}, {str(weight.dtype).removeprefix('torch.')}"


def gpu_use(device: torch.device) -> dict[str, Any]:
    """``gpu``, its name, and ``gpu_memory_gib``, the most that this process held there; empty for a CPU.

    What tensors freed and torch kept is in it, for no other process has it; what CUDA itself takes, some 0.5, is not.
    """
    if device.type != "cuda":
        return {}
    most = torch.cuda.max_memory_reserved(device) / 2**30
    return {"gpu": torch.cuda.get_device_name(device), "gpu_memory_gib": most}
