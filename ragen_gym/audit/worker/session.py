"""Episodes in text that another process plays: replies come in as lines of JSON, messages go out."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from .context import Context
from .protocol import AuditedEnv, NotApplicable, Step

_LONGEST = 2000  # characters of a message
_SUCCESS = ("success", "is_success")


def serve(context: Context, limit: float, send: Callable[..., None]) -> None:
    """Answer each request from standard input until its end; one that takes ``limit`` seconds ends this process.

    A request names an ``env``, a number, and ``do``: ``reset`` (``seed``, ``noise``), ``step`` (``reply``), ``sample``
    (``seed``) or ``solve``; or ``drop``, which closes all environments. The answer is ``answer`` with the fields of
    ``_message``, ``reply`` or ``replies``, or ``failed`` with the reason.
    """
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment that reads standard input must not take a request
    envs: dict[int, TextEpisode] = {}
    for line in requests:
        request = json.loads(line)
        faulthandler.dump_traceback_later(limit, exit=True)
        try:
            number, do = request.pop("env"), request.pop("do")
            answer: dict[str, Any] = {}
            if do == "drop":
                while envs:
                    envs.popitem()[1].env.close()
            else:
                if number not in envs:
                    envs[number] = TextEpisode(context)
                answer = getattr(envs[number], do)(**request)
            send("answer", **answer)
        except NotApplicable as reason:
            send("failed", reason=str(reason))
        except Exception as error:  # of the environment
            send("failed", reason=f"{type(error).__name__}: {str(error)[:300]}")
        faulthandler.cancel_dump_traceback_later()


class TextEpisode:
    """An audited environment whose observations and actions are texts."""

    def __init__(self, context: Context) -> None:
        self.context, self.env = context, context.make()
        self.text = ""

    def reset(self, seed: int, noise: int) -> dict[str, Any]:
        """Start the episode of a seed, with the seed ``noise`` of its dynamics where the environment takes one."""
        target = self.context.target
        separate = target.separate_noise and target.takes_seed
        begun = self.env.reset_with_noise(seed, noise) if separate else self.env.reset(self.context.seed(seed))
        return self._message(Step(begun[0], 0.0, False, False, begun[1]))

    def step(self, reply: str) -> dict[str, Any]:
        """Play a reply; one that names none of the listed actions earns nothing and changes nothing."""
        named = _named(self.env)
        if named and not all(isinstance(action, str) for action in named.values()) and reply not in named:
            return {"text": self.text, "reward": 0.0, "terminated": False, "truncated": False, "success": None}
        return self._message(self.env.step(named.get(reply, reply)))

    def sample(self, seed: int) -> dict[str, Any]:
        """A valid reply drawn from a seed."""
        action = self.env.sample(seed)
        if not isinstance(action, str) and str(action) not in _named(self.env):
            raise NotApplicable(f"the action {str(action)[:60]} is neither a text nor one of a list: give --action")
        return {"reply": str(action)}

    def solve(self) -> dict[str, Any]:
        """Replies that solve the episode just begun; None where the environment knows none."""
        actions = self.env.oracle()
        return {"replies": None if actions is None else [str(action) for action in actions]}

    def _message(self, step: Step) -> dict[str, Any]:
        self.text = _text(step.observation)
        told = next((bool(step.info[name]) for name in _SUCCESS if name in (step.info or {})), None)
        ends = {"terminated": bool(step.terminated), "truncated": bool(step.truncated)}
        return {"text": self.text, "reward": float(step.reward), **ends, "success": told}


def _named(env: AuditedEnv) -> dict[str, Any]:
    return {str(action): action for action in env.actions()}


def _text(observation: Any) -> str:
    """An observation as a message: a text as it is, the texts of a mapping, plain numbers in Python's form."""
    if isinstance(observation, Mapping) and (texts := [each for each in observation.values() if isinstance(each, str)]):
        observation = "\n".join(texts)
    text = observation if isinstance(observation, str) else str(getattr(observation, "tolist", lambda: observation)())
    if len(text) > _LONGEST:
        raise NotApplicable(f"a message has {len(text)} characters; the small model reads at most {_LONGEST}")
    return text
