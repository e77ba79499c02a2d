"""Sampling within transformers' `generate` from a generator of its own for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["inversion", "own_the_sampling"]


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
