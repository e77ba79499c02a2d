"""Sampling of the next token: the restricted distribution and the draw.

Tokens are drawn by inverting the cumulative distribution over ids: one uniform number decides, so a draw depends only
on the request's own logits and numbers. Sums are taken over blocks of ids, then within the block that the number falls
into, so a large vocabulary is read once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.inference.vision import vision_of

SUPPRESSED = -1e9
"""Added to the logit of a suppressed id: its probability is exactly 0, and gradients stay finite."""

BLOCK = 256
"""Ids whose probabilities are summed first."""

FIRST = 1024
"""Number of most likely ids among which ``top_p`` is searched before all ids are sorted."""

LARGE_VOCABULARY = 4096
"""Vocabulary size from which ``draw_at`` sums over blocks of ids; below it one sum is faster."""

LOGITS_AT_ONCE = 2**20
"""Number of logits of a large vocabulary processed at a time, to fit the CPU's cache."""

LOGITS_ON_GPU = 2**25
"""The same on a GPU (128 MiB), where each time costs two synchronisations."""


def suppression(model: PreTrainedModel, vocabulary_size: int | None = None) -> Tensor:
    """Bias added to the logits so that some ids are never sampled, float32 (output layer,).

    It is ``SUPPRESSED`` at ``generation_config.suppress_tokens``, at ids from ``vocabulary_size`` on (output layers are
    often padded beyond the tokenizer's ids) and at a visual model's picture ids, and 0 elsewhere.

    Rollout and training both add it, so a suppressed id has probability 0 in both and their log-probs agree.
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
    if (vision := vision_of(model)) is not None:
        bias[sorted(vision.reserved_ids)] = SUPPRESSED
    return bias


def keep_likeliest(logits: Tensor, top_p: float, top_k: int) -> Tensor:
    """Logits (rows, vocabulary) with -inf at ids that are not sampled from.

    Like ``TopKLogitsWarper`` and then ``TopPLogitsWarper`` of transformers, but ties with the last id kept are kept
    too.
    """
    if 0 < top_k < logits.shape[1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p >= 1:
        return logits
    log_total = logits.logsumexp(-1, keepdim=True)
    ranked, share = _ranked(logits, log_total, min(FIRST, logits.shape[1]))
    if bool((share[:, -1] < top_p).any()):
        ranked, share = _ranked(logits, log_total, logits.shape[1])
    last = (share < top_p).sum(-1, keepdim=True).clamp(max=ranked.shape[1] - 1)  # the first that reaches the share
    return logits.masked_fill(logits < ranked.gather(1, last), -torch.inf)


def _ranked(logits: Tensor, log_total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest logits and their cumulative probabilities, both (rows, count)."""
    ranked = logits.topk(count).values
    return ranked, (ranked - log_total).double().exp().cumsum(-1)


def draw(logits: Tensor, of_draw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Ids drawn by inversion, several per row of logits if rows share a prefix, and their log-probs.

    Args:
        logits: float32 (rows, vocabulary), -inf at excluded ids.
        of_draw: int64 (draws,), the row of logits for each draw.
        numbers: float64 (draws,) in [0, 1).

    Returns:
        int64 and float32 (draws,).
    """
    rows, size = logits.shape
    blocks = -(-size // BLOCK)
    highest = logits.amax(-1, keepdim=True)
    weights = (logits - highest).exp_()
    if blocks * BLOCK > size:
        weights = torch.nn.functional.pad(weights, (0, blocks * BLOCK - size))
    weights = weights.view(rows, blocks, BLOCK)
    sums = weights.sum(-1).double().cumsum(-1)[of_draw]
    points = numbers[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, points, right=True)
    over = block == blocks  # rounded up to the very end
    block = block.clamp(max=blocks - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = weights[of_draw, block[:, 0]]
    within = torch.searchsorted(inside.double().cumsum(-1), points - before, right=True)
    last = BLOCK - 1 - (inside > 0).flip(-1).int().argmax(-1, keepdim=True)  # where a block's sum was rounded up
    within = torch.where(within < BLOCK, within, last)
    ids = (block * BLOCK + within)[:, 0]
    if over.any():
        ids = torch.where(over[:, 0], logits.argmax(-1)[of_draw], ids)
    return ids, logits[of_draw, ids] - highest[of_draw, 0] - sums[:, -1].log().float()


def draw_at(
    temperature: float,
    logits: Tensor,
    bias: Tensor,
    of_draw: Tensor,
    numbers: Tensor,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Tensor, Tensor]:
    """Ids drawn by inversion at a temperature, and their log-probs.

    Args:
        temperature: above 0.
        logits: floats (rows, vocabulary).
        bias: float32 (vocabulary,), added to the logits.
        of_draw: int64 (draws,), the row of logits for each draw.
        numbers: floats (draws,) in [0, 1).
        top_p: share of probability to sample from, above 0 and up to 1.
        top_k: number of most likely ids to sample from, 0 for all.

    Returns:
        int64 and float32 (draws,), both on the CPU.
    """
    if logits.shape[1] < LARGE_VOCABULARY:
        scaled = keep_likeliest((logits.float() + bias) / temperature, top_p, top_k)
        log_probs, cumulative = scaled.log_softmax(-1)[of_draw], scaled.softmax(-1).cumsum(-1)[of_draw]
        ids = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True).squeeze(1)
        if (over := ids == log_probs.shape[1]).any():  # draws rounded up to the very end
            ids = torch.where(over, log_probs.argmax(-1), ids)
        return ids.cpu(), log_probs.gather(1, ids[:, None]).squeeze(1).cpu()
    ids, scores = torch.zeros_like(of_draw), torch.zeros(len(of_draw), device=logits.device)
    for part in _parts(logits):
        draws = torch.nonzero((of_draw >= part.start) & (of_draw < part.stop)).squeeze(1)
        if len(draws):
            scaled = logits[part].to(torch.float32, copy=True)
            scaled = keep_likeliest(scaled.add_(bias).div_(temperature), top_p, top_k)
            ids[draws], scores[draws] = draw(scaled, of_draw[draws] - part.start, numbers[draws].double())
    return ids.cpu(), scores.cpu()


def _parts(logits: Tensor) -> list[slice]:
    """Rows of logits that are processed at a time."""
    size = max(1, (LOGITS_AT_ONCE if logits.is_cpu else LOGITS_ON_GPU) // logits.shape[1])
    return [slice(first, first + size) for first in range(0, len(logits), size)]
