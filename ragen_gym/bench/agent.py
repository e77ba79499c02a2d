"""Agents: something that answers messages (``ReplyAgent``), or something that chooses moves (``StepAgent``).

Both get the ``Task`` of the episode with every question. Everything else is optional; ``ragen_gym.bench.agents`` lists
what else the runner looks for, and holds a template. Any exception that an agent raises ends its episode as a typed
failure and never the run.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ragen_gym.core.failures import Failure
from ragen_gym.core.validation import shown
from ragen_gym.envs.messages import map_images
from ragen_gym.render.png import encode_png

Message = Mapping[str, Any]
"""``{"role": "system" | "user" | "assistant", "content": text}``.

Where a split shows pictures, the content is a list of parts: ``{"type": "text", "text": text}`` and ``{"type": "image",
"image": picture}``, the picture an array, uint8 (height, width, 3).
"""


@dataclass(frozen=True)
class Task:
    """The episode that is being played."""

    suite: str  # name of the suite
    split: str  # name of the split
    index: int  # place of the instance in the split, from 0
    rollout: int  # which of its rollouts, from 0
    seed: int  # for the agent's own randomness, from 0 to 2**32 - 1; independent of the episode's noise
    temperature: float  # at which a language model is to be sampled
    #: a ``TurnEnv`` that stands where the episode does and draws other transition noise; of a text task a ``TaskEnv``
    #: of the same problem, at its first message. Only the scripted agents of the package look into it; any other agent
    #: should read only what it is shown.
    env: Any


@dataclass(frozen=True)
class Answer:
    """A reply and what it cost."""

    text: str  # the reply that is parsed
    #: a server's reasoning, apart from the reply, or None; the thinking of a reply without <think>
    reasoning: str | None = None
    prompt_tokens: int | None = None  # as counted by the server or tokenizer, or None
    completion_tokens: int | None = None  # the same, of the reply with its reasoning
    finish_reason: str | None = None  # such as ``"stop"`` or ``"length"``, or None
    retries: int = 0  # requests that failed before this one


@runtime_checkable
class ReplyAgent(Protocol):
    """Answers the conversation so far; many episodes are played at once, so ``reply`` is a coroutine."""

    name: str

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer | str:
        """The next reply; ``messages`` starts with the system's and ends with the user's."""
        ...


@runtime_checkable
class StepAgent(Protocol):
    """Chooses one move at a time, within the same number of moves as a ``ReplyAgent``."""

    name: str

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int | Awaitable[int]:
        """The next action, given what the environment of single moves returned last; may be a coroutine.

        ``info`` also says ``actions_left`` (int) and ``action_names`` (tuple of str, by id).
        """
        ...


class AgentFailure(Exception):
    """Raised by an agent to say how its episode failed; any other exception is an ``Failure.AGENT_ERROR``.

    Args:
        failure: what kind of failure.
        detail: what exactly failed, in a line.
    """

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure, self.detail = failure, detail


def plain_dict(agent: Any, name: str) -> dict[str, Any]:
    """An agent's ``settings`` or ``circumstances`` as they come back from a file; empty where it has none.

    Raises:
        ValueError: they are not a dictionary of plain JSON.
    """
    value = getattr(agent, name, None)
    try:
        plain = json.loads(json.dumps({} if value is None else value, allow_nan=False))
        if isinstance(plain, dict):
            return plain
    except (TypeError, ValueError, RecursionError):
        pass
    raise ValueError(
        f"the agent's {name} are {shown(value)}: make them a dictionary of plain JSON, which is texts, finite numbers, "
        "True, False, None, lists and dictionaries."
    )


def as_data_urls(messages: Sequence[Message]) -> list[Message]:
    """Messages with pictures as parts ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}``."""

    def part_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(part)}"}}

    return list(map_images(messages, part_of))


def as_png(messages: Sequence[Message]) -> list[Message]:
    """Messages with pictures as parts ``{"type": "image", "png": "…"}``, a PNG file in base64."""
    return list(map_images(messages, lambda part: {"type": "image", "png": _base64(part)}))


def refuse_pictures(messages: Sequence[Message], model: str) -> None:
    """Raise an ``AgentFailure`` where a text-only model is shown pictures."""
    if any(not isinstance(message["content"], str) for message in messages):
        raise AgentFailure(
            Failure.MODEL_ERROR,
            f"{model} reads text only, and the split shows pictures: choose a visual model, or a split with "
            "observation = 'text'",
        )


def _base64(part: Mapping[str, Any]) -> str:
    return b64encode(encode_png(part["image"])).decode()
