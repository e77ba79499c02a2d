"""What this machine's CPU offers to a model: matrix units for bfloat16, cores, and how many of them a run takes."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained

__all__ = ["bfloat16_units", "cpu_threads", "free_cores"]

CPUINFO, QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512"}
"""Flags of a processor in /proc/cpuinfo, the faster first, and what they are called."""


def bfloat16_units() -> str:
    """``AMX`` or ``AVX512`` where the CPU multiplies bfloat16 matrices in hardware, else the empty text.

    With either a product of bfloat16 matrices is several times as fast as one of float32; without, several times as
    slow. The flags are those of Linux; of another system nothing is known, which counts as none.
    """
    found = re.search(r"^flags\s*:(.*)$", _read(CPUINFO), re.MULTILINE)
    flags = found[1].split() if found else []
    return next((name for flag, name in UNITS.items() if flag in flags), "")


def free_cores() -> int:
    """Physical cores that this process may use: what it is bound to, within the quota of its container; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for paragraph in _read(CPUINFO).split("\n\n"):
        entry = dict(re.findall(r"^(processor|physical id|core id)\s*:\s*(\d+)$", paragraph, re.MULTILINE))
        if int(entry.get("processor", -1)) in allowed:
            cores.add((entry.get("physical id"), entry.get("core id", entry["processor"])))
    count = len(cores) or len(allowed)
    quota, _, period = _read(QUOTA).partition(" ")
    if quota.isdigit():
        count = min(count, int(quota) // int(period))
    return max(count, 1)


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


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
