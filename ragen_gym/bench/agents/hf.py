"""``hf:PATH``: a causal language model of Hugging Face transformers in this process, batched.

Requests that are open at the same time go through one ``generate`` call, padded on the left, up to ``batch`` of them;
the runner's concurrency is what fills it. The chat template is the tokenizer's own.

**Time.** One thread generates; it lives until the agent is closed, which waits for it. The clock of a request starts
with its own generation, not while it waits for the batch before. A reply is handed out when its own row has ended, and
a row that has taken too long, or for which nobody waits any more, is ended. The first tokens of a run are timed: where
replies of the greatest length would take longer than ``timeout``, a warning says so at once.

**Repeatability.** Every request draws from a generator of its own, seeded by its episode and turn, by inversion of the
next token's distribution (one uniform number a token). So what it draws depends neither on its neighbours in the batch
nor on their number, and a run that is repeated or resumed asks for the same draws. The logits themselves may differ in
the last bits with the shape of the batch, so a token on the very edge of its interval, once in some ten thousand
tokens in float32 and more often in bfloat16, can still come out as its neighbour. ``batch=1`` removes that too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix
from ragen_gym.core.validation import check_number

__all__ = ["HFAgent", "inversion", "own_the_sampling"]

_LOG = logging.getLogger(__name__)

_GATHER = 0.005  # seconds to wait for more requests before a batch goes off
_TIMED = 8  # tokens after which a batch knows its speed
_EDGE = 2**20  # bytes of each end of a file that are hashed
_HUB_SECONDS = 10.0  # to wait for the Hub


def own_the_sampling(
    model: Any, tokenizer: Any, top_p: float | None, top_k: int | None
) -> tuple[dict[str, Any], set[int]]:
    """Take sampling out of the model's generation config; what is to be sampled from, and the ids that end a reply."""
    config = model.generation_config
    top_p = config.top_p if top_p is None else top_p
    top_k = config.top_k if top_k is None else top_k
    config.do_sample = False
    for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "max_length"):
        setattr(config, name, None)
    ends = {tokenizer.eos_token_id}
    own = config.eos_token_id
    ends |= set(own if isinstance(own, list) else [own])
    ends.discard(None)
    config.eos_token_id = sorted(ends)
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends, default=0)
    return {"top_p": 1.0 if top_p is None else top_p, "top_k": top_k or 0}, ends


def inversion(rows: Sequence[tuple[float, int]], sampling: Mapping[str, Any], device: str) -> Any:
    """A logits processor that leaves the one token of each row that was drawn.

    Args:
        rows: temperature and seed of each row; at temperature 0 the likeliest token is taken.
        sampling: ``top_p`` from 0 to 1 and ``top_k``, 0 for all tokens.
        device: where the logits are.
    """
    import torch
    from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

    generators = [torch.Generator().manual_seed(seed) for _, seed in rows]
    temperatures = torch.tensor([temperature for temperature, _ in rows], device=device)[:, None]
    kept: list[Any] = [TopKLogitsWarper(sampling["top_k"])] if sampling["top_k"] else []
    kept += [TopPLogitsWarper(sampling["top_p"])] if sampling["top_p"] < 1 else []

    class Inversion(LogitsProcessor):
        """Draws by inversion; greedy where the temperature is 0."""

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            scores = scores.float()
            likeliest = scores.argmax(-1, keepdim=True)
            scores = scores / temperatures.clamp(min=1e-6)
            for warper in kept:
                scores = warper(input_ids, scores)
            cumulative = scores.double().softmax(-1).cumsum(-1)
            points = torch.stack([torch.rand(1, dtype=torch.float64, generator=one) for one in generators])
            drawn = torch.searchsorted(cumulative, points.to(device) * cumulative[:, -1:], right=True)
            drawn = torch.where(drawn < scores.shape[-1], drawn, likeliest)  # a point rounded up to the very end
            chosen = torch.where(temperatures > 0, drawn, likeliest)
            return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)

    return Inversion()


@dataclass(eq=False)
class _Request:
    ids: list[int]
    limit: int
    temperature: float
    seed: int
    answer: asyncio.Future[Answer]


class _Rows:
    """Stopping criterion of one batch: hands out each reply as soon as its row has ended, and ends what is not wanted.

    Called by ``generate`` in its thread after every token; the futures belong to the event loop.
    """

    def __init__(self, agent: HFAgent, batch: Sequence[_Request], width: int, loop: asyncio.AbstractEventLoop) -> None:
        self._agent, self._batch, self._width, self._loop = agent, batch, width, loop
        self._open = set(range(len(batch)))
        self._began = time.monotonic()
        self._first = 0.0

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        written = ids.shape[1] - self._width
        now = time.monotonic()
        if written == 1:
            self._first = now
        if written == min(_TIMED, self._batch[0].limit):
            self._agent.check_speed(*self._speed(written, now), self._batch[0].limit, len(self._batch))
        late = now - self._began > self._agent.timeout
        last = ids[:, -1].tolist()
        for row in sorted(self._open):
            request = self._batch[row]
            if last[row] in self._agent.ends or written >= request.limit:
                self._settle(row, self._agent.answer(request, ids[row, self._width :].tolist()))
            elif late:
                self._settle(row, AgentFailure(Failure.TIMEOUT, self._too_late(written, now)))
            elif self._agent.closed or request.answer.done():  # the episode has timed out, or the run is over
                self._open.discard(row)
        return torch.tensor([row not in self._open for row in range(len(ids))], device=ids.device)

    def _speed(self, written: int, now: float) -> tuple[float, float]:
        """Seconds to the first token, and for each one after it."""
        return self._first - self._began, (now - self._first) / max(1, written - 1)

    def _too_late(self, written: int, now: float) -> str:
        """What a request that has timed out says."""
        request, (first, each) = self._batch[0], self._speed(written, now)
        later = f", then {1 / each:.3g} tokens/s in each row of {len(self._batch)}" if each else ""
        return (
            f"no whole reply within {self._agent.timeout:g} s: {written:,} of {request.limit:,} tokens, the first "
            f"after {first:.3g} s{later}; lower --max-tokens or --set batch, or raise --timeout"
        )

    def fail(self, error: Exception) -> None:
        """Out of memory, say: it is the failure of the episodes whose replies are not there yet."""
        for row in sorted(self._open):
            self._settle(row, AgentFailure(Failure.MODEL_ERROR, f"{type(error).__name__}: {error}"))

    def _settle(self, row: int, outcome: Answer | AgentFailure) -> None:
        self._open.discard(row)
        with suppress(RuntimeError):  # the loop has been closed: the run is over
            self._loop.call_soon_threadsafe(_settle, self._batch[row].answer, outcome)


def _settle(future: asyncio.Future[Answer], outcome: Answer | AgentFailure) -> None:
    if future.done():  # whoever asked has stopped waiting
        return
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


class HFAgent:
    """Generates in process.

    Args:
        path: a model's folder, or its name on the Hugging Face Hub.
        max_tokens: the most tokens of a reply; where a suite limits the tokens of a turn, the lower limit holds.
        top_p: share of probability that is sampled from; None for what the model's generation config says.
        top_k: number of tokens that are sampled from; None likewise.
        timeout: seconds for one reply, from the start of its own generation.
        batch: requests in one call.
        device: ``"cpu"``, ``"cuda"``, …; "" for CUDA where there is one.
        dtype: ``"float32"``, ``"bfloat16"``, …; "" for float32 on the CPU and the checkpoint's own elsewhere.
        template: variables of the chat template, such as ``{"enable_thinking": false}``.

    Raises:
        ValueError: the model cannot be loaded, or its tokenizer has no chat template.
        ImportError: transformers and torch are not installed.
    """

    keeps_time = True

    def __init__(
        self,
        path: str,
        *,
        max_tokens: int = 1024,
        top_p: float | None = None,
        top_k: int | None = None,
        timeout: float = 120.0,
        batch: int = 32,
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
        try:
            source = _source(self.name, path)  # some seconds, where the libraries would try for a minute
            import torch
            import transformers
        except ImportError as error:
            raise ImportError("hf: agents need transformers and torch: pip install 'ragen-gym[agent]'") from error
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("float32" if self._device == "cpu" else "auto")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, padding_side="left")
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
            model.to(self._device).eval()
        except Exception as error:  # whatever a folder that is no model leads to
            raise ValueError(f"{self.name} cannot be loaded: {type(error).__name__}: {error}") from error
        if not self._tokenizer.chat_template:
            raise ValueError(f"{self.name}: its tokenizer has no chat template; use an instruction-tuned model.")
        self._model = model
        self._context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._max_tokens, self._batch, self._template = max_tokens, batch, dict(template or {})
        self._sampling, self.ends = own_the_sampling(model, self._tokenizer, top_p, top_k)
        self.timeout, self.closed = float(timeout), False
        self.concurrency = batch  # more would only wait, while the clocks of their episodes run
        self._waiting: list[_Request] = []
        self._serving: asyncio.Task[None] | None = None
        self._complained = False
        self._worker = _one_thread()
        self.settings = {
            "max_tokens": max_tokens,
            **self._sampling,
            "template": self._template,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": _fingerprint(Path(path)) or getattr(model.config, "_commit_hash", None) or Path(source).name,
        }
        self.circumstances = {"device": self._device, "batch": batch, "timeout": self.timeout}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """A reply out of the next batch.

        Raises:
            AgentFailure: the conversation leaves no room for a reply in the model's context, or it took too long.
        """
        prompt = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, **self._template
        )
        ids = list(prompt["input_ids"])
        room = None if self._context is None else self._context - len(ids)
        limits = (self._max_tokens, task.env.config.max_tokens_per_turn, room)
        limit = min(limit for limit in limits if limit is not None)
        if limit < 1:
            raise AgentFailure(
                Failure.CONTEXT_OVERFLOW, f"{len(ids)} tokens leave no room in a context of {self._context}"
            )
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        seed = mix(task.seed + len(messages)) & 0x7FFFFFFFFFFFFFFF
        self._waiting.append(_Request(ids, limit, task.temperature, seed, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await answer

    async def close(self) -> None:
        """Stop generating, and wait for the thread; the next request would start it again."""
        self.closed = True
        if self._serving is not None:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving
        self._worker.shutdown(cancel_futures=True)
        self._worker, self.closed = _one_thread(), False

    async def _serve(self) -> None:
        """Answer batch after batch, until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(_GATHER)
            wanted = [request for request in self._waiting if not request.answer.done()]  # others have timed out
            # One limit a batch, so that a long conversation cuts nobody else's reply.
            batch = [request for request in wanted if request.limit == wanted[0].limit][: self._batch]
            self._waiting = [request for request in wanted if request not in batch]
            if batch:
                await loop.run_in_executor(self._worker, self._generate, batch, loop)

    def _generate(self, batch: list[_Request], loop: asyncio.AbstractEventLoop) -> None:
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        width = max(len(request.ids) for request in batch)
        rows = _Rows(self, batch, width, loop)
        pad = self._model.generation_config.pad_token_id
        try:
            ids = torch.tensor([[pad] * (width - len(request.ids)) + request.ids for request in batch])
            mask = torch.tensor([[0] * (width - len(request.ids)) + [1] * len(request.ids) for request in batch])
            sampler = inversion([(each.temperature, each.seed) for each in batch], self._sampling, self._device)
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids.to(self._device),
                    attention_mask=mask.to(self._device),
                    max_new_tokens=batch[0].limit,
                    logits_processor=LogitsProcessorList([sampler]),
                    stopping_criteria=StoppingCriteriaList([rows]),
                )
        except Exception as error:
            rows.fail(error)

    def answer(self, request: _Request, row: list[int]) -> Answer:
        """The reply of a row that has ended: the ids that were sampled, an end token last if there is one."""
        ended = row[-1] in self.ends
        written = row[:-1] if ended else row
        return Answer(
            text=self._tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False),
            prompt_tokens=len(request.ids),
            completion_tokens=len(row),
            finish_reason="stop" if ended else "length",
        )

    def check_speed(self, first: float, each: float, limit: int, rows: int) -> None:
        """Warn once where whole replies cannot be written in time, by the seconds of the first tokens."""
        whole = first + each * (limit - 1)
        if whole <= self.timeout or self._complained:
            return
        self._complained = True
        fits = int((self.timeout - first) / each) if each and self.timeout > first else 0
        _LOG.warning(
            "%s: %s tokens at %.3g tokens/s take %.0f s > time limit %g s: lower --max-tokens%s or raise --timeout, or "
            "longer replies are lost (in each row of %d; the first token took %.3g s)",
            self.name, f"{limit:,}", limit / whole, whole, self.timeout, f" to {fits:,}" * (fits > 0), rows, first,
        )  # fmt: skip


def _one_thread() -> ThreadPoolExecutor:
    """A thread that is made when it is needed, and is no daemon: the interpreter cannot end while torch computes."""
    return ThreadPoolExecutor(1, thread_name_prefix="hf agent")


def _source(name: str, path: str) -> str:
    """What is to be loaded: the path, or where the Hub cannot be reached the snapshot of a name in its cache.

    Raises:
        ValueError: it is no folder, and not in the cache, and the Hub has no such model or cannot be reached.
    """
    if Path(path).is_dir():
        return path
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    nowhere = f"{name}: there is no folder {path}, and"
    try:
        HfApi().model_info(path, timeout=_HUB_SECONDS)
    except GatedRepoError:  # loading says how to ask for access
        return path
    except HFValidationError:
        raise ValueError(f"{nowhere} it is not a name of the Hub, such as me/my-model.") from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{nowhere} the Hugging Face Hub shows no model of that name: correct it, or log in by `hf auth login` if "
            "the model is private."
        ) from None
    except Exception as error:  # no connection, a proxy's page, offline mode
        with suppress(OSError):
            return str(snapshot_download(path, local_files_only=True))
        raise ValueError(
            f"{nowhere} the Hugging Face Hub cannot be reached ({' '.join(str(error).split())}), nor has its cache "
            "such a model: correct the name, or get the model while there is a connection."
        ) from None
    return path


def _fingerprint(folder: Path) -> str | None:
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
