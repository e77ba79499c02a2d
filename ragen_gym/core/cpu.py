"""CPU features that matter to a model: matrix units for bfloat16, and cores."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

__all__ = ["bfloat16_units", "free_cores"]

CPUINFO, QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512"}
"""Processor flags in /proc/cpuinfo and their names, fastest first."""


def bfloat16_units() -> str:
    """``AMX`` or ``AVX512`` if the CPU multiplies bfloat16 matrices in hardware, else the empty string.

    With either, bfloat16 products are several times as fast as float32 products; without, several times as slow. The
    flags are read on Linux only; other systems count as having none. The result is also empty if ATEN_CPU_CAPABILITY
    keeps torch from AVX512, because its attention would fail in bfloat16.
    """
    if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
        return ""
    found = re.search(r"^flags\s*:(.*)$", _read(CPUINFO), re.MULTILINE)
    flags = found[1].split() if found else []
    return next((name for flag, name in UNITS.items() if flag in flags), "")


def free_cores() -> int:
    """Physical cores available to this process, within its affinity and its container's quota; at least 1."""
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


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
