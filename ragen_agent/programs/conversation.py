"""A program's chat requests as rows of tokens: sampled ids are kept, and only what is new in a request is encoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ragen_agent.chat import ChatFormat
from ragen_agent.trajectory import Trajectory, TurnInfo
from ragen_gym.core.text import replace_surrogates
from ragen_gym.inference import Sampled

__all__ = ["ContextOverflowError", "Conversation", "read_messages"]

Message = dict[str, str]


class ContextOverflowError(ValueError):
    """A request's messages leave no room for a token."""


@dataclass
class _Row:
    """Tokens that the model saw one after another."""

    messages: list[Message]  # what they say
    ids: list[int]
    sampled: list[bool]
    log_probs: list[float]
    turn_ends: list[int] = field(default_factory=list)  # the index of each reply's last token


class Conversation:
    """The requests of one episode.

    A request goes on in the last row where its messages are those of the row, replies included, and one more of the
    user's: then only that one is encoded. Any other request begins a new row with all its messages, in which replies
    of earlier rows are text like any other and are not learned from.

    Args:
        chat: the chat template.
        max_tokens_per_turn: length limit of a reply, its stop token included.
        max_tokens_per_episode: length limit of a row, prompts included.
        check: called with ids that no model sampled; it may raise.
    """

    def __init__(
        self,
        chat: ChatFormat,
        max_tokens_per_turn: int,
        max_tokens_per_episode: int,
        check: Callable[[Sequence[int]], None] = lambda ids: None,
    ) -> None:
        self.chat, self.check = chat, check
        self.max_tokens_per_turn, self.max_tokens_per_episode = max_tokens_per_turn, max_tokens_per_episode
        self.rows: list[_Row] = []
        self._said: list[Message] = []  # each reply after the message that it answers

    @property
    def replies(self) -> int:
        """How many replies were sampled."""
        return sum(len(row.turn_ends) for row in self.rows)

    def request(self, messages: Sequence[Message], most: int | None = None) -> tuple[list[int], int]:
        """The whole prompt of a request, and the most tokens of its reply.

        Args:
            messages: as ``read_messages`` gives them.
            most: the most tokens that the program asks for; None for as many as the settings allow.

        Raises:
            ContextOverflowError: the messages leave no room for a token.
            ValueError: the template cannot write the messages, or ``check`` raised.
        """
        follow = self._follow(messages)
        if follow is None:
            row = _Row([*messages], self._prompt(messages), [], [])
            self.check(row.ids)
            self._next = row, row.ids, [*messages]
        else:
            self.check(follow)
            row = self.rows[-1]
            self._next = row, row.ids + follow, [*messages]
        prompt = self._next[1]
        room = self.max_tokens_per_episode - len(prompt)
        if room < 1:
            raise ContextOverflowError(
                f"the messages have {len(prompt)} tokens, which leaves none for a reply within "
                f"turns.max_tokens_per_episode={self.max_tokens_per_episode}: send fewer, or raise it."
            )
        return prompt, min(room, self.max_tokens_per_turn, most or room)

    def add(self, reply: Sampled) -> str:
        """Append what was sampled after the last ``request``; returns the reply's text.

        Raises:
            ValueError: a log-probability that is not finite.
        """
        if not all(map(math.isfinite, reply.log_probs)):
            raise ValueError("the log-probability of a sampled token is not finite; the model's logits are broken")
        row, prompt, messages = self._next
        unsampled = len(prompt) - len(row.sampled)
        text = self.chat.decode_reply(reply.ids)
        row.ids = prompt + reply.ids
        row.sampled += [False] * unsampled + [True] * len(reply.ids)
        row.log_probs += [0.0] * unsampled + list(reply.log_probs)
        row.turn_ends.append(len(row.ids) - 1)
        said = {"role": "assistant", "content": text}
        row.messages = [*messages, said]
        if not self._said and messages[0]["role"] == "system":
            self._said.append(messages[0])
        self._said += [messages[-1], said]
        if not self.rows or self.rows[-1] is not row:
            self.rows.append(row)
        return text

    def trajectory(self, rewards: Sequence[float], infos: Sequence[TurnInfo], **outcome: Any) -> Trajectory:
        """The record of the episode; every row is a context of it.

        Its messages are the first system message, and each reply after the message that it answers: what else a request
        repeats or shows stands in the ids.

        Args:
            rewards: of each reply.
            infos: of each reply, or none.
            outcome: the other fields of ``Trajectory``.
        """
        # A failure before the first reply: no consumer takes rows of fewer than two tokens.
        rows = self.rows or [_Row([], [self.chat.end_id] * 2, [False] * 2, [0.0] * 2)]
        starts = np.cumsum([0, *(len(row.ids) for row in rows)]).tolist()
        return Trajectory(
            ids=np.array([token for row in rows for token in row.ids], np.int64),
            sampled=np.array([mark for row in rows for mark in row.sampled], np.bool_),
            log_probs=np.array([value for row in rows for value in row.log_probs], np.float32),
            turn_ends=tuple(start + end for start, row in zip(starts, rows, strict=False) for end in row.turn_ends),
            turn_rewards=tuple(rewards),
            turn_infos=tuple(infos),
            contexts=tuple(starts[:-1]) if len(rows) > 1 else (),
            messages=tuple(self._said),
            **outcome,
        )

    def _follow(self, messages: Sequence[Message]) -> list[int] | None:
        """The ids that a request appends to the last row; None where it does not go on in it."""
        if not self.rows:
            return None
        row = self.rows[-1]
        if len(messages) != len(row.messages) + 1 or [*messages[:-1]] != row.messages:
            return None
        end = [] if row.ids[-1] == self.chat.end_id else [self.chat.end_id]
        follow = end + self.chat.glue_ids(messages[-1]["content"])
        if self.chat.drops_thinking and self.chat.conversation_ids(messages) != row.ids + follow:
            return None
        return follow

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        roles = [message["role"] for message in messages]
        if roles in (["system", "user"], ["user"]):
            system = messages[0]["content"] if len(messages) == 2 else ""
            return self.chat.prompt_ids(system, messages[-1]["content"])
        try:
            return self.chat.conversation_ids(messages)
        except ValueError:
            raise
        except Exception as error:  # a template may raise anything, as for messages that do not alternate
            raise ValueError(f"the chat template cannot write these messages: {error}") from error


def read_messages(value: Any) -> list[Message]:
    """The ``messages`` of a chat request: texts of the system, the user and the assistant, the last one the user's.

    Raises:
        ValueError: something else.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list with a message or more.")
    messages = []
    for number, message in enumerate(value):
        role = message.get("role") if isinstance(message, Mapping) else None
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant") or (role == "system" and number):
            raise ValueError(
                f"messages[{number}] has the role {role!r}: it must be user or assistant, or system for the first."
            )
        messages.append({"role": role, "content": _text(message.get("content"), number)})
    if messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's.")
    return messages


def _text(content: Any, number: int) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    ):
        raise ValueError(f"messages[{number}] must hold text: pictures and tools are not taken here.")
    return replace_surrogates("".join(part["text"] for part in parts))
