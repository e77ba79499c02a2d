"""Attention of our own in the models of ``transformers``, registered once and called with any function.

Inference on a CPU needs it because PyTorch's general attention is slow for a decoded token, which has one query per
head; training along a prefix tree (``ragen_agent.update.prefix_tree``) needs another set of keys for each query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

GENERAL_ATTENTION = "sdpa"
OUR_ATTENTION = "ragen"
EXTENSIONS = ("softcap", "s_aux", "sinks", "position_bias")  # extras of some families' attention

_FUNCTION: ContextVar[Callable[..., tuple[Tensor, None]]] = ContextVar("attention")


def _attention(*states: Any, **extras: Any) -> tuple[Tensor, None]:
    return _FUNCTION.get()(*states, **extras)


AttentionInterface.register(OUR_ATTENTION, _attention)


@contextmanager
def use_attention(model: PreTrainedModel, function: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """Within it, ``model`` calls ``function`` as the attention of all layers."""
    configs = {id(config): config for config in (model.config, model.config.get_text_config())}.values()
    before = [config._attn_implementation for config in configs]
    token = _FUNCTION.set(function)
    try:
        for config in configs:
            config._attn_implementation = OUR_ATTENTION
        yield
    finally:
        _FUNCTION.reset(token)
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own


def decode_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within it, ``model`` reads single tokens by ``attend`` if it runs on a CPU with PyTorch's general kernel."""
    ours = model.config._attn_implementation == GENERAL_ATTENTION and model.device.type == "cpu"
    return use_attention(model, _decode) if ours else nullcontext()


def _decode(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    if query.shape[2] > 1 or attention_mask is None or any(extras.get(name) is not None for name in EXTENSIONS):
        general = ALL_ATTENTION_FUNCTIONS[GENERAL_ATTENTION]
        return general(module, query, key, value, attention_mask, scaling=scaling, **extras)[0], None
    return attend(query, key, value, attention_mask, scaling), None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention as two batched products.

    Query heads that share keys (grouped-query attention) are treated as several queries of one head, so no key is
    copied.

    Args:
        query: (rows, heads, width, head size).
        key: (rows, key heads, columns, head size).
        value: likewise.
        mask: added to the scores, (rows, 1, width, columns).
        scaling: of the scores; by default the inverse root of the head size.
        softcap: bound of the scores (Gemma 2).
        sinks: learned score of no key in each head, (heads,) (gpt-oss).

    Returns:
        (rows, width, heads, head size).
    """
    rows, heads, width, size = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, size)
    scores = grouped @ key.transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
    scores = scores.view(rows, heads, width, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).view(1, -1, 1, 1).expand(rows, -1, width, 1)], 3)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)[..., : key.shape[2]]
    output = weights.reshape(rows, key.shape[1], -1, key.shape[2]) @ value
    return output.reshape(rows, heads, width, -1).transpose(1, 2)


def attention_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The attention window of each kind of layer, by its name in ``transformers``; None is unlimited."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    known = {"full_attention": None, "sliding_attention": window}
    if kinds - set(known):
        raise ValueError(
            f"the model {model.config.model_type} has layers of the kinds {', '.join(sorted(kinds))}; the engine "
            "caches keys and values only, so it runs models whose layers are full or sliding-window attention."
        )
    return {kind: known[kind] for kind in sorted(kinds)}


def cache_argument(model: PreTrainedModel) -> str:
    """The cache's argument name in the model's forward pass; ``transformers`` renamed it."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
