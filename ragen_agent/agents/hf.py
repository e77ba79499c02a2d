"""``hf:PATH``: a causal language model of Hugging Face transformers in this process.

Generation is continuous (``ragen_agent.inference.continuous``): up to ``batch`` replies are generated at once, a
request joins as soon as another reply has ended, and what has been read of a conversation is kept between its turns.
The runner's concurrency is what fills the batch. The chat template is the tokenizer's own.

One thread generates; it lives until the agent is closed, which waits for it. The clock of a request starts with its own
generation, not while it waits for a place. A reply that takes too long, or for which nobody waits any more, is ended.

Every request draws with uniform numbers of its own, by its episode and turn, so what it draws depends neither on its
neighbours in the batch nor on their number. The logits may differ in the last bits with the shape of the batch, so that
a token on the edge of its interval can still come out as its neighbour; ``batch=1`` removes that too.
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
from dataclasses import dataclass
from functools import partial
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
    from ragen_agent.inference.continuous import Request
    from ragen_agent.inference.vision import Vision

__all__ = ["HFAgent", "answer_of", "begun_reply", "end_tokens", "load_model", "reply_limit", "weights_hash"]

_GATHER = 0.01  # seconds to wait for the next requests of conversations whose replies were handed out
LARGE = 2**24
"""Parameters from which on a model is played in bfloat16 where the CPU has units for it."""

_EDGE = 2**20  # bytes of each end of a file that are hashed
_HUB_SECONDS = 10.0  # to wait for the Hub


class HFAgent:
    """Generates in process.

    Args:
        path: a model's folder, or its name on the Hugging Face Hub, with ``@revision`` behind it for one branch, tag or
            commit.
        max_tokens: the most tokens of a reply; where a suite limits the tokens of a turn, the lower limit holds.
        top_p: share of probability that is sampled from; None for what the model's generation config says.
        top_k: number of tokens that are sampled from; None likewise.
        timeout: seconds for one reply, from the start of its own generation.
        batch: replies that are generated at once.
        device: ``"cpu"``, ``"cuda"``, …; "" for CUDA where there is one.
        dtype: ``"float32"``, ``"bfloat16"``, …; "" for the checkpoint's own on a GPU. On a CPU it is for bfloat16 where
            the CPU has units for it and the model at least ``LARGE`` parameters, else float32.
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
        if path.startswith((".", "/", "~")) and not Path(path).is_dir():  # else it may be a name on the Hub
            raise ValueError(f"{self.name}: there is no such folder.")
        check_number(self.name, "max_tokens", max_tokens, 1, whole=True)
        check_number(self.name, "batch", batch, 1, whole=True)
        check_number(self.name, "timeout", timeout, 0)
        check_number(self.name, "top_p", top_p, 0, 1, none=True)
        check_number(self.name, "top_k", top_k, 0, whole=True, none=True)
        if top_p == 0:
            raise ValueError(f"{self.name}: top_p=0 leaves nothing to draw from: give a number above 0.")
        source, self._tokenizer, model, _ = load_model(self.name, path, device, dtype)
        config = model.generation_config
        top_p = next((value for value in (top_p, config.top_p) if value is not None), 1.0)
        top_k = next((value for value in (top_k, config.top_k) if value is not None), 0)
        self.ends = end_tokens(self._tokenizer, model)
        from ragen_agent.inference.continuous import ContinuousEngine
        from ragen_agent.inference.packed import PackedModel
        from ragen_agent.inference.sampling import Sampler

        try:
            packed = PackedModel(model, batch)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        self.engine = ContinuousEngine(packed, Sampler(model, top_p, top_k, sorted(self.ends)), sorted(self.ends))
        self._model = model
        self._context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._max_tokens, self._template = max_tokens, dict(template or {})
        self.timeout, self.closed = float(timeout), False
        self.batch = self.concurrency = batch  # more would only wait, while the clocks of their episodes run
        self._asked: dict[Request, _Asked] = {}
        self._inbox: list[Request] = []
        self._news = threading.Condition()
        self._working = False
        self._worker = _one_thread()
        self.seen = find_seen(path)
        self.settings = {
            "max_tokens": max_tokens,
            "top_p": top_p,
            "top_k": top_k,
            "template": self._template,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": weights_hash(Path(path)) or getattr(model.config, "_commit_hash", None) or Path(source).name,
        }
        self.circumstances = {"device": model.device.type, "batch": batch, "timeout": self.timeout}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """A reply out of the running batch.

        Raises:
            AgentFailure: the conversation leaves no room for a reply in the model's context, or it took too long.
        """
        refuse_pictures(messages, self.name)
        from ragen_agent.inference.continuous import Request

        prompt = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, **self._template
        )
        ids = list(prompt["input_ids"])
        if not ids:
            raise AgentFailure(Failure.MODEL_ERROR, "the chat template makes no tokens of the conversation")
        limit = reply_limit(self._max_tokens, task, self._context, len(ids))
        loop = asyncio.get_running_loop()
        asked = _Asked(loop.create_future(), loop, begun_reply(self._tokenizer, messages, self._template))
        seed = mix(task.seed + len(messages))
        request = Request(ids, limit, task.temperature, seed, (task.split, task.index, task.rollout))
        with self._news:
            self._asked[request] = asked
            self._inbox.append(request)
            self._news.notify()
            if not self._working:
                self._working = True
                self._worker.submit(self._work)
        return await asked.answer

    async def close(self) -> None:
        """Stop generating, and wait for the thread; the next request would start it again."""
        self.closed = True
        with self._news:
            self._news.notify()
        self._worker.shutdown(cancel_futures=True)
        for request in [*self._asked]:
            self._settle(request, AgentFailure(Failure.MODEL_ERROR, "the agent was closed before the reply was whole"))
        self._inbox, self._working = [], False
        self.engine.drop()
        self.engine.waiting = []
        self._worker, self.closed = _one_thread(), False

    def _work(self) -> None:
        expected, wait = 0, 0.0
        while True:
            with self._news:
                if not self.closed:
                    self._news.wait_for(partial(self._have, expected), wait)
                new, self._inbox = self._inbox, []
                if self.closed or not (new or self._asked):
                    self._working = False
                    return
            began = time.monotonic()
            try:
                expected = self._step(new)
            except Exception as error:  # out of memory, say: the failure of the episodes whose replies are being made
                said = f"{type(error).__name__}: {error}"
                lost = [*self.engine.drop(), *(request for request in new if request not in self.engine.waiting)]
                for request in lost:
                    self._settle(request, AgentFailure(Failure.MODEL_ERROR, said))
                expected = 0
            wait = min(_GATHER, max((time.monotonic() - began) / 4, _GATHER / 10)) if expected else 0.0

    def _have(self, expected: int) -> bool:
        """Whether so many requests have come, or there is nothing to wait for."""
        return self.closed or len(self._inbox) >= expected

    def _step(self, new: Sequence[Request]) -> int:
        engine = self.engine
        for request in new:
            engine.submit(request)
        for request, asked in [*self._asked.items()]:
            if asked.answer.done() or asked.loop.is_closed():  # the episode has timed out, or the run is over
                request.cancelled = True
                del self._asked[request]
        ended = engine.step()
        now, running = time.monotonic(), engine.running
        for request in ended:
            begun = self._asked[request].begun if request in self._asked else ""
            outcome: Answer | AgentFailure
            if request.failed:
                outcome = AgentFailure(Failure.MODEL_ERROR, f"{request.failed}")
            else:
                outcome = answer_of(self._tokenizer, len(request.ids), request.sampled, self.ends, begun)
            self._settle(request, outcome)
        for request in running:
            if not request.cancelled and request.began is not None and now - request.began > self.timeout:
                request.cancelled = True
                said = (
                    f"no whole reply within {self.timeout:g} s: {len(request.sampled):,} of {request.limit:,} tokens; "
                    "lower --max-tokens or --set batch, or raise --timeout"
                )
                self._settle(request, AgentFailure(Failure.TIMEOUT, said))
        return len(ended)

    def _settle(self, request: Request, outcome: Answer | AgentFailure) -> None:
        asked = self._asked.pop(request, None)
        if asked is not None:
            with suppress(RuntimeError):  # the loop has been closed: the run is over
                asked.loop.call_soon_threadsafe(_settle, asked.answer, outcome)


def reply_limit(max_tokens: int, task: Task, context: int | None, tokens: int, of_pictures: int | None = None) -> int:
    """The most tokens of a reply to a conversation of so many tokens, ``of_pictures`` of them where it may show some.

    Raises:
        AgentFailure: it leaves no room in the model's context.
    """
    limits = (max_tokens, task.env.config.max_tokens_per_turn, None if context is None else context - tokens)
    limit = min(limit for limit in limits if limit is not None)
    if limit < 1:
        seen = "" if of_pictures is None else f", {of_pictures} of them of pictures,"
        raise AgentFailure(Failure.CONTEXT_OVERFLOW, f"{tokens} tokens{seen} leave no room in a context of {context}")
    return limit


def end_tokens(tokenizer: Any, model: Any) -> frozenset[int]:
    """The tokens that end a reply, by the tokenizer and the model's generation config."""
    own = model.generation_config.eos_token_id
    return frozenset({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})


def begun_reply(tokenizer: Any, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
    """The thinking that the chat template opens after the last message, which belongs to the reply."""
    shown = list(map_images(messages, lambda part: {"type": "image"}))
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=True, tokenize=False, **template)
    return open_thinking(prompt, plain_text(messages[-1]["content"]).rpartition(IMAGE)[2])


def answer_of(tokenizer: Any, prompt_tokens: int, sampled: Sequence[int], ends: Collection[int], begun: str) -> Answer:
    """The reply of the ids that were sampled, an end token last if there is one, after what its prompt has begun.

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


@dataclass
class _Asked:
    """A waiting request: its future and event loop, and the start of the reply that its prompt holds."""

    answer: asyncio.Future[Answer]
    loop: asyncio.AbstractEventLoop
    begun: str


def _settle(future: asyncio.Future[Answer], outcome: Answer | AgentFailure) -> None:
    if future.done():  # whoever asked has stopped waiting
        return
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _one_thread() -> ThreadPoolExecutor:
    """A thread that is made when it is needed, and is no daemon: the interpreter cannot end while torch computes."""
    return ThreadPoolExecutor(1, thread_name_prefix="hf agent")


def load_model(
    name: str, path: str, device: str, dtype: str, *, visual: bool = False
) -> tuple[str, Any, Any, Vision | None]:
    """The folder or name that a model was loaded from, its tokenizer, the model on its device, and its vision.

    Raises:
        ValueError: the model cannot be loaded, is ``visual`` or not against what was asked, or has no chat template.
        ImportError: transformers and torch are not installed.
    """
    try:
        source, revision = _source(name, path)  # some seconds, where the libraries would try for a minute
        import torch
        import transformers

        from ragen_agent.config.consent import check_no_kernels, load_problem
        from ragen_agent.inference.vision import FAMILIES, Vision, attach
        from ragen_agent.inference.weights import move
    except ImportError as error:
        kind = name.partition(":")[0]
        raise ImportError(f"{kind}: agents need transformers and torch: pip install 'ragen-gym[agent]'") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    own: Any = "float32" if visual and device == "cpu" else "auto"
    auto: Any = transformers.AutoModelForImageTextToText if visual else transformers.AutoModelForCausalLM
    try:
        config = transformers.AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        check_no_kernels(config)
        if visual and config.model_type not in FAMILIES:
            raise ValueError(
                f"it is of the family {config.model_type}, and these read pictures here: {', '.join(FAMILIES)}"
            )
        if not visual and config.model_type in FAMILIES:
            raise ValueError(f"it is a visual model: give hf-vision:{path}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
        model: Any = auto.from_pretrained(source, revision=revision, dtype=dtype or own, trust_remote_code=False)
        vision = Vision.from_folder(model.config, Path(source)) if visual else None
        if device == "cpu" and not dtype and not visual:
            fast = bfloat16_units() and model.num_parameters() >= LARGE
            move(model, device, torch.bfloat16 if fast else torch.float32)
        model.to(device).eval()
    except Exception as error:  # whatever a folder that is no model leads to
        raise ValueError(f"{name} cannot be loaded: {type(error).__name__}: {load_problem(error)}") from error
    if not tokenizer.chat_template:
        raise ValueError(f"{name}: its tokenizer has no chat template; use an instruction-tuned model.")
    if vision is not None:
        attach(model, vision)
    return source, tokenizer, model, vision


def _source(name: str, path: str) -> tuple[str, str]:
    """The folder or name to load, and the revision of the Hub's model; its cached snapshot where it is not reached.

    Raises:
        ValueError: it is a run's folder; or it is no folder, and not in the cache, and the Hub has no such model or
            cannot be reached.
    """
    if Path(path).is_dir():
        checkpoint = Path(path) / "checkpoint"
        if checkpoint.is_dir() and not Path(path, "config.json").is_file():
            raise ValueError(f"{name} is the folder of a run: its model is {name.partition(':')[0]}:{checkpoint}.")
        return path, "main"
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    package = f" (for one of `ragen-agent model --list` give hf:$(ragen-agent model {path}))" * ("/" not in path)
    nowhere = f"{name}: there is no folder {path}{package}, and"
    path, _, revision = path.partition("@")
    try:
        HfApi().model_info(path, revision=revision or None, timeout=_HUB_SECONDS)
    except GatedRepoError:  # loading says how to ask for access
        return path, revision or "main"
    except RevisionNotFoundError:
        raise ValueError(f"{name}: the Hugging Face Hub's model {path} has no revision {revision}.") from None
    except HFValidationError:
        raise ValueError(f"{nowhere} it is not a name of the Hub, such as me/my-model.") from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{nowhere} the Hugging Face Hub shows no model of that name: correct it, or log in by `hf auth login` if "
            "the model is private."
        ) from None
    except Exception as error:  # no connection, a proxy's page, offline mode
        with suppress(OSError):
            return str(snapshot_download(path, revision=revision or None, local_files_only=True)), "main"
        raise ValueError(
            f"{nowhere} the Hugging Face Hub cannot be reached ({' '.join(str(error).split())}), nor has its cache "
            "such a model: correct the name, or get the model while there is a connection."
        ) from None
    return path, revision or "main"


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
