"""Prefix of each turn: the whole conversation so far, a window of it, or the template's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ragen_agent.inference import ImageSpan
from ragen_agent.tokens.chat import ChatFormat, Images
from ragen_agent.tokens.chat_template import Content


class Message(NamedTuple):
    """A message of the environment, with its pictures."""

    content: Content
    images: Images

    @classmethod
    def of(cls, observation: str, info: Mapping[str, Any]) -> Message:
        """From the result of a reset or step; with pictures, the message has parts."""
        images = tuple(info.get("images", ()))
        return cls(info["messages"][-1]["content"], images) if images else cls(observation, images)


class Encoded(NamedTuple):
    """Token ids, and the places of pictures in them."""

    ids: list[int]
    images: list[ImageSpan]


class History:
    """The conversation of one episode; see ``history`` and ``chat.drops_thinking`` of ``TokenMDP``.

    Args:
        chat: the chat template.
        instructions: the system message; may be empty.
        turns: number of earlier turns in a prefix; -1 keeps all.
        first: the first message of the environment.
    """

    def __init__(self, chat: ChatFormat, instructions: str, turns: int, first: Message) -> None:
        self.chat, self.instructions, self.turns = chat, instructions, turns
        self._shown = [first]  # all messages of the environment
        self._said: list[dict[str, Any]] = [{"role": "user", "content": first.content}]  # with the replies
        #: The messages that the prefix shows, each with the ids from its reply to the next reply.
        self._window = [(first, Encoded([], []))]

    def prompt(self) -> Encoded:
        """The prefix of the first turn.

        Raises:
            ValueError: see ``ChatFormat.prompt_ids``.
        """
        return self._prompt(self._shown[0])

    def next(self, ids: Sequence[int], start: int, reply: str, message: Message) -> tuple[Encoded, bool]:
        """The ids before the next reply, and True if they are a new prefix instead of being appended to ``ids``.

        ``ids`` are the prefix and, from ``start`` on, the reply to it; ``message`` is the environment's answer.

        Raises:
            ValueError: see ``ChatFormat.glue_ids`` and ``ChatFormat.conversation_ids``.
        """
        follow = [] if ids[-1] == self.chat.end_id else [self.chat.end_id]
        follow += self.chat.glue_ids(message.content, message.images)
        appended = Encoded(follow, self.chat.image_spans(follow, message.images))
        if self.chat.drops_thinking:
            prefix = self._written(reply, message)
            return (appended, False) if prefix.ids == [*ids, *follow] else (prefix, True)
        if self.turns < 0:
            return appended, False
        replied = list(ids[start:])
        images = [image.moved(len(replied)) for image in appended.images]
        self._window[-1] = (self._window[-1][0], Encoded(replied + follow, images))
        self._window.append((message, Encoded([], [])))
        if len(self._window) <= self.turns + 1:
            return appended, False
        self._window = self._window[-self.turns - 1 :]
        return self._windowed(), True

    def _prompt(self, message: Message) -> Encoded:
        """The prompt with this message of the environment."""
        ids = self.chat.prompt_ids(self.instructions, message.content, message.images)
        return Encoded(ids, self.chat.image_spans(ids, message.images))

    def _windowed(self) -> Encoded:
        """The prompt with the first message of the window, and the ids of its turns."""
        ids, images = self._prompt(self._window[0][0])
        for _, part in self._window:
            images += [image.moved(len(ids)) for image in part.images]
            ids += part.ids
        return Encoded(ids, images)

    def _written(self, reply: str, message: Message) -> Encoded:
        """The conversation as the template writes it."""
        self._said += [{"role": "assistant", "content": reply}, {"role": "user", "content": message.content}]
        self._shown.append(message)
        said, shown = self._said, self._shown
        if self.turns >= 0:
            said, shown = said[-2 * self.turns - 1 :], shown[-self.turns - 1 :]
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        pixels = [image for each in shown for image in each.images]
        ids = self.chat.conversation_ids([*system, *said], pixels)
        return Encoded(ids, self.chat.image_spans(ids, pixels))
