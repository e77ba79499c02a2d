"""An audited environment as a text task, so that the trainer plays it as it plays its own."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.audit import AuditSettings
from ragen_gym.audit.session import Session

TASK = f"{__name__}:AuditedTask"
#: Settings of a run are plain data: they name an open session, and a function that tells how long a request may take.
_SESSIONS: dict[str, tuple[Session, Callable[[], float]]] = {}


@contextmanager
def opened(
    name: str, target: str, settings: AuditSettings, left: Callable[[], float] = lambda: math.inf
) -> Iterator[Session]:
    """The session that tasks find under a name, while the block runs; ``left`` gives the seconds for each request."""
    with Session(target, settings) as session:
        _SESSIONS[name] = session, left
        try:
            yield session
        finally:
            del _SESSIONS[name]


class AuditedTask(gymnasium.Env[str, str]):
    """The environment of an open session; see ``ragen_gym.envs.task``.

    Training has even seeds, the test odd ones. Messages and replies are the environment's texts, without instructions.

    ## Arguments
    session: a name given to ``opened``.
    blind: every message is the first message of seed 0.
    split: ``train``, ``validation``, ``test``, or None for all seeds.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    instructions = ""

    def __init__(self, session: str, blind: bool = False, split: str | None = None) -> None:
        (self._session, self._left), self._split = _SESSIONS[session], split
        self._number = self._session.new()
        self._shown = self._ask("reset", seed=0, noise=0)["text"] if blind else None
        self.observation_space = self.action_space = spaces.Text(10_000, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of a seed of the split."""
        seed = (seed or 0) % 2**30
        seed = seed if self._split is None else 2 * seed + (self._split != "train")
        noise = int((options or {}).get("noise_seed", 0)) % 2**31
        return self._message(self._ask("reset", seed=seed, noise=noise))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play a reply."""
        answer = self._ask("step", reply=action.strip())
        text, info = self._message(answer)
        return text, answer["reward"], answer["terminated"], answer["truncated"], info

    def random_reply(self, rng: np.random.Generator) -> str:
        """A valid reply, drawn as the audit draws its actions."""
        return str(self._ask("sample", seed=int(rng.integers(2**31)))["reply"])

    def solution(self) -> list[str] | None:
        """The environment's own solution of the episode just begun, if it has one."""
        found: list[str] | None = self._ask("solve")["replies"]
        return found

    def _message(self, answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        told = {} if answer["success"] is None else {"success": answer["success"]}
        return answer["text"] if self._shown is None else self._shown, {**told, "tells_success": bool(told)}

    def _ask(self, do: str, **request: Any) -> dict[str, Any]:
        # Not less than a second, so that the end of the time is seldom taken for a request that hangs.
        return self._session.ask(self._number, do, max(self._left(), 1.0), **request)
