"""No process outlives the run that started it, however that ends: by an error, Ctrl-C, or a kill that none can catch.

Ray sees to its own processes. Two it does not know: the run itself, which the launcher starts, and vLLM's engine, which
an actor starts; left alone, the one would go on training for nobody and the other would keep its memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

__all__ = ["follow", "stop_without_parent"]

LOOK_EVERY = 1.0  # seconds
PATIENCE = 30.0  # seconds in which a process may stop in order
GRACE = 5  # seconds in which a process may end by itself before it is killed


def stop_without_parent() -> None:
    """Stops this process as Ctrl-C does once the one that started it is gone, and if that takes long, by a kill."""
    parent, main = os.getppid(), threading.main_thread().ident
    assert main is not None, "the main thread has begun"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in what a script starts with &

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        signal.pthread_kill(main, signal.SIGINT)  # to that thread, or what it waits for would not be interrupted
        time.sleep(PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def follow(pids: Sequence[int]) -> subprocess.Popen[bytes]:
    """Kills those processes some seconds after this one is gone.

    A shell waits for the end of a pipe that this process alone holds open, and the kernel closes it even after a kill.

    Returns:
        the waiting shell; what is returned must be kept, since its pipe is closed with it.
    """
    script = f'read -r _; sleep {GRACE}; kill -9 "$@" 2> /dev/null'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *map(str, pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
