"""A program's requests as rows of tokens: sampled ids are kept, and only new messages are encoded."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen_agent.inference import Sampled
from ragen_agent.programs.request import Message
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.message_encoding import decode
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo


class ContextOverflowError(ValueError):
    """A request's messages leave no room for a token."""


@dataclass(eq=False)
class Reply:
    """A reply, created with its request.

    Attributes:
        number: its place among the requests of the episode.
        messages: the request's messages.
        prompt: their ids.
        limit: maximum tokens of the reply.
        follows: the reply whose tokens the prompt begins with; None for a prompt encoded from its messages.
        ids: the sampled ids, up to the token that completes a stop sequence.
        log_probs: their log-probabilities.
        written: the text of the ids.
        text: the text for the program, which ends before a stop sequence.
        stopped: True if the model or a stop sequence ended it, not its limit.
        stop: the stop sequence that ended it; None for none.
    """

    number: int
    messages: list[Message]
    prompt: list[int]
    limit: int
    follows: Reply | None
    ids: list[int]
    log_probs: list[float]
    written: str = ""
    text: str = ""
    stopped: bool = False
    stop: str | None = None


class Conversation:
    """The requests of one episode.

    If a request repeats an earlier request and its reply, plus one user message, its prompt begins with the reply's
    tokens, and only the last message is encoded. Without another reply in between, it continues the row. Any other
    request begins a new row with all its messages, in which earlier replies are text and not learned from.

    A stop sequence stays in its reply's tokens, since it is the action by which the policy ended the reply. A program
    that sends the reply back as received, without the sequence, thereby begins a new row.

    Args:
        chat: the chat template.
        max_tokens_per_turn: length limit of a reply, its stop token included.
        max_tokens_per_episode: length limit of a row, prompts included.
        check: called with unsampled ids; it may raise.

    Attributes:
        asked: the number of requests.
        replies: the replies that belong to the episode, in the order of their requests.
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
        self.asked = 0
        self.replies: list[Reply] = []

    def request(self, messages: Sequence[Message], most: int | None = None) -> Reply:
        """A new reply to sample; any number may be pending at a time.

        Args:
            messages: the request's messages.
            most: the program's token limit; None for the limit of the settings.

        Raises:
            ContextOverflowError: the messages leave no room for a token.
            ValueError: the template cannot write the messages, or ``check`` raised.
        """
        follows, new = self._follow(messages)
        self.check(new)
        prompt = new if follows is None else follows.prompt + follows.ids + new
        room = self.max_tokens_per_episode - len(prompt)
        if room < 1:
            raise ContextOverflowError(
                f"the messages have {len(prompt)} tokens, which leaves none for a reply within "
                f"turns.max_tokens_per_episode={self.max_tokens_per_episode}: send fewer, or raise it."
            )
        self.asked += 1
        limit = min(room, self.max_tokens_per_turn, most or room)
        return Reply(self.asked - 1, [*messages], prompt, limit, follows, [], [])

    def add(self, reply: Reply, sampled: Sampled, stop: Sequence[str] = ()) -> None:
        """Add a reply to the episode: the sampled tokens up to the first stop sequence.

        Raises:
            ValueError: a log-probability that is not finite.
        """
        if not all(map(math.isfinite, sampled.log_probs)):
            raise ValueError("the log-probability of a sampled token is not finite; the model's logits are broken")
        length, cut, reply.stop = self._stop(sampled.ids, stop)
        reply.ids, reply.log_probs = sampled.ids[:length], sampled.log_probs[:length]
        reply.written = self.chat.decode_reply(reply.ids)
        reply.text = reply.written[: max(len(self.chat.begun), len(reply.written) - cut)] if cut else reply.written
        reply.stopped = bool(cut) or reply.ids[-1] in self.chat.stop_ids
        insort(self.replies, reply, key=lambda each: each.number)

    def trajectory(self, rewards: Sequence[float], infos: Sequence[TurnInfo], **outcome: Any) -> Trajectory:
        """The record of the episode; every row is one of its contexts.

        Its messages are the first system message, and each reply after the message that it answers; other messages of
        requests are only in the ids.

        Args:
            rewards: reward of each of ``replies``.
            infos: information on each of them, or empty.
            outcome: the other fields of ``Trajectory``.
        """
        ids: list[int] = []
        sampled: list[bool] = []
        log_probs: list[float] = []
        contexts, ends, said = [], [], []
        before = None
        for reply in self.replies:
            if before is None or reply.follows is not before:
                contexts.append(len(ids))
            new = reply.prompt[len(ids) - contexts[-1] :]
            ids += new + reply.ids
            sampled += [False] * len(new) + [True] * len(reply.ids)
            log_probs += [0.0] * len(new) + reply.log_probs
            ends.append(len(ids) - 1)
            if before is None and reply.messages[0]["role"] == "system":
                said.append(reply.messages[0])
            said += [reply.messages[-1], {"role": "assistant", "content": reply.text}]
            before = reply
        if before is None:  # a failure before the first reply: consumers need rows of at least two tokens
            ids, sampled, log_probs = [self.chat.end_id] * 2, [False] * 2, [0.0] * 2
        return Trajectory(
            ids=np.array(ids, np.int64),
            sampled=np.array(sampled, np.bool_),
            log_probs=np.array(log_probs, np.float32),
            turn_ends=tuple(ends),
            turn_rewards=tuple(rewards),
            turn_infos=tuple(infos),
            contexts=tuple(contexts) if len(contexts) > 1 else (),
            messages=tuple(said),
            **outcome,
        )

    def _stop(self, ids: Sequence[int], stop: Sequence[str]) -> tuple[int, int, str | None]:
        """Number of tokens up to the end of the first stop sequence, of characters from its start on, and itself.

        Without one all tokens, 0 and None. The part of the reply begun by the template is not searched, since it
        belongs to the prompt.
        """
        whole = len(ids) - (ids[-1] in self.chat.stop_ids)

        def found(length: int) -> tuple[int, str | None]:
            text = decode(self.chat.tokenizer, [*ids[:length]])
            starts = ((len(text) - text.find(each), each) for each in stop if each in text)
            return max(starts, default=(0, None))

        if not found(whole)[0]:
            return len(ids), 0, None
        length = bisect_left(range(whole), True, key=lambda length: found(length)[0] > 0)
        return length, *found(length)

    def _follow(self, messages: Sequence[Message]) -> tuple[Reply | None, list[int]]:
        """The reply that a request continues, and the ids after it; None and a whole prompt for other requests."""
        for reply in reversed(self.replies):
            if [*messages[:-1]] != [*reply.messages, {"role": "assistant", "content": reply.written}]:
                continue
            end = [] if reply.ids[-1] == self.chat.end_id else [self.chat.end_id]
            new = end + self.chat.glue_ids(messages[-1]["content"])
            if not self.chat.drops_thinking or (self.chat.conversation_ids(messages) == reply.prompt + reply.ids + new):
                return reply, new
        return None, self._prompt(messages)

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
