"""How a run uses the CPU: threads and memory; what the CPU offers is in ``ragen_gym.core.cpu``."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_gym.core.cpu import free_cores

__all__ = ["cpu_threads", "keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)


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


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees, for its next tensors.

    glibc gives every large block back to the system and asks for it anew. The system then clears it page by page: a
    fifth of the time of an update of a pretrained model. Where the C library has no ``mallopt``, nothing changes.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
