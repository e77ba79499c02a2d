"""Continuous batching: requests join and leave a running batch, and conversations keep their cached tokens.

Each ``step`` reads one more token for every reply that is being generated, and the new tokens of requests that have
just joined, in one packed pass (``packed``). A slot holds the tokens of one conversation. A request continues in the
slot of its conversation, from the first token that differs. A prefix shared with another conversation's slot, such as
the system prompt, is copied. If requests with a common prefix arrive together, the first is read, and the others wait
one step and copy the prefix.

**Repeatability.** A request draws its tokens with its own uniform numbers, a function of its seed, independent of other
requests. Logits differ in their last bits with the shape of a pass, so a number at the very edge of a token's interval
can give the neighbouring token. With one slot the shape depends on the conversation alone: nothing is copied from
another one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ragen_agent.inference.packed import PackedModel, Segment
from ragen_agent.inference.sampling import Sampler
from ragen_gym.core.seeding import GOLDEN, uniforms

__all__ = ["ContinuousEngine", "ContinuousStats", "Request"]

TOKENS_PER_PASS = 4096
"""Maximum new tokens per pass; a long prompt takes several passes, and replies continue in between."""

SHARED_AT_LEAST = 64
"""A request waits one step for another one's prefix if that saves at least this many tokens over any slot."""


@dataclass(eq=False)
class Request:
    """A requested reply and its state.

    Attributes:
        ids: the tokens of the prompt, at least one.
        limit: maximum tokens of the reply.
        temperature: 0 takes the most likely token.
        seed: 64-bit seed of its uniform numbers.
        conversation: equal for the turns of one conversation.
        sampled: the reply's tokens so far, with the stop id if there is one.
        began: when its first pass began, by ``time.monotonic``; None while it waits.
        first: when its first token was sampled, likewise.
        failed: the reason why it ended without a whole reply, or "".
        cancelled: set it to True, from any thread, to end the reply.
    """

    ids: list[int]
    limit: int
    temperature: float
    seed: int
    conversation: Any = None
    sampled: list[int] = field(default_factory=list)
    began: float | None = None
    first: float | None = None
    failed: str = ""
    cancelled: bool = False


@dataclass
class ContinuousStats:
    """Counts of a ``ContinuousEngine``.

    Attributes:
        read: prompt tokens read; excludes tokens that were already in a slot.
        reused: prompt tokens already in a slot, of the same conversation or another.
        passes: forward passes.
    """

    read: int = 0
    reused: int = 0
    passes: int = 0


@dataclass(eq=False)
class _Slot:
    number: int
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # capacity for the tokens read
    length: int = 0  # number of tokens read
    pending: list[int] = field(default_factory=list)
    request: Request | None = None
    conversation: Any = None
    used: int = 0  # when it was last given to a request

    def common(self, ids: NDArray[np.int64]) -> int:
        """Length of the prefix of ``ids`` in this slot; the last id is always read, for its logits."""
        return _common(self.tokens[: self.length], ids)

    def append(self, ids: Sequence[int]) -> None:
        end = self.length + len(ids)
        if end > len(self.tokens):
            self.tokens = np.concatenate([self.tokens[: self.length], np.zeros(end, np.int64)])
        self.tokens[self.length : end] = ids
        self.length = end


class ContinuousEngine:
    """Generates the replies of many requests at once; not thread-safe.

    Args:
        model: the model and its slots; each reply in progress takes one.
        sampler: draws the tokens.
        stop_ids: ids that end a reply.
        cached_tokens: maximum tokens of all slots together; each has an equal share.
    """

    def __init__(
        self, model: PackedModel, sampler: Sampler, stop_ids: Sequence[int], cached_tokens: int = 2**20
    ) -> None:
        self.model, self.sampler, self.stop_ids = model, sampler, frozenset(stop_ids)
        self.longest = cached_tokens // model.slots
        self.stats = ContinuousStats()
        self.waiting: list[Request] = []
        self.slots = [_Slot(number) for number in range(model.slots)]
        self._given = 0

    def submit(self, request: Request) -> None:
        """Queues the request for the next free slot, first come, first served.

        Raises:
            ValueError: an empty prompt, or a limit below 1.
        """
        if not request.ids or request.limit < 1:
            raise ValueError(f"a request needs a prompt and a limit of at least 1, not {request.limit}.")
        self.waiting.append(request)

    @property
    def running(self) -> list[Request]:
        """The requests that have a slot."""
        return [slot.request for slot in self.slots if slot.request is not None]

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Generates one more token of each running request; returns those that have ended, cancelled ones excluded.

        Raises:
            Exception: any error of the model. Afterwards ``drop`` frees the slots.
        """
        began = time.monotonic()
        for slot in self.slots:
            if slot.request is not None and slot.request.cancelled:
                slot.request, slot.pending = None, []
        self._admit(began)
        ended = self._too_long()
        if busy := [slot for slot in self.slots if slot.request is not None]:
            ended += self._pass(busy)
        return ended

    def drop(self) -> list[Request]:
        """Frees and empties all slots; returns the requests that had one."""
        dropped = self.running
        self.slots = [_Slot(number) for number in range(self.model.slots)]
        self.model.clear()
        return dropped

    def _admit(self, now: float) -> None:
        """Gives free slots to waiting requests."""
        joined: list[NDArray[np.int64]] = []
        alone = len(self.slots) == 1
        for request in list(self.waiting):
            if request.cancelled:
                self.waiting.remove(request)
                continue
            free = [slot for slot in self.slots if slot.request is None]
            if not free:
                continue
            ids = np.array(request.ids)
            same = (slot for slot in free if slot.length and slot.conversation == request.conversation)
            target = next(same, None) or min(free, key=lambda slot: slot.used)
            if alone and target.conversation != request.conversation:
                self.model.clear()
                target.length = 0
            donor = max(self.slots, key=lambda slot: slot.common(ids))
            kept, found = target.common(ids), donor.common(ids)
            if any(_common(other, ids) >= max(kept, found) + SHARED_AT_LEAST for other in joined):
                continue  # its shared prefix is cached after this step
            self.waiting.remove(request)
            self._given += 1
            target.request, target.conversation, target.used = request, request.conversation, self._given
            if found > kept:
                self.model.copy(donor.number, target.number, found)
                target.length = 0
                target.append(request.ids[:found])
                kept = found
            target.length, target.pending = kept, request.ids[kept:]
            request.began = now
            joined.append(ids)
            self.stats.reused += kept
            self.stats.read += len(ids) - kept

    def _too_long(self) -> list[Request]:
        """Ends the requests whose conversation would take more than its share of the cache."""
        ended = []
        for slot in self.slots:
            if slot.request is not None and slot.length + len(slot.pending) > self.longest:
                slot.request.failed = (
                    f"its conversation has more than {self.longest:,} tokens, a share of the cache among "
                    f"{len(self.slots)} at once; generate fewer at a time (--set batch)"
                )
                ended.append(slot.request)
                slot.request, slot.pending = None, []
        return ended

    def _pass(self, busy: Sequence[_Slot]) -> list[Request]:
        room = max(TOKENS_PER_PASS - len(busy), 1)
        segments: list[tuple[Segment, _Slot]] = []
        for slot in busy:
            ids = slot.pending
            if len(ids) > 1:  # the tokens of a prompt
                if room < 1:
                    continue
                ids = ids[:room]
                room -= len(ids)
            segments.append((Segment(slot.number, slot.length, ids), slot))
        segments.sort(key=lambda each: (len(each[0].ids) > 1, each[0].slot))
        whole = [len(segment.ids) == len(slot.pending) for segment, slot in segments]
        logits = self.model.read([segment for segment, _ in segments], whole)
        self.stats.passes += 1
        for segment, slot in segments:
            slot.append(segment.ids)
            slot.pending = slot.pending[len(segment.ids) :]
        drawing = [slot for (_, slot), ends in zip(segments, whole, strict=True) if ends]
        return self._draw(logits, drawing) if drawing else []

    def _draw(self, logits: torch.Tensor, slots: Sequence[_Slot]) -> list[Request]:
        requests = [slot.request for slot in slots if slot.request is not None]
        steps = np.array([len(request.sampled) for request in requests], np.uint64)
        keys = np.array([request.seed for request in requests], np.uint64) + steps * np.uint64(GOLDEN)
        tokens = self.sampler(
            logits,
            [request.ids + request.sampled for request in requests] if self.sampler.reads_histories else (),
            [len(request.sampled) == 0 for request in requests],
            torch.tensor([request.temperature for request in requests], dtype=torch.float32),
            torch.from_numpy(uniforms(keys, 0, 1)[:, 0]),
        ).tolist()
        now, ended = time.monotonic(), []
        broken = logits.amax(-1).isnan().tolist()
        for slot, request, token, bad in zip(slots, requests, tokens, broken, strict=True):
            if bad:
                request.failed = "the model's logits are not numbers"
                ended.append(request)
                slot.request, slot.length = None, 0
                self.model.erase(slot.number)
                continue
            request.sampled.append(token)
            if request.first is None:
                request.first = now
            if token in self.stop_ids or len(request.sampled) >= request.limit:
                ended.append(request)
                slot.request, slot.pending = None, []
            else:
                slot.pending = [token]
        return ended


def _common(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Length of the common prefix, without the last token of ``second``."""
    most = min(len(first), len(second) - 1)
    different = np.flatnonzero(first[:most] != second[:most])
    return int(different[0]) if len(different) else most
