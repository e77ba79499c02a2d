"""Does the reasoning still depend on the prompt? Mutual information, conditional entropy, retrieval accuracy.

RAGEN-2 (arXiv 2604.06268, section on diagnostics): reasoning Z is sampled for each of P prompts X, K times, and every
reasoning is scored under every prompt by teacher forcing. In *template collapse* the reasoning stays varied, so that
the conditional entropy stays high, but it no longer says anything about its prompt, so that the mutual information
falls and the prompt cannot be retrieved from it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Information", "information"]


class Information(NamedTuple):
    """Means over the samples that have any reasoning; nats a token."""

    mutual_information: float
    """I(X; Z), at most log(P) / |Z|; it may come out below 0, as an estimate can."""
    conditional_entropy: float
    """H(Z | X), at least 0."""
    retrieval_accuracy: float
    """The share of reasonings that are likeliest under their own prompt, in [0, 1]."""
    chance: float
    """What guessing the prompt would score: 1 / P."""
    samples: int
    """How many samples had any reasoning."""


def information(log_probs: Tensor, lengths: Tensor) -> Information:
    """The three estimates (RAGEN-2).

    With L_ikj = log p(Z_ik | X_j): matched = L_iki / |Z_ik|, marginal = (1 / |Z_ik|) log((1 / P) sum_j exp L_ikj),
    I(X; Z) = mean(matched - marginal), H(Z | X) = -mean(matched), and the accuracy is mean[i = argmax_j L_ikj].

    Args:
        log_probs: float (P, K, P), L_ikj: the sum over the tokens of sample k of prompt i under prompt j.
        lengths: integers (P, K), |Z_ik|. A sample without reasoning (0) says nothing and is left out.

    Returns:
        see `Information`. Where several prompts score equally best, the sample counts as that share of a hit, so
        that a policy that ignores its prompt scores the chance.

    Raises:
        ValueError: other shapes, fewer than two prompts, or no sample with reasoning.
    """
    prompts = log_probs.shape[-1]
    if log_probs.ndim != 3 or log_probs.shape[0] != prompts or lengths.shape != log_probs.shape[:2] or prompts < 2:
        raise ValueError(
            f"log_probs {tuple(log_probs.shape)} and lengths {tuple(lengths.shape)} do not fit; give (P, K, P) and "
            "(P, K) with at least two prompts"
        )
    said = lengths > 0
    if not bool(said.any()):
        raise ValueError("no sample has any reasoning, so there is nothing to measure; does the policy think at all?")
    scores = log_probs.double()
    own = torch.diagonal(scores, dim1=0, dim2=2).T  # (P, K)
    size = lengths.clamp(min=1).double()
    matched = own / size
    marginal = (torch.logsumexp(scores, dim=2) - math.log(prompts)) / size
    best = scores == scores.amax(dim=2, keepdim=True)
    hits = (own == scores.amax(dim=2)).double() / best.sum(dim=2)
    return Information(
        mutual_information=float((matched - marginal)[said].mean()),
        conditional_entropy=-float(matched[said].mean()),
        retrieval_accuracy=float(hits[said].mean()),
        chance=1 / prompts,
        samples=int(said.sum()),
    )
