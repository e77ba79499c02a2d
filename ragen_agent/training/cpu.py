"""How many threads of the CPU a run takes; what the CPU offers is in ``ragen_gym.core.cpu``."""

from __future__ import annotations

import os

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_gym.core.cpu import free_cores

__all__ = ["cpu_threads"]


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
