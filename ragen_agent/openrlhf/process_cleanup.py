"""No process outlives the run that started it, however that ends: by an error, Ctrl-C or a kill.

Ray ends its own processes. Two are not Ray's: the run's driver, which the launcher starts, and vLLM's engine, which
an actor starts. Left alone, the driver would go on training and the engine would keep its memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

__all__ = ["kill_after_exit", "stop_process", "stop_without_parent"]

POLL_INTERVAL = 1.0  # seconds
STOP_TIMEOUT = 30.0  # seconds in which a process may stop in order
GRACE_PERIOD = 5  # seconds in which a process may end by itself before it is killed


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stops a process: by SIGINT, if that takes too long by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            continue


def stop_without_parent() -> None:
    """Stops this process, as Ctrl-C does, once the one that started it has ended; kills it if that takes too long."""
    parent, main = os.getppid(), threading.main_thread().ident
    assert main is not None, "the main thread has begun"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in what a script starts with &

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_INTERVAL)
        signal.pthread_kill(main, signal.SIGINT)  # to that thread, or what it waits for would not be interrupted
        time.sleep(STOP_TIMEOUT)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill_after_exit(pids: Sequence[int]) -> subprocess.Popen[bytes]:
    """Kills other processes some seconds after this one has ended.

    A shell waits for the end of a pipe that this process alone holds open; the kernel closes it even after a kill.

    Returns:
        the waiting shell. Keep a reference to it: its pipe is closed with it.
    """
    script = f'read -r _; sleep {GRACE_PERIOD}; kill -9 "$@" 2> /dev/null'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *map(str, pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
