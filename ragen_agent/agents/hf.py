"""``hf:PATH``: a language model of Hugging Face transformers in this process, which reads pictures if it is visual.

Conversations become requests to ``ragen_agent.agents.running_batch``, which generates up to ``batch`` replies at once.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.agents.running_batch import Request, RunningBatch
from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task, refuse_pictures
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix
from ragen_gym.core.seen import find_seen
from ragen_gym.core.threads import bfloat16_units
from ragen_gym.core.validation import check_number
from ragen_gym.envs.messages import IMAGE, map_images, plain_text
from ragen_gym.envs.reply import open_thinking, whole_reply

if TYPE_CHECKING:
    from ragen_agent.inference import ImageSpan, Sampled

_LOG = logging.getLogger(__name__)

LARGE = 2**24
"""Parameters from which a model is played in bfloat16 where the CPU has units for it."""

FEW_TOKENS = 10_000  # a trained model with a smaller vocabulary began from scratch

CONTEXT = 2**20  # tokens, for a model whose config names no limit

_COLDEST = 1e-6  # stands for temperature 0
_EDGE = 2**20  # bytes of each end of a file that are hashed


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
        self.timeout = float(timeout)
        self.batch = self.concurrency = batch  # more would only wait, while the clocks of their episodes run
        self._replies = RunningBatch(self._engine, batch, self.timeout, self._answer)
        self.seen = find_seen(path)
        if self.seen and len(self._tokenizer) < FEW_TOKENS:
            _LOG.warning(
                "%s is a small model from scratch, which knows only the words of its training levels: where a suite "
                "has others, its replies are malformed. `ragen-agent eval RUN` measures it on the levels of its run.",
                self.name,
            )
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
        limit = self._limit(task, len(ids), sum(image.tokens for image in images))
        temperature, seed = max(task.temperature, _COLDEST), mix(task.seed + len(messages))
        return await self._replies.reply(Request(ids, images, limit, temperature, seed, begun))

    async def close(self) -> None:
        """Stop generating, and wait for the thread; the next request would start it again."""
        self._replies.close()

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

    def _answer(self, request: Request, sampled: Sampled) -> Answer | AgentFailure:
        if not all(map(isfinite, sampled.log_probs)):
            return AgentFailure(Failure.MODEL_ERROR, "the model's logits are not numbers")
        return answer_of(self._tokenizer, len(request.ids), sampled.ids, self._engine.stop_ids, request.begun)


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
