"""A started program: ending it, and its exit."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping

__all__ = ["ProgramProcess"]

_LAST = 4096  # bytes of standard error to read for its last line


class ProgramProcess:
    """A command in a process group of its own; its standard output is dropped, its standard error kept.

    Raises:
        ValueError: the command cannot be started.
    """

    def __init__(self, command: str, variables: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                shlex.split(command) or [""],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            raise ValueError(f"program.command {command!r} cannot be started: {error}") from None

    @property
    def running(self) -> bool:
        """True while it runs."""
        return self._process.poll() is None

    @property
    def failed(self) -> bool:
        """True if it ended with an exit code other than 0."""
        return bool(self._process.poll())

    def ask_to_end(self) -> None:
        """Send SIGTERM to it and its children."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send them SIGKILL."""
        self._signal(signal.SIGKILL)

    def end(self, wait: float = 0.0) -> str:
        """End it and its children if it has not ended within ``wait`` seconds.

        Returns its exit code and the last line of its standard error.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        self.kill()
        self._process.wait()
        if self._errors.closed:
            return ""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _LAST))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self._errors.close()
        return f"exit code {self._process.returncode}" + (f": {lines[-1].strip()[:300]}" if lines else "")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # on macOS PermissionError for a zombie
            os.killpg(self._process.pid, number)
