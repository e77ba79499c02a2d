"""Cores and bfloat16 units of the CPU, OpenMP's wait policy, and blocking calls outside the event loop."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

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


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables of the wait policy: the standard's, GNU's, and Intel and LLVM's."""


async def in_thread(function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
    """Calls a blocking function in a thread of its own and returns its result.

    A thread cannot be stopped from outside. It is a daemon, so a function that never returns delays neither its caller
    beyond the timeout nor the end of the program, unlike the threads of an executor. ``timeout`` is in seconds.

    Raises:
        TimeoutError: it did not return in time. Its own errors are passed on.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():  # the caller was cancelled, or has timed out
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def call() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except StopIteration as stop:  # which a future refuses
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has been closed: the run is over
            return

    threading.Thread(target=call, daemon=True, name="blocking call").start()
    return await asyncio.wait_for(answer, timeout)


def wait_passively() -> None:
    """Lets OpenMP's threads sleep while they wait for each other; to be called before torch is imported.

    By default they spin, and a spinning thread takes the core that the thread they wait for needs: beside other
    programs decoding almost stops. On idle cores spinning is faster, because waking up takes time. A policy set by the
    user, such as OMP_WAIT_POLICY=ACTIVE, is kept.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
