"""``hf-vision:PATH``: a visual language model of Hugging Face transformers in this process, fed with pictures.

Models of the families Qwen2-VL and Qwen2.5-VL, with the same reading of pictures as training
(``ragen_agent.inference.vision``). Requests that wait together are generated together, up to ``batch`` of them, and a
reply is handed out when the last of its batch has ended.

Every request draws with uniform numbers of its own, by its episode and turn, so what it draws depends neither on its
neighbours in the batch nor on their number; the logits themselves may differ in the last bits with the batch's shape.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.agents.hf import answer_of, begun_reply, end_tokens, load_model, reply_limit, weights_hash
from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix
from ragen_gym.core.seen import find_seen
from ragen_gym.core.validation import check_number

if TYPE_CHECKING:
    from ragen_agent.inference import ImageSpan

__all__ = ["HFVisionAgent"]

_GATHER = 0.01  # seconds to wait for the requests of other episodes
_COLDEST = 1e-3  # what temperature 0 is taken for


class HFVisionAgent:
    """Generates in process.

    Args:
        path: a model's folder, with its tokenizer and its image processor.
        max_tokens: the most tokens of a reply; where a suite limits the tokens of a turn, the lower limit holds.
        batch: replies that are generated at once.
        device: ``"cpu"``, ``"cuda"``, …; "" for CUDA where there is one.
        dtype: ``"float32"``, ``"bfloat16"``, …; "" for float32 on a CPU, and the checkpoint's own on a GPU.
        template: variables of the chat template, such as ``{"enable_thinking": false}``.

    Raises:
        ValueError: the model cannot be loaded, is not a visual one of these families, or has no chat template.
        ImportError: transformers and torch are not installed.
    """

    whole_replies = True

    def __init__(
        self,
        path: str,
        *,
        max_tokens: int = 1024,
        batch: int = 16,
        device: str = "",
        dtype: str = "",
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, folder = f"hf-vision:{path}", Path(os.path.expanduser(path))
        check_number(self.name, "max_tokens", max_tokens, 1, whole=True)
        check_number(self.name, "batch", batch, 1, whole=True)
        if not folder.is_dir():
            raise ValueError(f"{self.name}: there is no such folder.")
        _, self._tokenizer, model, vision = load_model(self.name, str(folder), device, dtype, visual=True)
        from ragen_agent.inference.torch_engine import TorchEngine

        self._ends = end_tokens(self._tokenizer, model)
        self._engine = TorchEngine(model, self._ends, len(self._tokenizer), straggler_share=0.0)
        self._vision: Any = vision
        self._context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._max_tokens, self._template = max_tokens, dict(template or {})
        self.batch = self.concurrency = batch
        self._inbox: list[_Request] = []
        self._generating: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf-vision agent")
        self.seen = find_seen(str(folder))
        self.settings = {
            "max_tokens": max_tokens,
            "template": self._template,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": weights_hash(folder),
        }
        self.circumstances = {"device": model.device.type, "batch": batch}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """A reply.

        Raises:
            AgentFailure: the conversation leaves no room for a reply in the model's context, or its template takes no
                pictures.
        """
        ids, spans = self._read(messages)
        limit = reply_limit(self._max_tokens, task, self._context, len(ids), sum(span.tokens for span in spans))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        seed = mix(task.seed + len(messages))
        begun = begun_reply(self._tokenizer, messages, self._template)
        self._inbox.append(_Request(ids, spans, limit, max(task.temperature, _COLDEST), seed, answer, begun))
        if self._generating is None or self._generating.done():
            self._generating = asyncio.create_task(self._generate())
        return await answer

    async def close(self) -> None:
        """Wait for the batch that is being generated."""
        if self._generating is not None and not self._generating.done():
            await asyncio.wait([self._generating])
        self._thread.shutdown()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf-vision agent")

    def _read(self, messages: Sequence[Message]) -> tuple[list[int], list[ImageSpan]]:
        """The ids of a conversation with a placeholder for each visual token, and its pictures."""
        from ragen_agent.inference import ImageSpan

        pictures: list[Any] = []
        image_id, spans = self._vision.image_id, []
        image = self._tokenizer.convert_ids_to_tokens(image_id)

        def plain(text: str) -> str:  # with a space in each spelling of a placeholder, so that none is read as one
            return text.replace(image, f"{image[:1]} {image[1:]}")

        def taken(part: Mapping[str, Any]) -> Mapping[str, Any]:
            if part["type"] == "text":
                return {"type": "text", "text": plain(part["text"])}
            pictures.append(part["image"])
            return {"type": "image"}

        contents = [message["content"] for message in messages]
        contents = [plain(each) if isinstance(each, str) else [taken(part) for part in each] for each in contents]
        conversation = [{**message, "content": each} for message, each in zip(messages, contents, strict=True)]
        prompt = self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=True, **self._template
        )
        written = list(prompt["input_ids"])
        if written.count(image_id) != len(pictures):
            raise AgentFailure(
                Failure.MODEL_ERROR,
                f"the chat template writes {written.count(image_id)} placeholders for {len(pictures)} pictures: use a "
                "model whose template takes pictures",
            )
        ids: list[int] = []
        shown = iter(pictures)
        for token in written:
            if token == image_id:
                picture = next(shown)
                spans.append(ImageSpan(len(ids), self._vision.processor.grid(picture), picture))
                ids += [token] * spans[-1].tokens
            else:
                ids.append(token)
        return ids, spans

    async def _generate(self) -> None:
        await asyncio.sleep(_GATHER)
        while self._inbox:
            warm = self._inbox[0].temperature
            batch = [request for request in self._inbox if request.temperature == warm][: self.batch]
            self._inbox = [request for request in self._inbox if request not in batch]
            batch = [request for request in batch if not request.answer.done()]
            if not batch:
                continue
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._thread, self._sample, batch)
            except Exception as error:  # out of memory, say: the failure of the episodes whose replies are being made
                for request in batch:
                    if not request.answer.done():
                        failed = AgentFailure(Failure.MODEL_ERROR, f"{type(error).__name__}: {error}")
                        request.answer.set_exception(failed)
                continue
            for request, answer in zip(batch, found, strict=True):
                if not request.answer.done():  # whoever asked has stopped waiting
                    request.answer.set_result(answer)
            await asyncio.sleep(_GATHER)

    def _sample(self, batch: Sequence[_Request]) -> list[Answer]:
        session = self._engine.start(
            [request.ids for request in batch],
            temperature=batch[0].temperature,
            seed=0,
            episodes=[request.seed for request in batch],
            images=[request.images for request in batch],
        )
        try:
            sampled = session.reply([request.limit for request in batch])
        finally:
            session.close()
        return [
            answer_of(self._tokenizer, len(request.ids), one.ids, self._ends, request.begun)
            for request, one in zip(batch, sampled, strict=True)
            if one is not None
        ]


@dataclass(eq=False)
class _Request:
    ids: list[int]
    images: list[ImageSpan]
    limit: int
    temperature: float
    seed: int
    answer: asyncio.Future[Answer]
    begun: str  # what the prompt has begun of the reply
