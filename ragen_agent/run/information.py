"""Mutual information of reasoning and prompt, by passes of the model that played.

RAGEN-2 (arXiv 2604.06268, section on diagnostics) scores each reasoning Z under every prompt X by teacher forcing. In
*template collapse* the reasoning stays varied, so the conditional entropy stays high, but it no longer depends on its
prompt, so the mutual information falls and the prompt cannot be retrieved from it. The sample is the first turns of
some levels, several episodes of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ragen_agent.inference.vision import ImageTable
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import reasoning_spans, turn_spans

__all__ = ["Information", "MeasuredPolicy", "information", "information_figures"]

PROMPTS, SAMPLES = 8, 4

Ids = list[int]
Sample = tuple[Ids, Ids]  # the opening of the reasoning, such as <think>, and the reasoning


class MeasuredPolicy(Protocol):
    """The policy that played an iteration."""

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """The log-prob of each row's second part after its first, float64 (rows,), by teacher forcing.

        Both are token ids, with visual tokens as numbered by ``images``; the value is 0 if the second part is empty.
        """
        ...


class Information(NamedTuple):
    """Means over the samples that have any reasoning; nats a token."""

    mutual_information: float
    """I(X; Z), at most log(P) / |Z|; the estimate may be below 0."""
    conditional_entropy: float
    """H(Z | X), at least 0."""
    retrieval_accuracy: float
    """The share of reasonings that are most likely under their own prompt, in [0, 1]."""
    retrieval_chance: float
    """The accuracy of guessing the prompt: 1 / P."""


def information_figures(
    policy: MeasuredPolicy, played: Sequence[Trajectory], piece: Callable[[int], str]
) -> dict[str, float]:
    """``Information`` of an iteration's first turns; empty with fewer than two prompts or without reasoning."""
    images = ImageTable() if any(t.images for t in played) else None
    found = _first_turns([t for t in played if t.failure is None], piece, images)
    lengths = torch.tensor([[len(said) for _, said in samples] for _, samples in found])
    if len(found) < 2 or not bool((lengths > 0).any()):
        return {}
    rows = [(prompt + opening, said) for _, own in found for opening, said in own for prompt, _ in found]
    return information(policy.log_probs(rows, images).view(*lengths.shape, len(found)), lengths)._asdict()


def _first_turns(
    played: Sequence[Trajectory], piece: Callable[[int], str], images: ImageTable | None
) -> list[tuple[Ids, list[Sample]]]:
    """Up to ``PROMPTS`` distinct prompts, with ``SAMPLES`` reasonings each, or as many as a level has."""
    found: dict[tuple[int, ...], list[Sample]] = {}
    for t in played:
        ids = (t.ids if images is None else images.keys(t.ids, t.images)).tolist()
        (first, _), (start, end) = turn_spans(t)[0], reasoning_spans(t, piece)[0]
        found.setdefault(tuple(ids[:first]), []).append((ids[first:start], ids[start:end]))
    count = min(SAMPLES, max(map(len, found.values()), default=0))
    enough = [(list(prompt), samples[:count]) for prompt, samples in found.items() if len(samples) >= count]
    return enough[:PROMPTS]


def information(log_probs: Tensor, lengths: Tensor) -> Information:
    """The estimates (RAGEN-2).

    With L_ikj = log p(Z_ik | X_j): matched = L_iki / |Z_ik|, marginal = (1 / |Z_ik|) log((1 / P) sum_j exp L_ikj),
    I(X; Z) = mean(matched - marginal), H(Z | X) = -mean(matched), and the accuracy is mean[i = argmax_j L_ikj]. If
    several prompts tie, ties are broken at random in expectation, so a policy that ignores its prompt scores at chance.

    Args:
        log_probs: float (P, K, P), L_ikj: the sum over the tokens of sample k of prompt i under prompt j; P >= 2.
        lengths: integers (P, K), |Z_ik|. Samples without reasoning (0) are left out; one has some.
    """
    prompts, said = log_probs.shape[-1], lengths > 0
    scores = log_probs.double()
    own = torch.diagonal(scores, dim1=0, dim2=2).T  # (P, K)
    size = lengths.clamp(min=1).double()
    matched = own / size
    marginal = (torch.logsumexp(scores, dim=2) - math.log(prompts)) / size
    tied = (scores == own[..., None]).sum(2)
    first = (scores <= own[..., None]).all(2) / tied
    return Information(
        mutual_information=float((matched - marginal)[said].mean()),
        conditional_entropy=-float(matched[said].mean()),
        retrieval_accuracy=float(first[said].mean()),
        retrieval_chance=1 / prompts,
    )
