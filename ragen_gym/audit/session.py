"""Episodes of an audited environment, played from here in a child process of its own."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import tempfile
from contextlib import suppress
from select import select
from typing import Any

from ragen_gym.audit.sandbox import START_SECONDS, AuditSettings, end_worker, request_line, start_worker, why_ended


class Session:
    """A child process with any number of environments of one target; a context manager that ends it.

    Raises:
        ValueError: the target cannot be opened; the message says why.
    """

    def __init__(self, target: str, settings: AuditSettings) -> None:
        self._limit = 3 * settings.seconds
        self._numbers = itertools.count()
        self.ended = ""  # why the process ended, once it has
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the session
        self._process, self._answers = start_worker(settings, subprocess.PIPE, self._log)
        opening = request_line(target, settings, ["session"])
        try:
            self.version: str = self._exchange(opening, START_SECONDS + self._limit)["version"]
        except ValueError as error:
            self.__exit__()
            raise ValueError(f"{target} cannot be played: {error}") from None

    def new(self) -> int:
        """The number of a new environment, which is made when it is first asked."""
        return next(self._numbers)

    def ask(self, env: int, do: str, seconds: float = math.inf, **request: Any) -> dict[str, Any]:
        """The answer of an environment within some seconds; see ``ragen_gym.audit.worker.session.serve``.

        Raises:
            ValueError: the environment raised, does not apply, or ended its process.
        """
        return self._exchange(json.dumps({"env": env, "do": do, **request}) + "\n", min(seconds, self._limit))

    def _exchange(self, line: str, seconds: float) -> dict[str, Any]:
        if self.ended:
            raise ValueError(self.ended)
        assert self._process.stdin is not None
        answered, late = b"", False
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            late = not select([self._answers], [], [], seconds)[0]  # what it started may hold the pipe open
            answered = b"" if late else self._answers.readline()
        if not answered:
            if late:
                end_worker(self._process)
            self._process.wait()
            self.ended = why_ended(self._process, self._log, seconds, late)
            raise ValueError(self.ended)
        answer: dict[str, Any] = json.loads(answered)
        if answer["event"] in ("bad", "failed"):
            raise ValueError(answer["reason"])
        return answer

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        end_worker(self._process)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # of a request that it did not read
                self._process.stdin.close()
        self._answers.close()
        self._log.close()
