"""A model of this machine behind an OpenAI-compatible server in this process, for measurements that ask one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ragen_agent.config import Config, with_settings
from ragen_agent.programs.conversation import Conversation, read_messages
from ragen_agent.programs.endpoint import Endpoint, RequestError, completion
from ragen_agent.rollout import sample
from ragen_agent.training.named_models import model_folder
from ragen_agent.training.policy import Policy

__all__ = ["ServedModel", "served"]


@contextmanager
def served(model: str, max_tokens: int, rows: int) -> Iterator[str]:
    """The base URL of a server of a model, a folder or a known name, on the CPU; see ``ServedModel``."""
    policy = Policy.build(with_settings(Config(), {"model": str(model_folder(model)), "device": "cpu"}))
    with Endpoint() as endpoint:
        player = ServedModel(policy, max_tokens, rows)
        try:
            yield f"{endpoint.add(player)}/v1"
        finally:
            player.stop()


class ServedModel:
    """Chat completions of a policy, for ``ragen_agent.programs.endpoint``; requests that wait together are one batch.

    Args:
        policy: whose model is served.
        max_tokens: the most tokens of a reply.
        rows: the most requests of a batch.
    """

    def __init__(self, policy: Policy, max_tokens: int, rows: int) -> None:
        self.policy, self.max_tokens, self.rows = policy, max_tokens, rows
        self._waiting: queue.SimpleQueue[tuple[list[int], int, Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A chat completion; the most likely tokens, whatever temperature is asked for."""
        context = int(getattr(self.policy.model.config, "max_position_embeddings", 2048))
        conversation = Conversation(self.policy.chat, self.max_tokens, context)
        try:
            ids, limit = conversation.request(read_messages(body.get("messages")), body.get("max_tokens"))
        except ValueError as error:
            raise RequestError(400, "context_length_exceeded", str(error)) from error
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting.put((ids, limit, answer.put))
        sampled = answer.get()
        if isinstance(sampled, Exception):
            raise RequestError(500, "engine_error", str(sampled))
        written = list(sampled.ids)
        ends = written[-1] in self.policy.chat.stop_ids
        return completion(body, self.policy.chat.decode_reply(written), len(ids), len(written), ends)

    def begin(self) -> dict[str, Any]:
        """No game is played here."""
        raise RequestError(404, "not_found", "this server completes chats alone.")

    def reset(self) -> dict[str, Any]:
        """See ``begin``."""
        return self.begin()

    def turn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """See ``begin``."""
        return self.begin()

    def end(self) -> None:
        """See ``begin``."""
        self.begin()

    def stop(self) -> None:
        """End the thread that samples."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            time.sleep(0.05)  # for others that are asked at the same time
            while len(batch) < self.rows and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._waiting.put(None)  # which ends the thread after this batch
                    break
                batch.append(more)
            try:
                prompts, limits = [ids for ids, _, _ in batch], [limit for _, limit, _ in batch]
                found: Sequence[Any] = sample(self.policy.engine, prompts, limits, temperature=1e-3, seed=0)
            except Exception as error:  # out of memory: these requests cannot be answered
                found = [error] * len(batch)
            for (_, _, answer), reply in zip(batch, found, strict=True):
                answer(reply)
