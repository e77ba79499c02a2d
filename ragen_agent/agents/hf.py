"""``hf:PATH``: a language model of Hugging Face transformers in this process, which reads pictures if it is visual.

Up to ``batch`` replies are generated at once by ``TorchEngine``, a few tokens at a time: in between, finished replies
are handed out and waiting requests join. One thread generates, and lives until the agent is closed.

Each request draws with uniform numbers of its own, by its episode and turn, so its reply does not depend on the batch.
Only the logits may differ in the last bits with the batch's shape, so that a number at the very edge of a token's
interval can give the neighbouring token; ``batch=1`` removes that too.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task, refuse_pictures
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix
from ragen_gym.core.seen import find_seen
from ragen_gym.core.threads import bfloat16_units
from ragen_gym.core.validation import check_number
from ragen_gym.envs.messages import IMAGE, map_images, plain_text
from ragen_gym.envs.reply import open_thinking, whole_reply

if TYPE_CHECKING:
    from ragen_agent.inference import ImageSpan
    from ragen_agent.inference.torch_engine import TorchSession

__all__ = ["HFAgent", "answer_of", "rendered", "weights_hash"]

LARGE = 2**24
"""Parameters from which a model is played in bfloat16 where the CPU has units for it."""

CONTEXT = 2**20  # tokens, for a model whose config names no limit

_GATHER = 0.01  # seconds to wait for the next requests of conversations whose replies were handed out
_COLDEST = 1e-6  # stands for temperature 0
_EDGE = 2**20  # bytes of each end of a file that are hashed


@dataclass(eq=False)
class _Request:
    ids: list[int]
    images: list[ImageSpan]
    limit: int
    temperature: float
    seed: int
    begun: str  # the part of the reply in the prompt
    answer: asyncio.Future[Answer]
    loop: asyncio.AbstractEventLoop
    began: float = field(default=0.0)  # time.monotonic of its generation's start

    @property
    def abandoned(self) -> bool:
        return self.answer.done() or self.loop.is_closed()  # the episode has timed out, or the run is over


class HFAgent:
    """Generates in process.

    Args:
        path: a model's folder, one of ``ragen-agent model --list``, or a name on the Hugging Face Hub, with
            ``@revision`` behind it for one branch, tag or commit.
        max_tokens: maximum tokens of a reply; where a suite limits the tokens of a turn, the lower limit holds.
        top_p: share of probability that is sampled from; None for the value of the model's generation config. Its
            suppressed tokens count too, its penalties do not.
        top_k: number of tokens that are sampled from, 0 for all; None likewise.
        timeout: seconds for one reply, from the start of its own generation.
        batch: replies that are generated at once.
        device: ``"cpu"``, ``"cuda"``, …; "" for CUDA where there is one.
        dtype: ``"float32"``, ``"bfloat16"``, …; "" for the checkpoint's own on a GPU. On a CPU it stands for bfloat16
            if the CPU has units for it and a text model at least ``LARGE`` parameters, else float32.
        template: variables of the chat template, such as ``{"enable_thinking": false}``.

    Raises:
        ValueError: the model cannot be loaded, or its tokenizer has no chat template.
        ImportError: transformers and torch are not installed.
    """

    keeps_time = whole_replies = True

    def __init__(
        self,
        path: str,
        *,
        max_tokens: int = 1024,
        top_p: float | None = None,
        top_k: int | None = None,
        timeout: float = 120.0,
        batch: int = 64,
        device: str = "",
        dtype: str = "",
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, path = f"hf:{path}", os.path.expanduser(path)
        check_number(self.name, "max_tokens", max_tokens, 1, whole=True)
        check_number(self.name, "batch", batch, 1, whole=True)
        check_number(self.name, "timeout", timeout, 0)
        check_number(self.name, "top_p", top_p, 0, 1, none=True)
        check_number(self.name, "top_k", top_k, 0, whole=True, none=True)
        if top_p == 0:
            raise ValueError(f"{self.name}: top_p=0 leaves nothing to draw from: give a number above 0.")
        try:
            from ragen_agent.inference.torch_engine import TorchEngine
            from ragen_agent.inference.vision import vision_of
            from ragen_agent.models.named_models import model_folder
        except ImportError as error:
            raise ImportError("hf: agents need transformers and torch: pip install 'ragen-gym[agent]'") from error
        folder = model_folder(path)
        self._model, self._tokenizer = _load(self.name, folder, device, dtype)
        self._vision = vision_of(self._model)
        context = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        config = self._model.generation_config
        top_p = next((value for value in (top_p, config.top_p) if value is not None), 1.0)
        top_k = next((value for value in (top_k, config.top_k) if value is not None), 0)
        own = config.eos_token_id
        ends = {self._tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
        self._engine = TorchEngine(
            self._model,
            ends,
            len(self._tokenizer),
            cached_tokens=(batch + 1) * (context or CONTEXT),
            straggler_share=1.0,  # each call samples a few tokens of every reply
            top_p=top_p,
            top_k=top_k,
        )
        self._context: int | None = context
        self._max_tokens, self._template = max_tokens, dict(template or {})
        self.timeout, self.closed = float(timeout), False
        self.batch = self.concurrency = batch  # more would only wait, while the clocks of their episodes run
        self._session: TorchSession | None = None
        self._running: list[_Request] = []
        self._waiting: list[_Request] = []
        self._news = threading.Condition()
        self._working = False
        self._worker = _one_thread()
        self.seen = find_seen(path)
        self.settings = {
            "max_tokens": max_tokens,
            "top_p": top_p,
            "top_k": top_k,
            "template": self._template,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "weights": weights_hash(folder),
        }
        self.circumstances = {"device": self._model.device.type, "batch": batch, "timeout": self.timeout}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """A reply out of the running batch.

        Raises:
            AgentFailure: the conversation leaves no room for a reply in the model's context, the model cannot read its
                pictures, or it took too long.
        """
        ids, images, begun = self._read(messages)
        loop = asyncio.get_running_loop()
        request = _Request(
            ids,
            images,
            self._limit(task, len(ids), sum(image.tokens for image in images)),
            max(task.temperature, _COLDEST),
            mix(task.seed + len(messages)),
            begun,
            loop.create_future(),
            loop,
        )
        with self._news:
            self._waiting.append(request)
            self._news.notify()
            if not self._working:
                self._working = True
                self._worker.submit(self._work)
        return await request.answer

    async def close(self) -> None:
        """Stop generating, and wait for the thread; the next request would start it again."""
        self.closed = True
        with self._news:
            self._news.notify()
        self._worker.shutdown(cancel_futures=True)
        for request in (*self._running, *self._waiting):
            _settle(request, AgentFailure(Failure.MODEL_ERROR, "the agent was closed before the reply was whole"))
        self._session, self._running, self._waiting, self._working = None, [], [], False
        self._worker, self.closed = _one_thread(), False

    def _read(self, messages: Sequence[Message]) -> tuple[list[int], list[ImageSpan], str]:
        """The ids of a conversation with a placeholder for each visual token, its pictures, and the begun reply."""
        pictures: list[Any] = []
        if self._vision is None:
            refuse_pictures(messages, self.name)
        else:
            image = self._tokenizer.convert_ids_to_tokens(self._vision.image_id)
            messages = [{**message, "content": _unspelled(message["content"], image)} for message in messages]
            contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
            pictures = [part["image"] for content in contents for part in content if part["type"] == "image"]
        prompt, begun = rendered(self._tokenizer, messages, self._template)
        ids = list(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])
        if not ids:
            raise AgentFailure(Failure.MODEL_ERROR, "the chat template makes no tokens of the conversation")
        try:
            return *((ids, []) if self._vision is None else self._vision.placed(ids, pictures)), begun
        except ValueError as error:
            raise AgentFailure(Failure.MODEL_ERROR, str(error)) from error

    def _limit(self, task: Task, tokens: int, visual: int) -> int:
        """Maximum tokens of the reply to a conversation of ``tokens`` tokens."""
        room = None if self._context is None else self._context - tokens
        limits = (self._max_tokens, task.env.config.max_tokens_per_turn, room)
        limit = min(limit for limit in limits if limit is not None)
        if limit < 1:
            seen = f", {visual} of them of pictures," * bool(visual)
            said = f"{tokens} tokens{seen} leave no room in a context of {self._context}"
            raise AgentFailure(Failure.CONTEXT_OVERFLOW, said)
        return limit

    def _work(self) -> None:
        ended = 0  # replies just handed out, whose conversations may ask again at once
        while True:
            with self._news:
                if ended and not self.closed:
                    self._news.wait_for(partial(self._have, ended), _GATHER)
                new = [] if self.closed else self._next()  # what waits when it is closed is settled by ``close``
                if self.closed or not (new or self._running):
                    self._working = False
                    return
            try:
                ended = self._step(new)
            except Exception as error:  # out of memory, say: the failure of the episodes whose replies are being made
                for request in self._running:
                    _settle(request, AgentFailure(Failure.MODEL_ERROR, f"{type(error).__name__}: {error}"))
                self._session, self._running, ended = None, [], 0

    def _have(self, requests: int) -> bool:
        return self.closed or len(self._waiting) >= requests

    def _next(self) -> list[_Request]:
        """The waiting requests that join the batch; all of a batch have one temperature."""
        waiting = [request for request in self._waiting if not request.abandoned]
        warm = next((request.temperature for request in (*self._running, *waiting)), None)
        new = [request for request in waiting if request.temperature == warm][: self.batch - len(self._running)]
        self._waiting = [request for request in waiting if request not in new]
        return new

    def _step(self, new: Sequence[_Request]) -> int:
        """A few tokens of each reply; returns the number of replies that have ended."""
        self._running += new
        if new:
            prompts, seeds = [request.ids for request in new], [request.seed for request in new]
            images, now = [request.images for request in new], time.monotonic()
            for request in new:
                request.began = now
            if self._session is None:
                warm = new[0].temperature
                self._session = self._engine.start(prompts, temperature=warm, seed=0, episodes=seeds, images=images)
            else:
                self._session.join(prompts, seeds, images=images)
        session = self._session
        assert session is not None
        replies, now, going = session.reply([request.limit for request in self._running]), time.monotonic(), []
        for row, (request, sampled) in enumerate(zip(self._running, replies, strict=True)):
            if sampled is not None:
                _settle(request, self._answer(request, sampled.ids, sampled.log_probs))
            elif now - request.began > self.timeout:
                said = (
                    f"no whole reply within {self.timeout:g} s: {len(session.partial[row].ids):,} of "
                    f"{request.limit:,} tokens; lower --max-tokens or --set batch, or raise --timeout"
                )
                _settle(request, AgentFailure(Failure.TIMEOUT, said))
            elif not request.abandoned:
                going.append(row)
        ended = len(self._running) - len(going)
        self._running = [self._running[row] for row in going]
        if going:
            session.feed(going, [[] for _ in going])
        else:
            session.close()
            self._session = None
        return ended

    def _answer(self, request: _Request, ids: Sequence[int], log_probs: Sequence[float]) -> Answer | AgentFailure:
        if not all(map(isfinite, log_probs)):
            return AgentFailure(Failure.MODEL_ERROR, "the model's logits are not numbers")
        return answer_of(self._tokenizer, len(request.ids), ids, self._engine.stop_ids, request.begun)


def rendered(tokenizer: Any, messages: Sequence[Message], template: Mapping[str, Any]) -> tuple[str, str]:
    """A conversation as the chat template writes it, and the thinking opened at its end, which belongs to the reply."""
    shown = list(map_images(messages, lambda part: {"type": "image"}))
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=True, tokenize=False, **template)
    return prompt, open_thinking(prompt, plain_text(messages[-1]["content"]).rpartition(IMAGE)[2])


def answer_of(tokenizer: Any, prompt_tokens: int, sampled: Sequence[int], ends: Collection[int], begun: str) -> Answer:
    """The reply of sampled ids, with an end token last if there is one, after the part that its prompt has begun.

    Special tokens are left out of its text, as in training.
    """
    ended = sampled[-1] in ends
    written = sampled[:-1] if ended else sampled
    return Answer(
        text=whole_reply(
            tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False), begun=begun
        ),
        prompt_tokens=prompt_tokens,
        completion_tokens=len(sampled),
        finish_reason="stop" if ended else "length",
    )


def weights_hash(folder: Path) -> str | None:
    """Hash of a folder's config and of both ends of its weights: another training gives another, in no time."""
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.json")]):
        with file.open("rb") as stream:
            digest.update(stream.read(_EDGE))
            stream.seek(max(0, file.stat().st_size - _EDGE))
            digest.update(stream.read(_EDGE))
    return digest.hexdigest()[:16]


def _load(name: str, folder: Path, device: str, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer; see ``HFAgent`` for the defaults of ``device`` and ``dtype``."""
    import torch

    from ragen_agent.config.consent import load_problem
    from ragen_agent.inference.vision import vision_of
    from ragen_agent.inference.weights import move
    from ragen_agent.models.checkpoint import load_checkpoint

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model, tokenizer = load_checkpoint(folder, device, getattr(torch, dtype) if dtype else None)
        if device == "cpu" and not dtype:
            fast = bfloat16_units() and vision_of(model) is None and model.num_parameters() >= LARGE
            move(model, device, torch.bfloat16 if fast else torch.float32)
    except Exception as error:  # a damaged folder can raise any error
        raise ValueError(f"{name} cannot be loaded: {load_problem(error)}") from error
    return model, tokenizer


def _unspelled(content: Any, placeholder: str) -> Any:
    """A message's content with a space in each spelling of the placeholder, so that none is read as a picture."""
    if isinstance(content, str):
        return content.replace(placeholder, f"{placeholder[:1]} {placeholder[1:]}")
    return [
        {**part, "text": _unspelled(part["text"], placeholder)} if part["type"] == "text" else part for part in content
    ]


def _settle(request: _Request, outcome: Answer | AgentFailure) -> None:
    """Hands out the outcome, in the request's own loop."""

    def settle() -> None:
        if request.answer.done():  # nobody waits any more
            return
        if isinstance(outcome, Answer):
            request.answer.set_result(outcome)
        else:
            request.answer.set_exception(outcome)

    with suppress(RuntimeError):  # the loop has been closed: the run is over
        request.loop.call_soon_threadsafe(settle)


def _one_thread() -> ThreadPoolExecutor:
    """A thread that is made when it is needed, and is no daemon: the interpreter cannot end while torch computes."""
    return ThreadPoolExecutor(1, thread_name_prefix="hf agent")
