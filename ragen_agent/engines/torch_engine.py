"""The engine in this process: any Hugging Face causal LM, one batch, one key-value cache kept over all turns.

A turn is fed as one right-padded chunk (the template's glue and the next message), then decoded one token at a time
for all rows together. Cache columns that hold padding, of shorter chunks and of rows that ended their turn early,
stay masked, and every token has its own row's position, so the log-probs are those of the unpadded row. Nothing is
prefilled twice. Rows whose episode ended are dropped from the cache between turns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ragen_agent.engines import Sampled

__all__ = ["SUPPRESSED", "TorchEngine", "suppression"]

SUPPRESSED = -1e9
"""Added to a logit that may not be sampled: probability exactly 0, yet finite, so no gradient is 0 times infinity."""


class _BufferedLayer(DynamicLayer):
    """Keys and values in a buffer with spare columns, so that a decoded token costs a write and no copy."""

    def __init__(self, columns: int = 128) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.columns = columns
        self.used = 0
        self.buffers: list[Tensor] = []  # keys and values, each (rows, heads, columns, head size)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, self.used = self.used, self.used + key_states.shape[-2]
        if not self.buffers or self.used > self.buffers[0].shape[-2]:
            self.columns = max(self.columns, 2 * self.used)
            self.buffers = [self._grown(i, new) for i, new in enumerate((key_states, value_states))]
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start : self.used] = new
        self.is_initialized = True
        self.keys, self.values = (buffer[:, :, : self.used] for buffer in self.buffers)
        return self.keys, self.values

    def _grown(self, index: int, like: Tensor) -> Tensor:
        buffer = like.new_zeros((*like.shape[:2], self.columns, like.shape[-1]))
        if self.buffers:
            old = self.buffers[index]
            buffer[:, :, : old.shape[-2]] = old
        return buffer

    def select(self, rows: Tensor) -> None:
        self.buffers = [buffer.index_select(0, rows) for buffer in self.buffers]
        self.keys, self.values = (buffer[:, :, : self.used] for buffer in self.buffers)


def suppression(model: PreTrainedModel, vocabulary_size: int | None = None) -> Tensor:
    """What is added to the logits so that some ids are never written, float32 (output layer,).

    `SUPPRESSED` at `generation_config.suppress_tokens` and at ids from `vocabulary_size` on (output layers are often
    padded beyond the tokenizer's ids), 0 elsewhere.

    Rollout and training both add it, so a suppressed id has probability zero in both and their log-probs agree.
    """
    weight = model.get_output_embeddings().weight
    assert isinstance(weight, Tensor)
    bias = torch.zeros(len(weight), device=weight.device)
    generation = model.generation_config
    suppressed = generation.suppress_tokens if generation is not None else None
    if suppressed:
        bias[torch.as_tensor(suppressed, device=weight.device)] = SUPPRESSED
    if vocabulary_size is not None:
        bias[vocabulary_size:] = SUPPRESSED
    return bias


class TorchEngine:
    """Samples from `model` in place; it reads the weights as they are at each call, so a trainer just goes on.

    `stop_ids`: ids that end a reply. `vocabulary_size`: see `suppression`. `pad_id`: any valid id, used where the
    mask hides it.
    """

    def __init__(
        self, model: PreTrainedModel, stop_ids: Collection[int], vocabulary_size: int | None = None, pad_id: int = 0
    ) -> None:
        self.model = model
        self.stop_ids = tuple(sorted(stop_ids))
        self.pad_id = pad_id
        self.bias = suppression(model, vocabulary_size)

    def start(self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int) -> TorchSession:
        """Opens a session; raises ValueError for an empty prompt or a temperature that is not positive."""
        if temperature <= 0:
            raise ValueError(
                f"temperature is {temperature}; it must be positive (0.5 is the usual one for evaluation)."
            )
        if not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, and no prompt may be empty.")
        return TorchSession(self, prompts, temperature, seed)


class TorchSession:
    """Rows in play against one cache; see `ragen_agent.engines.Session`."""

    def __init__(self, engine: TorchEngine, prompts: Sequence[Sequence[int]], temperature: float, seed: int) -> None:
        self.engine = engine
        self.device = engine.bias.device
        self.temperature = temperature
        self.generator = torch.Generator().manual_seed(seed)  # on the CPU: the same draws for every device
        self.cache = Cache(layer_class_to_replicate=_BufferedLayer)
        self.visible = torch.zeros(len(prompts), 0, dtype=torch.bool, device=self.device)  # (rows, cache columns)
        self.positions = torch.zeros(len(prompts), dtype=torch.long, device=self.device)  # next position of each row
        self.pending = [list(prompt) for prompt in prompts]  # ids that the cache does not hold yet

    @torch.inference_mode()
    def reply(self, limits: Sequence[int]) -> list[Sampled]:
        """See `Session.reply`."""
        rows = len(self.pending)
        if len(limits) != rows or min(limits) < 1:
            raise ValueError(f"{rows} rows need {rows} limits of at least 1, not {list(limits)}.")
        logits = self._feed_pending()
        left = torch.as_tensor(limits)
        stop = torch.as_tensor(self.engine.stop_ids)
        active = torch.ones(rows, dtype=torch.bool)
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        while True:
            tokens, log_probs = self._draw(logits)
            columns.append((tokens, log_probs, active))
            left = left - 1
            active = active & (left > 0) & ~torch.isin(tokens, stop)
            if not active.any():
                break
            logits = self._step(torch.where(active, tokens, self.engine.pad_id), active)
        replies = [
            Sampled(*(part[row][drawn[row]].tolist() for part in (ids, scores)))
            for ids, scores, drawn in [tuple(torch.stack(c, 1) for c in zip(*columns, strict=True))]
            for row in range(rows)
        ]
        self.pending = [[reply.ids[-1]] for reply in replies]  # drawn last, never fed: its turn ended there
        return replies

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """See `Session.feed`."""
        self.pending = [self.pending[row] + list(new) for row, new in zip(rows, ids, strict=True)]
        if len(rows) < len(self.positions):
            kept = torch.as_tensor(list(rows), device=self.device)
            self.visible, self.positions = self.visible[kept], self.positions[kept]
            for layer in self.cache.layers:
                assert isinstance(layer, _BufferedLayer)
                layer.select(kept)

    def _feed_pending(self) -> Tensor:
        """Feeds what waits, right-padded; returns the logits after each row's last id, (rows, vocabulary)."""
        lengths = torch.tensor([len(ids) for ids in self.pending], device=self.device)
        width = int(lengths.max())
        pad = self.engine.pad_id
        chunk = torch.tensor([ids + [pad] * (width - len(ids)) for ids in self.pending], device=self.device)
        offsets = torch.arange(width, device=self.device)
        inside = offsets < lengths[:, None]
        logits = self._forward(chunk, self.positions[:, None] + offsets, inside)
        self.positions = self.positions + lengths
        return logits[torch.arange(len(lengths), device=self.device), lengths - 1]

    def _step(self, tokens: Tensor, active: Tensor) -> Tensor:
        active = active.to(self.device)
        logits = self._forward(tokens.to(self.device)[:, None], self.positions[:, None], active[:, None])
        self.positions = self.positions + active
        return logits[:, 0]

    def _forward(self, ids: Tensor, positions: Tensor, inside: Tensor) -> Tensor:
        """Feeds ids (rows, width) as new columns, seen where `inside`; returns logits (rows, width, vocabulary)."""
        before = self.visible.shape[1]
        self.visible = torch.cat([self.visible, inside], dim=1)
        width = ids.shape[1]
        causal = torch.ones(width, before + width, dtype=torch.bool, device=self.device).tril(before)
        allowed = self.visible[:, None, None, :] & causal
        dtype = self.engine.model.dtype
        mask = torch.zeros(allowed.shape, dtype=dtype, device=self.device).masked_fill_(
            ~allowed, torch.finfo(dtype).min
        )
        output = self.engine.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        logits: Tensor = output.logits
        return logits

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """One id for each row by inversion of its distribution, and its log-prob; both of shape (rows,), on the CPU."""
        log_probs = ((logits.float() + self.engine.bias) / self.temperature).log_softmax(-1).cpu()
        cumulative = log_probs.exp().cumsum(-1)
        uniform = torch.rand(len(log_probs), 1, generator=self.generator) * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, uniform, right=True).squeeze(1)
        ids = torch.where(ids < log_probs.shape[1], ids, log_probs.argmax(-1))  # a draw rounded up to the very end
        return ids, log_probs.gather(1, ids[:, None]).squeeze(1)
