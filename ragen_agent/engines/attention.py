"""Attention of one new token over cached keys, for the CPU: two batched products instead of the general kernel.

A decoded token has one query a head, and PyTorch's general attention is slow there on a CPU. Query heads that share
keys (grouped-query attention) are read as several queries of one head, so that no key is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["decoding"]

NAME = "ragen_decoding"
PLAIN = "sdpa"
EXTRAS = ("softcap", "s_aux", "sinks", "position_bias")  # what some families add to attention


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extras: Any,
) -> tuple[Tensor, None]:
    """One query a row: query (rows, heads, 1, size), key and value (rows, key heads, columns, size)."""
    rows, heads, width, size = query.shape
    if width > 1 or attention_mask is None or any(extras.get(name) is not None for name in EXTRAS):
        output, _ = ALL_ATTENTION_FUNCTIONS[PLAIN](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **extras
        )
        return output, None
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], size)
    scores = grouped @ key.transpose(2, 3) * (size**-0.5 if scaling is None else scaling) + attention_mask
    output = scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value
    return output.reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def decoding(model: PreTrainedModel) -> Iterator[None]:
    """Within it `model` attends as above, where it runs on a CPU by PyTorch's general kernel."""
    config = model.config
    if config._attn_implementation != PLAIN or model.device.type != "cpu":
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = PLAIN
