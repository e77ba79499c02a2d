"""Forward passes over tokens of many conversations, packed: one sequence without padding, attention by conversation.

A pass reads new tokens of several conversations: the last token of a reply in progress, or the new prompt and messages
of a conversation that has just joined. Everything but attention treats the tokens as one sequence (1, tokens).
Attention reads, for each conversation, the keys and values of its own slot. Conversations that read one token are
batched if their slots are neighbours; each batch is as long as its longest conversation.

PyTorch's fused attention reads the slots in place, with or without unused columns, so the cache is rarely enlarged, and
slots are never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache, PreTrainedModel

from ragen_agent.inference.attention import attend, attention_windows, cache_argument, use_attention
from ragen_agent.inference.weights import PrepackedLinears

__all__ = ["PackedModel", "Segment"]

RUN = 16
"""Maximum number of neighbouring slots in one batch of attention."""

COLUMN_STEP = 64
"""Columns are allocated in multiples of this, with 50 % spare."""


@dataclass(frozen=True)
class Segment:
    """New tokens of one conversation.

    Attributes:
        slot: the slot of its keys and values.
        start: number of its tokens read before.
        ids: the tokens read now, at least one.
    """

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        """Number of its tokens read after this pass."""
        return self.start + len(self.ids)


class _Part:
    """Tokens ``first`` to ``last - 1`` of a pass, for one attention call: of one slot, or one each of several."""

    def __init__(self, first: int, segments: Sequence[Segment]) -> None:
        self.single = len(segments[0].ids) == 1
        self.first = first
        self.last = first + sum(len(segment.ids) for segment in segments)
        self.slots = slice(segments[0].slot, segments[-1].slot + 1)
        self.columns = max(segment.end for segment in segments)
        self.starts = [segment.start for segment in segments]
        self.masks: dict[int | None, Tensor | None] = {}

    def mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """The additive mask of the scores, (slots, 1, tokens of each, columns); None if nothing is masked."""
        if window not in self.masks:
            width = 1 if self.single else self.last - self.first
            late = self.columns > min(self.starts) + 1
            early = window is not None and max(self.starts) + width > window
            self.masks[window] = self._mask(window, width, like) if late or early else None
        return self.masks[window]

    def _mask(self, window: int | None, width: int, like: Tensor) -> Tensor:
        device = like.device
        starts, columns = torch.tensor(self.starts, device=device), torch.arange(self.columns, device=device)
        position = (starts[:, None] + torch.arange(width, device=device))[:, None, :, None]
        hidden = columns > position if window is None else (columns > position) | (columns <= position - window)
        return torch.zeros(hidden.shape, dtype=like.dtype, device=device).masked_fill_(hidden, -torch.inf)


class _Pass:
    """The layout of one pass.

    Args:
        segments: the segments read; single tokens come first, ordered by slot.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        slots = [segment.slot for segment in segments for _ in segment.ids]
        positions = [place for segment in segments for place in range(segment.start, segment.end)]
        self.slots, self.positions = torch.tensor(slots, device=device), torch.tensor(positions, device=device)
        self.parts: list[_Part] = []
        run: list[Segment] = []
        first = 0
        for segment in segments:
            joins = run and len(segment.ids) == len(run[-1].ids) == 1 and segment.slot == run[-1].slot + 1
            if run and not (joins and len(run) < RUN):
                self.parts.append(_Part(first, run))
                first, run = self.parts[-1].last, []
            run.append(segment)
        self.parts.append(_Part(first, run))


class PackedCache(Cache):
    """Keys and values of all slots, for each layer (slots, heads, columns, head size); the pass sets their places."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots, self.columns = slots, 0
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self.current: _Pass | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Not a length of any conversation: positions are given to the model."""
        return 0

    def reserve(self, columns: int) -> None:
        """Makes room for conversations of ``columns`` tokens; the content is kept."""
        if columns <= self.columns:
            return
        self.columns = -(-(columns + columns // 2) // COLUMN_STEP) * COLUMN_STEP
        for layer, buffers in self.buffers.items():
            grown = []
            for old in buffers:
                new = old.new_zeros(self.slots, old.shape[1], self.columns, old.shape[3])
                new[:, :, : old.shape[2]] = old
                grown.append(new)
            self.buffers[layer] = (grown[0], grown[1])
        if self.buffers:
            torch.cuda.empty_cache()  # frees the smaller buffers, which fit nothing later; no effect without CUDA

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keeps the states (1, heads, tokens, head size) of this pass; attention reads them from the cache."""
        assert self.current is not None
        new = (key_states, value_states)
        if layer_idx not in self.buffers:
            keys, values = (x.new_zeros(self.slots, x.shape[1], self.columns, x.shape[3]) for x in new)
            self.buffers[layer_idx] = (keys, values)
        for buffer, states in zip(self.buffers[layer_idx], new, strict=True):
            buffer[self.current.slots, :, self.current.positions] = states[0].transpose(0, 1)
        return new

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Slot ``target`` begins with the first tokens of slot ``source``."""
        for buffers in self.buffers.values():
            for buffer in buffers:
                buffer[target, :, :tokens] = buffer[source, :, :tokens]


def _attention(
    cache: PackedCache,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed pass: query (1, heads, tokens, head size), result (1, tokens, heads, head size)."""
    assert cache.current is not None
    assert isinstance(module.layer_idx, int)
    keys, values = cache.buffers[module.layer_idx]
    output = query.new_empty(query.shape[2], query.shape[1], values.shape[3])
    for part in cache.current.parts:
        chunk = query[0, :, part.first : part.last]  # (heads, tokens, head size)
        queries = chunk.transpose(0, 1)[:, :, None] if part.single else chunk[None]
        k, v = keys[part.slots, :, : part.columns], values[part.slots, :, : part.columns]
        mask = part.mask(sliding_window, query)
        if softcap is not None or s_aux is not None:
            out = attend(queries, k, v, mask, scaling, softcap, s_aux).flatten(0, 1)
        elif part.single:
            # Query heads that share keys are several queries of one head: a fraction of the time in bfloat16.
            grouped = queries.reshape(len(queries), k.shape[1], -1, queries.shape[3])
            out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling).flatten(1, 2)
        else:
            shared = k.shape[1] != queries.shape[1]
            out = scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=scaling, enable_gqa=shared)
            out = out[0].transpose(0, 1)
        output[part.first : part.last] = out
    return output[None], None


class PackedModel:
    """A model and a cache of ``slots`` conversations.

    Args:
        model: a causal LM of ``transformers``.
        slots: maximum number of conversations kept.

    Raises:
        ValueError: a model with custom attention, or with layer state other than keys and values.
    """

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        attention_windows(model)  # raises for other layers
        if not model._supports_attention_backend:
            raise ValueError(
                f"the model {model.config.model_type} has attention of its own, which the engine cannot replace; serve "
                "it by another program, such as vLLM, and ask that."
            )
        self.model, self.slots = model, slots
        self.cache = PackedCache(slots)
        self.cache_argument = cache_argument(model)
        self.linears = PrepackedLinears(model)

    def clear(self) -> None:
        """Forgets all conversations."""
        self.cache = PackedCache(self.slots)

    @torch.inference_mode()
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Slot ``target`` begins with the first tokens of slot ``source``."""
        self.cache.copy(source, target, tokens)

    @torch.inference_mode()
    def erase(self, slot: int) -> None:
        """Empties a slot: its NaNs would spoil all later tokens."""
        for buffers in self.cache.buffers.values():
            for buffer in buffers:
                buffer[slot] = 0

    @torch.inference_mode()
    def read(self, segments: Sequence[Segment], wanted: Sequence[bool]) -> Tensor:
        """Read tokens of several conversations, each in a slot of its own.

        Args:
            segments: the segments read; single tokens come first, ordered by slot.
            wanted: for each segment, True if the logits after it are needed; at least one is.

        Returns:
            the logits after the last token of each wanted segment, float (wanted, vocabulary).
        """
        device = self.model.device
        self.cache.reserve(max(segment.end for segment in segments))
        self.cache.current = _Pass(segments, device)
        ends, end = [], 0
        for segment, want in zip(segments, wanted, strict=True):
            end += len(segment.ids)
            ends += [end - 1] * want
        ids = torch.tensor([token for segment in segments for token in segment.ids], device=device)
        with use_attention(self.model, partial(_attention, self.cache)), self.linears.in_use():
            output = self.model(
                input_ids=ids[None],
                position_ids=self.cache.current.positions[None],
                **{self.cache_argument: self.cache},
                use_cache=True,
                logits_to_keep=torch.tensor(ends or [end - 1], device=device),
            )
        logits: Tensor = output.logits[0]
        return logits
