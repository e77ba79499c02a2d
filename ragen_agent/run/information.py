"""Mutual information of reasoning and prompt, by passes of the model that played.

RAGEN-2 (arXiv 2604.06268, section on diagnostics) scores each reasoning Z under every prompt X by teacher forcing. In
*template collapse* the reasoning stays varied, so the conditional entropy stays high, but it no longer depends on its
prompt, so the mutual information falls and the prompt cannot be retrieved from it.

Two samples are measured: the first turns of some levels, several episodes of each; and one turn of each of some
episodes, drawn at random, under the whole text before it. RAGEN's code has both (``collapse_first_turn_sample``,
``collapse_trajectory_sample``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragen_agent.inference.vision import ImageTable
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import reasoning_spans, smooth, turn_spans

PROMPTS, SAMPLES = 8, 4  # of the estimate from first turns
TURNS = 16  # of the estimate from all turns: as many passes
STD_EPS, EMA_WEIGHT = 1e-3, 0.1  # of the z-score, as in RAGEN's code

Ids = list[int]
Sample = tuple[Ids, Ids]  # the opening of the reasoning, such as <think>, and the reasoning
Samples = dict[tuple[int, ...], list[Sample]]  # by prompt


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
    marginal_std: float
    """Standard deviation, over n, of the samples' log-probs under the mixture of all prompts, at least 0."""
    retrieval_accuracy: float
    """The share of reasonings that are most likely under their own prompt, in [0, 1]."""
    retrieval_at_2: float
    """The share of reasonings whose own prompt is among the best 2."""
    retrieval_at_4: float
    """The share of reasonings whose own prompt is among the best 4."""
    retrieval_chance: float
    """The accuracy of guessing the prompt: 1 / P. Among the best k it is k / P."""


def information_figures(
    policy: MeasuredPolicy,
    played: Sequence[Trajectory],
    piece: Callable[[int], str],
    seed: int = 0,
    past: Sequence[Mapping[str, Any]] = (),
    own: Sequence[NDArray[np.bool_]] | None = None,
) -> dict[str, float]:
    """``Information`` of an iteration's first turns, and under ``turns_...`` of a sample of all its turns.

    Each comes with ``information_zscore``, the mutual information over ``marginal_std`` + 0.001, and
    ``information_zscore_ema``, where the std is its moving average (0.9 of the old value) over the records ``past``. A
    sample with fewer than two prompts or without reasoning is left out. ``seed`` draws the turns. ``own`` are
    the tokens of each episode that no episode before holds, None if no episodes branch: a first reply that the branches
    of a tree share is one sample.
    """
    images = ImageTable() if any(t.images for t in played) else None
    whole = [t for t in played if t.failure is None]
    mine = [t.sampled for t in played] if own is None else own
    firsts = [t for t, mask in zip(played, mine, strict=True) if t.failure is None and mask[t.turn_ends[0]]]
    figures: dict[str, float] = {}
    for prefix, found in (("", _first_turns(firsts, piece, images)), ("turns_", _turns(whole, piece, images, seed))):
        lengths = torch.tensor([[len(said) for _, said in samples] for samples in found.values()])
        if len(found) < 2 or not bool((lengths > 0).any()):
            continue
        rows = [([*p, *opening], said) for own in found.values() for opening, said in own for p in found]
        measured = information(policy.log_probs(rows, images).view(*lengths.shape, len(found)), lengths)
        stds = [record[f"{prefix}marginal_std"] for record in past if f"{prefix}marginal_std" in record]
        smoothed = smooth([*stds, measured.marginal_std], EMA_WEIGHT)[-1]
        scores = {
            "information_zscore": measured.mutual_information / (measured.marginal_std + STD_EPS),
            "information_zscore_ema": measured.mutual_information / (smoothed + STD_EPS),
        }
        figures |= {f"{prefix}{name}": value for name, value in (measured._asdict() | scores).items()}
    return figures


def _first_turns(played: Sequence[Trajectory], piece: Callable[[int], str], images: ImageTable | None) -> Samples:
    """Up to ``PROMPTS`` distinct prompts, with ``SAMPLES`` reasonings each, or as many as a level has."""
    found: Samples = {}
    for trajectory in played:
        prompt, sample = next(_reasonings(trajectory, piece, images))
        found.setdefault(prompt, []).append(sample)
    count = min(SAMPLES, max(map(len, found.values()), default=0))
    enough = [(prompt, samples[:count]) for prompt, samples in found.items() if len(samples) >= count]
    return dict(enough[:PROMPTS])


def _turns(played: Sequence[Trajectory], piece: Callable[[int], str], images: ImageTable | None, seed: int) -> Samples:
    """One turn with reasoning of each of up to ``TURNS`` episodes, both drawn at random, with distinct prompts."""
    random = np.random.default_rng(seed)
    found: Samples = {}
    for place in random.permutation(len(played)):
        parts = played[place].split_contexts()
        turns = [turn for part in parts for turn in _reasonings(part, piece, images) if turn[1][1]]
        if turns:
            prompt, sample = turns[random.integers(len(turns))]
            found.setdefault(prompt, [sample])
        if len(found) == TURNS:
            break
    return found


def _reasonings(
    trajectory: Trajectory, piece: Callable[[int], str], images: ImageTable | None
) -> Iterator[tuple[tuple[int, ...], Sample]]:
    """Of each turn the ids before it, and its reasoning."""
    ids = (trajectory.ids if images is None else images.keys(trajectory.ids, trajectory.images)).tolist()
    for (first, _), (start, end) in zip(turn_spans(trajectory), reasoning_spans(trajectory, piece), strict=True):
        yield tuple(ids[:first]), (ids[first:start], ids[start:end])


def information(log_probs: Tensor, lengths: Tensor) -> Information:
    """The estimates (RAGEN-2).

    With L_ikj = log p(Z_ik | X_j): matched = L_iki / |Z_ik|, marginal = (1 / |Z_ik|) log((1 / P) sum_j exp L_ikj),
    I(X; Z) = mean(matched - marginal), H(Z | X) = -mean(matched), and the accuracy is mean[i = argmax_j L_ikj]. If
    several prompts tie, the sample counts as the chance that its own is among the best when ties are broken at random,
    so a policy that ignores its prompt scores at chance.

    Args:
        log_probs: float (P, K, P), L_ikj: the sum over the tokens of sample k of prompt i under prompt j; P >= 2.
        lengths: integers (P, K), |Z_ik|. Samples without reasoning (0) are left out; at least one has some.
    """
    prompts, said, scores = log_probs.shape[-1], lengths > 0, log_probs.double()
    own = torch.diagonal(scores, dim1=0, dim2=2).T  # (P, K)
    size = lengths.clamp(min=1).double()
    matched = own / size
    marginal = (torch.logsumexp(scores, dim=2) - math.log(prompts)) / size
    better, tied = (scores > own[..., None]).sum(2), (scores == own[..., None]).sum(2)
    first, two, four = (float(((k - better) / tied).clamp(0, 1)[said].mean()) for k in (1, 2, 4))
    return Information(
        mutual_information=float((matched - marginal)[said].mean()),
        conditional_entropy=-float(matched[said].mean()),
        marginal_std=float(marginal[said].std(correction=0)),
        retrieval_accuracy=first,
        retrieval_at_2=two,
        retrieval_at_4=four,
        retrieval_chance=1 / prompts,
    )
