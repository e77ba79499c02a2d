"""Episodes of an audited environment, played from here in a child process of its own."""

from __future__ import annotations

import itertools
import json
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
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the session
        self._process, self._answers = start_worker(settings, subprocess.PIPE, self._log)
        try:
            self.version: str = self._exchange(request_line(target, settings, ["session"]))["version"]
        except ValueError as error:
            self.__exit__()
            raise ValueError(f"{target} cannot be played: {error}") from None

    def new(self) -> int:
        """The number of a new environment, which is made when it is first asked."""
        return next(self._numbers)

    def ask(self, env: int, do: str, **request: Any) -> dict[str, Any]:
        """The answer of an environment; see ``ragen_gym.audit.worker.session.serve``.

        Raises:
            ValueError: the environment raised, does not apply, or ended its process.
        """
        return self._exchange(json.dumps({"env": env, "do": do, **request}) + "\n")

    def _exchange(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        answered, late = b"", False
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            # It ends itself at its limit; what it started may hold the pipe open, and an import may never end.
            late = not select([self._answers], [], [], START_SECONDS + self._limit)[0]
            answered = b"" if late else self._answers.readline()
        if not answered:
            if late:
                end_worker(self._process)
            self._process.wait()
            raise ValueError(why_ended(self._process, self._log, self._limit, late))
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
