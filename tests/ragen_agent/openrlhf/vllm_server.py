"""A real server: vLLM on the CPU with a small model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ragen_agent.openrlhf.launch import CPU_ENVIRONMENT

__all__ = ["serving"]

START_TIMEOUT = 300  # seconds


@contextmanager
def serving(model: Path, log: Path, context: int) -> Iterator[str]:
    """Within it the model is served as ``lake``, with at most ``context`` tokens a conversation; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--served-model-name", "lake", "--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "32"]
    # No prompt is read in pieces: vLLM on a CPU dies of that where requests have seeds.
    options += ["--max-num-batched-tokens", str(32 * context)]
    options += ["--dtype", "float32", "--max-model-len", str(context), "--enforce-eager", "--disable-log-stats"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options]
    environment = {**os.environ, **CPU_ENVIRONMENT, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):  # the engine has a process of its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text()[-4000:]}")
