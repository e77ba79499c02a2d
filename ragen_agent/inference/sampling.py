"""Sampling of the next token: the restricted distribution and the draw.

Tokens are drawn by inverting the cumulative distribution over ids: one uniform number decides, so a draw depends only
on the request's own logits and numbers. Sums are taken over blocks of ids, then within the block that the number falls
into, so a large vocabulary is read once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
)

from ragen_agent.inference.vision import vision_of

__all__ = ["SUPPRESSED", "Sampler", "draw", "draw_at", "keep_likeliest", "suppression"]

_LOG = logging.getLogger(__name__)

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

#: Unsupported options of a generation config that change logits, and their neutral values.
IGNORED: Mapping[str, Any] = {
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "num_beams": 1,
    "sequence_bias": None,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}


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


class Sampler:
    """Draws tokens from a model's logits.

    Suppressed ids, repetition, n-grams and bad words of the model's generation config are handled as in
    ``transformers``. Other options that change logits are ignored with a warning.

    Args:
        model: the model; gives the device and the generation config.
        top_p: share of probability to sample from, above 0 and up to 1.
        top_k: number of most likely ids to sample from, ties with the last included; 0 for all.
        stop_ids: ids that end a reply.
    """

    def __init__(self, model: PreTrainedModel, top_p: float, top_k: int, stop_ids: Sequence[int]) -> None:
        self.top_p, self.top_k = top_p, top_k
        self.processors: list[LogitsProcessor] = []
        self.bias, self.suppressed_first = suppression(model), None
        config = model.generation_config
        if config is None:
            return
        if config.repetition_penalty not in (None, 1.0):
            self.processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        if config.no_repeat_ngram_size:
            self.processors.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if config.bad_words_ids:
            self.processors.append(NoBadWordsLogitsProcessor(config.bad_words_ids, list(stop_ids) or None))
        if config.begin_suppress_tokens:
            self.suppressed_first = torch.tensor(config.begin_suppress_tokens, device=model.device)
        ignored = [name for name, none in IGNORED.items() if getattr(config, name, None) not in (None, none)]
        if ignored:
            _LOG.warning("the model's generation config sets %s, which is not supported", ", ".join(ignored))

    def __call__(
        self,
        logits: Tensor,
        histories: Sequence[Sequence[int]],
        begins: Sequence[bool],
        temperatures: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        """An id for each row.

        Args:
            logits: floats (rows, vocabulary).
            histories: the ids of each row, prompt and reply; only read if ``reads_histories``.
            begins: for each row, True at the start of its reply.
            temperatures: float32 (rows,); 0 takes the most likely id.
            numbers: float64 (rows,) in [0, 1), each row's uniform number.

        Returns:
            int64 (rows,) on the CPU.
        """
        parts = _parts(logits)
        if len(parts) > 1:
            return torch.cat([self(logits[p], histories[p], begins[p], temperatures[p], numbers[p]) for p in parts])
        logits = logits.to(torch.float32, copy=True)
        if self.processors:
            logits = torch.cat([self._processed(history, logits[i, None]) for i, history in enumerate(histories)])
        logits.add_(self.bias)
        if self.suppressed_first is not None:
            for row in (row for row, begin in enumerate(begins) if begin):
                logits[row, self.suppressed_first] = -torch.inf
        temperatures, numbers = temperatures.to(logits.device), numbers.to(logits.device)
        chosen = logits.argmax(-1)
        warm = torch.nonzero(temperatures > 0).squeeze(1)
        if len(warm):
            scaled = logits if len(warm) == len(logits) else logits[warm]
            scaled.div_(temperatures[warm, None])
            each = torch.arange(len(warm), device=logits.device)
            chosen[warm], _ = draw(keep_likeliest(scaled, self.top_p, self.top_k), each, numbers[warm])
        return chosen.cpu()

    @property
    def reads_histories(self) -> bool:
        """True if earlier tokens of a row change its logits."""
        return bool(self.processors)

    def _processed(self, history: Sequence[int], logits: Tensor) -> Tensor:
        ids = torch.tensor([list(history)], device=logits.device)
        for processor in self.processors:
            logits = processor(ids, logits)
        return logits


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
    temperature: float, logits: Tensor, bias: Tensor, of_draw: Tensor, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """Ids drawn by inversion at a temperature, and their log-probs.

    Args:
        temperature: above 0.
        logits: floats (rows, vocabulary).
        bias: float32 (vocabulary,), added to the logits.
        of_draw: int64 (draws,), the row of logits for each draw.
        numbers: floats (draws,) in [0, 1).

    Returns:
        int64 and float32 (draws,), both on the CPU.
    """
    if logits.shape[1] < LARGE_VOCABULARY:
        scaled = (logits.float() + bias) / temperature
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
            scaled.add_(bias).div_(temperature)
            ids[draws], scores[draws] = draw(scaled, of_draw[draws] - part.start, numbers[draws].double())
    return ids.cpu(), scores.cpu()


def _parts(logits: Tensor) -> list[slice]:
    """Rows of logits that are processed at a time."""
    size = max(1, (LOGITS_AT_ONCE if logits.is_cpu else LOGITS_ON_GPU) // logits.shape[1])
    return [slice(first, first + size) for first in range(0, len(logits), size)]
