"""Scores of sampled tokens under the current model: log-probs, entropies, and gradients through both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ragen_agent.inference.sampling import SUPPRESSED
from ragen_agent.update.batches import Batch
from ragen_agent.update.prefix_tree import PrefixTree, parts_of, shares_prefixes

TOKENS_PER_PASS = 4096
"""Maximum distinct prefixes per forward pass. With more, each part is recomputed in the backward pass, to bound the
memory for its gradient."""

LOGITS_PER_PASS = 2**28
"""Maximum logits per forward pass: 1 GiB in float32, and as much for their gradient."""

LOGITS_AT_ONCE = 2**22
"""Number of logits normalised at a time, to fit the CPU's cache."""


class Scores(NamedTuple):
    """Scores of the sampled tokens of a batch; each (rows, width), 0 or False elsewhere."""

    log_probs: Tensor
    """float32, with gradient."""
    entropy: Tensor
    """float32, with gradient: entropy of the token's distribution, in nats."""
    likeliest: Tensor
    """bool: True if no other token was more likely."""


def tokens_per_pass(vocabulary: int) -> int:
    """Maximum tokens per forward pass of a model with an output layer of this width; at least 1."""
    return max(1, min(TOKENS_PER_PASS, LOGITS_PER_PASS // vocabulary))


def sampled_scores(model: PreTrainedModel, batch: Batch, bias: Tensor, temperature: float = 1.0) -> Scores:
    """Scores the sampled tokens by teacher forcing; every distinct prefix is computed once, see ``prefix_tree``.

    Args:
        model: any causal LM.
        batch: rows to score.
        bias: (vocabulary,), 0 or ``SUPPRESSED``: ``ragen_agent.inference.sampling.suppression``.
        temperature: the sampling temperature, above 0; the engine's log-probs include it too.
    """
    read = batch.split_contexts()
    found = (_by_prefixes if shares_prefixes(model) else _padded)(model, read, bias, temperature)
    return Scores(
        *(torch.zeros_like(batch.sampled, dtype=one.dtype).masked_scatter(batch.sampled, one) for one in found)
    )


def passes(model: PreTrainedModel, batch: Batch) -> list[Tensor]:
    """Rows, int64 (some,) each, that ``sampled_scores`` computes in one pass.

    An update with a backward pass after each of them computes nothing twice, and needs memory for one pass only.
    """
    limit, rows = tokens_per_pass(_vocabulary(model)), torch.arange(len(batch.ids), device=batch.ids.device)
    if not shares_prefixes(model):
        read = batch.split_contexts().ids
        return list(rows.split(max(1, _rows_per_pass(model, read.shape[1]) * len(rows) // len(read))))
    return [rows] if batch.tokens <= limit else [rows[some] for some in parts_of(batch.readings, limit)]


def _vocabulary(model: PreTrainedModel) -> int:
    width: int = model.config.get_text_config().vocab_size
    return width


def _rows_per_pass(model: PreTrainedModel, width: int) -> int:
    """Maximum padded rows per forward pass, bounded by their logits alone; at least 1."""
    return max(1, LOGITS_PER_PASS // _vocabulary(model) // width)


def _padded(model: PreTrainedModel, batch: Batch, bias: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """``Scores`` of the sampled tokens alone, in row-major order, by a model that reads padded rows."""

    def score(part: Batch) -> tuple[Tensor, ...]:
        rows, columns = part.sampled.nonzero(as_tuple=True)
        first = int(columns.min()) if len(columns) else 0  # nothing before it is scored: no logits needed
        # Padding is on the right, where causal attention never reads it.
        output = model(**part.inputs(model), use_cache=False, logits_to_keep=part.ids.shape[1] - first + 1)
        logits, drawn_from = output.logits[rows, columns - first], torch.arange(len(rows), device=rows.device)
        return _scores(logits, part.ids[rows, columns], drawn_from, bias, temperature)

    parts = torch.arange(len(batch.ids), device=batch.ids.device).split(_rows_per_pass(model, batch.ids.shape[1]))
    if len(parts) == 1:
        return score(batch)
    return _joined(score, [(batch.rows(rows),) for rows in parts])


def _joined(score: Callable[..., tuple[Tensor, ...]], parts: Sequence[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    """The scores of all parts, one after another; of several each is computed again for its gradient."""
    if len(parts) == 1 or not torch.is_grad_enabled():
        found = [score(*part) for part in parts]
    else:
        found = [checkpoint(score, *part, use_reentrant=False) for part in parts]
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _by_prefixes(model: PreTrainedModel, batch: Batch, bias: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """``Scores`` of the sampled tokens alone, in row-major order."""

    def score(tree: PrefixTree, rows: Tensor) -> tuple[Tensor, ...]:
        sampled = batch.sampled[rows, : tree.node.shape[1]]
        nodes, drawn_from = tree.before(sampled).unique(return_inverse=True)
        with tree.attention(model) as inputs:
            logits = model(**inputs, use_cache=False, logits_to_keep=nodes).logits[0]
        return _scores(logits, batch.ids[rows, : sampled.shape[1]][sampled], drawn_from, bias, temperature)

    parts = list(PrefixTree.parts(batch.ids, batch.attention, tokens_per_pass(_vocabulary(model)), batch.images))
    # The parts hold rows in another order.
    order = torch.cat([rows for _, rows in parts])
    places = torch.arange(batch.sampled.numel(), device=order.device).view(batch.sampled.shape)[order]
    back = places[batch.sampled[order]].argsort()
    return tuple(one[back] for one in _joined(score, parts))


def _scores(
    logits: Tensor, chosen: Tensor, drawn_from: Tensor, bias: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``Scores`` of tokens, (tokens,) each, drawn from the rows ``drawn_from`` of logits (rows, vocabulary)."""
    log_probs, entropy, best = _Normalised.apply(  # type: ignore[no-untyped-call]
        logits, chosen, drawn_from, bias, temperature
    )
    return log_probs, entropy[drawn_from], best[drawn_from] == chosen


class _Normalised(Function):
    """Log-probs of chosen tokens and entropies of distributions, without a float32 copy of all logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, chosen: Tensor, drawn_from: Tensor, bias: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.temperature = temperature
        totals, entropies, best = [], [], []
        for x in _scaled(logits, bias, temperature):
            totals.append(x.logsumexp(-1))
            best.append(x.argmax(-1))
            log_probs = x.sub_(totals[-1][:, None])
            entropies.append(-(log_probs.exp() * log_probs).sum(-1))
        total, entropy = torch.cat(totals), torch.cat(entropies)
        ctx.save_for_backward(logits, chosen, drawn_from, bias, total, entropy)
        found = (logits[drawn_from, chosen].to(total.dtype) + bias[chosen]) / temperature - total[drawn_from]
        likeliest = torch.cat(best)
        ctx.mark_non_differentiable(likeliest)
        return found, entropy, likeliest

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """With p the probabilities and H the entropy: d log p_c = [c] - p, d H = -p (log p + H)."""
        logits, chosen, drawn_from, bias, total, entropy = ctx.saved_tensors
        of_log_probs, of_entropy = gradients[:2]
        summed = torch.zeros_like(total).index_add_(0, drawn_from, of_log_probs)
        gradient, first = torch.empty_like(logits), 0
        for x in _scaled(logits, bias, ctx.temperature):
            some = slice(first, first + len(x))
            log_probs = x.sub_(total[some, None])
            factor = (log_probs + entropy[some, None]).mul_(of_entropy[some, None]).add_(summed[some, None])
            gradient[some] = factor.mul_(log_probs.exp_()).mul_(-1 / ctx.temperature)
            first += len(x)
        gradient.index_put_((drawn_from, chosen), (of_log_probs / ctx.temperature).to(logits.dtype), accumulate=True)
        return gradient, None, None, None, None


def _scaled(logits: Tensor, bias: Tensor, temperature: float) -> Iterator[Tensor]:
    """Scaled logits, some rows at a time, at least float32; -inf becomes the value of suppressed ids.

    In the entropy a probability 0 is multiplied by its log, which would be NaN for -inf.
    """
    for part in logits.split(max(1, LOGITS_AT_ONCE // logits.shape[-1])):
        x = part.to(torch.promote_types(part.dtype, torch.float32)) + bias
        yield x.clamp_(min=SUPPRESSED).div_(temperature)
