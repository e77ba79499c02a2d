"""Per-iteration diagnostics and their timings, shared by both trainers.

Most figures need passes of the model: gradient norms of the parts of the loss, entropies by teacher forcing, and the
mutual information of reasoning and prompt. For the last, RAGEN-2 (arXiv 2604.06268, section on diagnostics) samples
reasoning Z for each of P prompts X, K times, and scores every reasoning under every prompt by teacher forcing. In
*template collapse* the reasoning stays varied, so the conditional entropy stays high, but it no longer depends on its
prompt, so the mutual information falls and the prompt cannot be retrieved from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ragen_agent.config import Config, Diagnostics
from ragen_agent.config.algorithms import GROUPINGS
from ragen_agent.inference.vision import ImageTable
from ragen_agent.run.alarm import History
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import reasoning_spans
from ragen_gym.core.stats import Rate

__all__ = [
    "QUANTILES",
    "Information",
    "MeasuredPolicy",
    "Monitor",
    "gradient_figures",
    "information",
    "information_figures",
    "rollout_entropy",
]

T = TypeVar("T")

QUANTILES = 4


class MeasuredPolicy(Protocol):
    """The policy that played an iteration; diagnostics never change it or its gradients."""

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """The log-prob of each row's second part after its first, float64 (rows,), by teacher forcing.

        Both are token ids, with visual tokens as numbered by ``images``; the value is 0 if the second part is empty.
        """
        ...

    def entropy(self, played: Sequence[Trajectory]) -> float:
        """The summed entropy, in nats, of the distributions from which the episodes' tokens were drawn."""
        ...

    def gradient_norms(self, iteration: Iteration, rows: Sequence[int]) -> dict[str, float]:
        """The gradient norms of the terms of the loss (``policy``, ``entropy``, ``kl``) on some episodes, by index.

        Empty if the loss has no token.
        """
        ...


class Monitor:
    """The diagnostics of a run, each in its due iterations, and their times.

    ``piece`` gives a token's text; ``validation`` measures the success on the fixed levels of the split ``validation``;
    None for runs without it.
    """

    def __init__(self, config: Config, piece: Callable[[int], str], validation: Callable[[], Rate] | None) -> None:
        self.config, self.piece, self.validation = config, piece, validation
        self._costs: dict[str, float] = {}

    def before_update(self, policy: MeasuredPolicy, iteration: Iteration) -> dict[str, Any]:
        """The figures of the episodes, and the figures that need the policy that played them."""
        settings, played = self.config.diagnostics, iteration.learned
        measures: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
            "replies": (1, lambda: iteration.figures(self.piece)),
            "entropy": (settings.entropy_every, lambda: rollout_entropy(policy, played)),
            "gradients": (
                settings.gradients_every,
                lambda: gradient_figures(policy, iteration, self.config.training.minibatch),
            ),
            "information": (
                settings.information_every,
                lambda: information_figures(policy, iteration.played, self.piece, settings),
            ),
        }
        figures: dict[str, Any] = {}
        if self.config.stops.sampled_tokens or GROUPINGS[self.config.training.groups_by].branches:
            figures["sampled_tokens"] = iteration.sampled_tokens
        if self.config.program.command:
            figures["new_prompts"] = sum(max(0, len(t.contexts) - 1) for t in played)
        for name, (every, measure) in measures.items():
            if _due(every, iteration.number):
                figures |= self.timed(name, measure)
        return figures

    def validate(self, iteration: int) -> dict[str, float]:
        """The success of the validation, if one is due after this iteration."""
        if self.validation is None or not _due(self.config.stops.validate_every, iteration + 1):
            return {}
        return {"validation": self.timed("validation", self.validation).rate}

    def alarm(self, history: History, record: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, list[str]]:
        """Prints the signs of collapse that first appear in an iteration not yet in the history; returns the names."""
        if not self.config.diagnostics.alarm:
            return {}
        signs = self.timed("alarm", lambda: history.new_signs(record))
        for sign in signs:
            say(str(sign))
        return {"alarm": [sign.name for sign in signs]} if signs else {}

    def timed(self, name: str, measure: Callable[[], T]) -> T:
        """Returns ``measure()`` and records its time under this name."""
        started = time.monotonic()
        result = measure()
        self._costs[name] = time.monotonic() - started
        return result

    def take_costs(self) -> dict[str, float]:
        """Seconds of each measurement since the last call."""
        costs, self._costs = self._costs, {}
        return costs


def _due(every: int, iteration: int) -> bool:
    return bool(every) and iteration % every == 0


def gradient_figures(policy: MeasuredPolicy, iteration: Iteration, minibatch: int) -> dict[str, float]:
    """Gradient norms of the parts of the loss, before an update.

    On up to one minibatch of kept episodes: ``grad_policy``, ``grad_entropy`` and, with a KL term in the loss,
    ``grad_kl``. On up to one minibatch of each quarter of the groups by return std, kept or not: ``grad_spread_1`` (the
    smallest) to ``grad_spread_4``, of the policy's part alone; a quarter without an episode is left out. From the
    latter RAGEN-2 (arXiv 2604.06268) concludes that the regularisers dominate in groups with equal returns.
    """
    groups = iteration.groups
    norms = policy.gradient_norms(iteration, iteration.kept[:minibatch])
    figures = {f"grad_{name}": norm for name, norm in norms.items()}
    counted = torch.tensor([t.failure is None for t in iteration.learned]).view(groups.kept.shape)
    order = torch.sort(groups.return_std, stable=True).indices
    for quarter, quarter_rows in enumerate(order.tensor_split(QUANTILES), start=1):
        chosen = torch.zeros_like(counted)
        chosen[quarter_rows] = counted[quarter_rows]
        rows = chosen.flatten().nonzero().flatten()[:minibatch].tolist()
        if norms := policy.gradient_norms(iteration, rows):
            figures[f"grad_spread_{quarter}"] = norms["policy"]
    return figures


def information_figures(
    policy: MeasuredPolicy, played: Sequence[Trajectory], piece: Callable[[int], str], settings: Diagnostics
) -> dict[str, float]:
    """``information`` of the first turns of an iteration; empty with too few prompts or no reasoning.

    It takes up to ``information_prompts`` levels with distinct prompts and ``information_samples`` episodes of each.
    Branches are left out, since their first turn belongs to the base.
    """
    images = ImageTable() if any(t.images for t in played) else None
    found: dict[tuple[int, ...], list[tuple[list[int], list[int]]]] = {}
    for trajectory in played:
        if trajectory.failure is not None or trajectory.branch is not None:
            continue
        first = int(trajectory.sampled.argmax())
        start, end = reasoning_spans(trajectory, piece)[0]
        ids = (trajectory.ids if images is None else images.keys(trajectory.ids, trajectory.images)).tolist()
        found.setdefault(tuple(ids[:first]), []).append((ids[first:start], ids[start:end]))
    enough = [key for key, samples in found.items() if len(samples) >= settings.information_samples]
    prompts = enough[: settings.information_prompts]
    samples = [found[prompt][: settings.information_samples] for prompt in prompts]
    lengths = torch.tensor([[len(reasoning) for _, reasoning in row] for row in samples])
    if len(prompts) < 2 or not bool((lengths > 0).any()):
        return {}
    rows = [(list(prompt) + opening, said) for row in samples for opening, said in row for prompt in prompts]
    scores = policy.log_probs(rows, images).view(len(prompts), -1, len(prompts))
    return information(scores, lengths)._asdict()


def rollout_entropy(policy: MeasuredPolicy, played: Sequence[Trajectory]) -> dict[str, float]:
    """``entropy_forced``: the mean entropy of the tokens' sampling distributions, in nats a token.

    It is exact, by teacher forcing, a forward pass over the iteration. ``entropy_sampled`` (``Iteration.figures``)
    costs nothing and has the same expectation: a difference is noise, or a mismatch of trainer and sampler.
    """
    whole = [t for t in played if t.failure is None and t.sampled.any()]
    count = sum(int(t.sampled.sum()) for t in whole)
    return {"entropy_forced": policy.entropy(whole) / count} if count else {}


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


def information(log_probs: Tensor, lengths: Tensor) -> Information:
    """The three estimates (RAGEN-2).

    With L_ikj = log p(Z_ik | X_j): matched = L_iki / |Z_ik|, marginal = (1 / |Z_ik|) log((1 / P) sum_j exp L_ikj),
    I(X; Z) = mean(matched - marginal), H(Z | X) = -mean(matched), and the accuracy is mean[i = argmax_j L_ikj].

    Args:
        log_probs: float (P, K, P), L_ikj: the sum over the tokens of sample k of prompt i under prompt j.
        lengths: integers (P, K), |Z_ik|. Samples without reasoning (0) are left out.

    If several prompts tie for the best score, the sample counts as that fraction of a hit, so a policy that ignores its
    prompt scores at chance.

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
        retrieval_chance=1 / prompts,
    )
