"""A program's side of the endpoint: a worker in an episode of the small model, reached over HTTP."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from ragen_agent.config import Config, Program, with_settings
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.programs.rollout import _Rollout
from ragen_agent.programs.worker import Worker
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory

__all__ = ["USER", "Served", "serving", "small"]

USER = {"role": "user", "content": "hello"}


def small() -> Policy:
    """A policy that can be built in no time."""
    shape = {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}, "env_options": {"size": 4}}
    return Policy.build(with_settings(Config(), {**shape, "turns": {"max_tokens_per_turn": 12}}))


class Counting:
    """The engine, with the number of rows of each of its calls."""

    def __init__(self, agent: Policy) -> None:
        self.engine, self.rows = agent.engine, list[int]()

    def max_rows(self, tokens: int) -> int:
        return self.engine.max_rows(tokens)

    def start(self, prompts: Sequence[Sequence[int]], **arguments: Any) -> Any:
        self.rows.append(len(prompts))
        return self.engine.start(prompts, **arguments)


class Served:
    """A worker in an episode, reached over HTTP; the engine samples while ``sampling``."""

    def __init__(self, agent: Policy, endpoint: Endpoint) -> None:
        self.engine = Counting(agent)
        self.rollout = _Rollout(self.engine, [Instance(3, 3)], Program("x"), 1.0, 5)
        [process] = agent.processes("train", 1)
        assert isinstance(process, TokenMDP)
        self.worker = Worker(Program("x"), process, self.rollout, lambda ids: None)
        self.url = endpoint.add(self.worker)
        self.worker.begin()
        self.sampling, self.over = threading.Event(), False
        self.sampling.set()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self) -> None:
        while not self.over:
            gathered = self.rollout._gather()
            self.sampling.wait()
            self.rollout._sample(gathered)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **{"max_retries": 0, **options})

    def ask(self, **fields: Any) -> Any:
        with self.client() as client:
            return client.chat.completions.create(model="policy", **{"messages": [USER], **fields})

    def post(self, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def replies(self) -> int:
        conversation = self.worker._episode.conversation  # type: ignore[union-attr]
        return len(conversation.replies)

    def ended(self) -> Trajectory:
        self.worker.end()
        return self.rollout.played[0]


@contextmanager
def serving(agent: Policy) -> Iterator[Served]:
    """A worker whose engine samples until the end of the context."""
    with Endpoint() as endpoint:
        found = Served(agent, endpoint)
        yield found
        found.over = True
        found.sampling.set()
        found.thread.join()
