"""Replies generated together: waiting requests join a running batch, in a thread of its own.

``TorchEngine`` generates a few tokens of each reply at a time; in between, finished replies are handed out and waiting
requests join. The thread lives until the batch is closed.

Each request draws with uniform numbers of its own, by its seed, so its reply does not depend on the batch. Only the
logits may differ in the last bits with the batch's shape, so that a number at the very edge of a token's interval can
give the neighbouring token; a batch of size 1 removes that too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from ragen_gym.bench.agent import AgentFailure, Answer
from ragen_gym.core.failures import Failure

if TYPE_CHECKING:
    from ragen_agent.inference import ImageSpan, Sampled
    from ragen_agent.inference.torch_engine import TorchEngine, TorchSession

_GATHER = 0.01  # seconds to wait for the next requests of conversations whose replies were handed out


@dataclass(eq=False)
class Request:
    """A conversation that waits for its reply; made in the event loop that waits."""

    ids: list[int]
    images: list[ImageSpan]
    limit: int
    temperature: float
    seed: int
    begun: str  # the part of the reply in the prompt
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    began: float = 0.0  # time.monotonic of its generation's start

    @property
    def abandoned(self) -> bool:
        """True if nobody waits any more: the episode has timed out, or the run is over."""
        return self.answer.done() or self.answer.get_loop().is_closed()


class RunningBatch:
    """A batch of replies that requests join and leave.

    Args:
        engine: generates.
        size: replies that are generated at once, at least 1.
        timeout: seconds for one reply, from the start of its own generation.
        finish: the answer of a reply that has ended.
    """

    def __init__(
        self,
        engine: TorchEngine,
        size: int,
        timeout: float,
        finish: Callable[[Request, Sampled], Answer | AgentFailure],
    ) -> None:
        self.engine, self.size, self.timeout, self._finish = engine, size, timeout, finish
        self.running: list[Request] = []
        self._waiting: list[Request] = []
        self._session: TorchSession | None = None
        self._news = threading.Condition()
        self._working = self._closed = False
        self._worker = _one_thread()

    async def reply(self, request: Request) -> Answer:
        """A reply out of the running batch.

        Raises:
            AgentFailure: it took too long, the model failed, or the batch was closed.
        """
        with self._news:
            self._waiting.append(request)
            self._news.notify()
            if not self._working:
                self._working = True
                self._worker.submit(self._work)
        return await request.answer

    def close(self) -> None:
        """Stop generating, and wait for the thread; the next request would start it again."""
        self._closed = True
        with self._news:
            self._news.notify()
        self._worker.shutdown(cancel_futures=True)
        for request in (*self.running, *self._waiting):
            _settle(request, AgentFailure(Failure.MODEL_ERROR, "the agent was closed before the reply was whole"))
        self._session, self.running, self._waiting, self._working = None, [], [], False
        self._worker, self._closed = _one_thread(), False

    def _work(self) -> None:
        ended = 0  # replies just handed out, whose conversations may ask again at once
        while True:
            with self._news:
                if ended and not self._closed:
                    self._news.wait_for(partial(self._have, ended), _GATHER)
                new = [] if self._closed else self._next()  # what waits when it is closed is settled by ``close``
                if self._closed or not (new or self.running):
                    self._working = False
                    return
            try:
                ended = self._step(new)
            except Exception as error:  # out of memory, say: the failure of the episodes whose replies are being made
                for request in self.running:
                    _settle(request, AgentFailure(Failure.MODEL_ERROR, f"{type(error).__name__}: {error}"))
                self._session, self.running, ended = None, [], 0

    def _have(self, requests: int) -> bool:
        return self._closed or len(self._waiting) >= requests

    def _next(self) -> list[Request]:
        """The waiting requests that join the batch, in their order; all of a batch have one temperature."""
        waiting = [request for request in self._waiting if not request.abandoned]
        warm = next((request.temperature for request in (*self.running, *waiting)), None)
        new = list(takewhile(lambda request: request.temperature == warm, waiting))[: self.size - len(self.running)]
        self._waiting = waiting[len(new) :]
        return new

    def _step(self, new: Sequence[Request]) -> int:
        """A few tokens of each reply; returns the number of replies that have ended."""
        self.running += new
        if new:
            prompts, seeds = [request.ids for request in new], [request.seed for request in new]
            images, now = [request.images for request in new], time.monotonic()
            for request in new:
                request.began = now
            if self._session is None:
                warm = new[0].temperature
                self._session = self.engine.start(prompts, temperature=warm, seed=0, episodes=seeds, images=images)
            else:
                self._session.join(prompts, seeds, images=images)
        session = self._session
        assert session is not None
        replies, now, going = session.reply([request.limit for request in self.running]), time.monotonic(), []
        for row, (request, sampled) in enumerate(zip(self.running, replies, strict=True)):
            if sampled is not None:
                _settle(request, self._finish(request, sampled))
            elif now - request.began > self.timeout:
                said = (
                    f"no whole reply within {self.timeout:g} s: {len(session.partial[row].ids):,} of "
                    f"{request.limit:,} tokens; lower --max-tokens or --set batch, or raise --timeout"
                )
                _settle(request, AgentFailure(Failure.TIMEOUT, said))
            elif not request.abandoned:
                going.append(row)
        ended = len(self.running) - len(going)
        self.running = [self.running[row] for row in going]
        if going:
            session.feed(going, [[] for _ in going])
        else:
            session.close()
            self._session = None
        return ended


def _settle(request: Request, outcome: Answer | AgentFailure) -> None:
    """Hands out the outcome, in the request's own loop."""

    def settle() -> None:
        if request.answer.done():  # nobody waits any more
            return
        if isinstance(outcome, Answer):
            request.answer.set_result(outcome)
        else:
            request.answer.set_exception(outcome)

    with suppress(RuntimeError):  # the loop has been closed: the run is over
        request.answer.get_loop().call_soon_threadsafe(settle)


def _one_thread() -> ThreadPoolExecutor:
    """A thread that is made when it is needed, and is no daemon: the interpreter cannot end while torch computes."""
    return ThreadPoolExecutor(1, thread_name_prefix="hf agent")
