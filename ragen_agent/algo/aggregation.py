"""Aggregation of token terms into one loss.

With the token mean (the default) each sampled token of the batch has the same weight. With the sequence mean each
episode has, so a token of a long episode weighs less. The sequence sum and its constant-length form weigh tokens alike
too, but do not shrink when a batch's episodes grow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.config.algorithms import AGGREGATIONS


def aggregate(
    x: Tensor,
    mask: Tensor,
    how: str = "token_mean",
    *,
    length: int | None = None,
    count: float | None = None,
    row_tokens: Tensor | None = None,
) -> Tensor:
    """One number from the masked tokens of some rows.

    Args:
        x: float (rows, T). Masked-out entries may hold anything, NaN too.
        mask: bool (rows, T).
        how: a key of ``AGGREGATIONS``.
        length: the constant length of "constant", such as the maximum tokens of an episode; at least 1.
        count: ``loss_count`` of the whole minibatch, if it is processed in parts, so that the parts' losses add up to
            the minibatch's loss. None counts these rows.
        row_tokens: float (rows,), the masked tokens of each row's episode, where an episode is several rows. None takes
            each row as an episode.

    Returns:
        float scalar.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"how is {how!r}; it must be one of {', '.join(AGGREGATIONS)}")
    if how == "token_mean":
        return masked_mean(x, mask, count)
    check_shapes(x, mask)
    if mask.ndim != 2:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; give it as (rows, T)")
    number = loss_count(mask, how) if count is None else count
    if number <= 0 or (count is None and not bool(mask.any())):
        raise ValueError("the mask selects no token; skip the update when no token is left to learn from")
    sums = torch.where(mask, x, torch.zeros_like(x)).sum(dim=1)
    if how == "sequence_mean":
        sums = sums / (mask.sum(dim=1) if row_tokens is None else row_tokens).clamp(min=1)
    elif how == "constant":
        if length is None or length < 1:
            raise ValueError(f"length is {length}; 'constant' divides by it, so it must be at least 1")
        sums = sums / length
    return sums.sum() / number


def as_float(x: Tensor) -> Tensor:
    """Numbers as float: integers and bools in torch's default type, others unchanged."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def loss_count(mask: Tensor, how: str = "token_mean") -> int:
    """The divisor of ``aggregate``: the number of masked tokens, of rows, or of rows that have a masked token.

    Args:
        mask: bool (rows, T).
        how: a key of ``AGGREGATIONS``, whose ``divisor`` is counted.
    """
    divisor = AGGREGATIONS[how].divisor
    if divisor == "rows":
        return len(mask)
    return int((mask if divisor == "tokens" else mask.any(dim=1)).sum())


def masked_mean(x: Tensor, mask: Tensor, count: float | None = None) -> Tensor:
    """Sum of x over the mask divided by the number of masked entries.

    Args:
        x: float, any shape.
        mask: bool, the shape of x. Masked-out entries may hold anything, NaN too.
        count: divide by this number instead; see ``aggregate``.

    Returns:
        float scalar.
    """
    check_shapes(x, mask)
    number = int(mask.sum()) if count is None else count
    if number <= 0:
        raise ValueError("the mask selects no token; skip the update when no token is left to learn from")
    return torch.where(mask, x, torch.zeros_like(x)).sum() / number


def check_shapes(*tensors: Tensor) -> None:
    """Raises a ValueError unless all tensors have the shape of the mask, the last one, so that nothing broadcasts."""
    if any(tensor.shape != tensors[-1].shape for tensor in tensors):
        raise ValueError(f"the tensors must have one shape, got {[tuple(tensor.shape) for tensor in tensors]}")
