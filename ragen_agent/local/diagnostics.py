"""What an iteration is measured by next to its training, and what the measurements cost.

Most figures need passes of the model: gradient norms of the parts of the loss, entropies by teacher forcing, and what
the reasoning knows of its prompt. For the last, RAGEN-2 (arXiv 2604.06268, section on diagnostics) samples reasoning Z
for each of P prompts X, K times, and scores every reasoning under every prompt by teacher forcing. In *template
collapse* the reasoning stays varied, so that the conditional entropy stays high, but it no longer says anything about
its prompt, so that the mutual information falls and the prompt cannot be retrieved from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent.config import Diagnostics, Training
from ragen_agent.local.policy_update import Learner, policy_terms, targets_of
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.batches import Batch
from ragen_agent.training.iteration import Iteration, ScoredGroups
from ragen_agent.training.metrics import reasoning_spans
from ragen_agent.training.scoring import sampled_scores
from ragen_gym.core.stats import Rate

__all__ = [
    "QUANTILES",
    "Information",
    "Monitor",
    "gradient_figures",
    "information",
    "information_figures",
    "rollout_entropy",
]

T = TypeVar("T")

QUANTILES = 4


class Monitor:
    """The diagnostics of a run, each in the iterations that it is due, and their times.

    ``validation`` measures the success on the fixed levels of the split ``validation``.
    """

    def __init__(
        self, diagnostics: Diagnostics, training: Training, validate_every: int, validation: Callable[[], Rate] | None
    ) -> None:
        self.diagnostics, self.training = diagnostics, training
        self.validate_every, self.validation = validate_every, validation
        self._costs: dict[str, float] = {}

    def before_update(self, learner: Learner, iteration: Iteration) -> dict[str, Any]:
        """The figures of the episodes, and those that need the policy that played them."""
        settings, training, played = self.diagnostics, self.training, iteration.learned
        measures: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
            "replies": (1, lambda: iteration.figures(learner.piece)),
            "entropy": (settings.entropy_every, lambda: rollout_entropy(learner, played, training)),
            "gradients": (
                settings.gradients_every,
                lambda: gradient_figures(learner, played, iteration.groups, training),
            ),
            "information": (
                settings.information_every,
                lambda: information_figures(learner, played, training, settings),
            ),
        }
        figures: dict[str, Any] = {}
        for name, (every, measure) in measures.items():
            if _due(every, iteration.number):
                figures |= self.timed(name, measure)
        return figures

    def validate(self, iteration: int) -> dict[str, float]:
        """The success of the validation, where one is due after this iteration."""
        if self.validation is None or not _due(self.validate_every, iteration + 1):
            return {}
        return {"validation": self.timed("validation", self.validation).rate}

    def timed(self, name: str, measure: Callable[[], T]) -> T:
        """What ``measure`` returns; its time is noted under this name."""
        started = time.monotonic()
        result = measure()
        self._costs[name] = time.monotonic() - started
        return result

    def take_costs(self) -> dict[str, float]:
        """Seconds that each measurement took since the last call."""
        costs, self._costs = self._costs, {}
        return costs


def _due(every: int, iteration: int) -> bool:
    return bool(every) and iteration % every == 0


def gradient_figures(
    learner: Learner, played: Sequence[Trajectory], groups: ScoredGroups, settings: Training
) -> dict[str, float]:
    """Gradient norms of the parts of the loss, before an update; the weights and their gradients stay as they are.

    On up to one minibatch of kept episodes: ``grad_policy``, ``grad_entropy`` and, with a KL term in the loss,
    ``grad_kl``. On up to one minibatch of each quarter of the groups by return std, kept or not: ``grad_spread_1`` (the
    smallest) to ``grad_spread_4``, of the policy's part alone; a quarter without an episode is left out. RAGEN-2 (arXiv
    2604.06268) reads from the latter that groups whose returns do not differ give the regularisers their weight.
    """
    figures: dict[str, float] = {}
    kept = groups.kept.flatten().nonzero().flatten()[: settings.minibatch]
    for name, norm in _norms(learner, played, groups, kept, settings).items():
        figures[f"grad_{name}"] = norm
    counted = torch.tensor([t.failure is None for t in played]).view(groups.kept.shape)
    order = torch.sort(groups.return_std, stable=True).indices
    for quarter, quarter_rows in enumerate(order.tensor_split(QUANTILES), start=1):
        chosen = torch.zeros_like(counted)
        chosen[quarter_rows] = counted[quarter_rows]
        rows = chosen.flatten().nonzero().flatten()[: settings.minibatch]
        norms = _norms(learner, played, groups, rows, settings)
        if norms:
            figures[f"grad_spread_{quarter}"] = norms["policy"]
    return figures


def _norms(
    learner: Learner, played: Sequence[Trajectory], groups: ScoredGroups, rows: Tensor, settings: Training
) -> dict[str, float]:
    if not len(rows):
        return {}
    chosen = [played[row] for row in rows.tolist()]
    batch = Batch.of(chosen, learner.bias.device)
    weights = groups.weights[rows // groups.kept.shape[1]]
    targets = targets_of(learner, batch, chosen, groups.advantages.flatten()[rows], settings, weights)
    if not bool(targets["mask"].any()):
        return {}
    terms, _ = policy_terms(learner, batch, targets, settings)
    parameters = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    norms = {}
    for name, term in terms.items():
        parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        norms[name] = float(torch.stack([part.norm() for part in parts if part is not None]).norm())
    return norms


def information_figures(
    learner: Learner, played: Sequence[Trajectory], training: Training, settings: Diagnostics
) -> dict[str, float]:
    """``information`` of the first turns of an iteration; empty where too few prompts or no reasoning is there.

    Up to ``information_prompts`` levels with distinct prompts and ``information_samples`` episodes of each.
    """
    assert learner.piece is not None, "reasoning is found in the text of the tokens"
    found: dict[tuple[int, ...], list[tuple[list[int], list[int]]]] = {}
    for trajectory in played:
        if trajectory.failure is not None:
            continue
        first = int(trajectory.sampled.argmax())
        start, end = reasoning_spans(trajectory, learner.piece)[0]
        ids = trajectory.ids.tolist()
        found.setdefault(tuple(ids[:first]), []).append((ids[first:start], ids[start:end]))
    enough = [key for key, samples in found.items() if len(samples) >= settings.information_samples]
    prompts = enough[: settings.information_prompts]
    samples = [found[prompt][: settings.information_samples] for prompt in prompts]
    lengths = torch.tensor([[len(reasoning) for _, reasoning in row] for row in samples])
    if len(prompts) < 2 or not bool((lengths > 0).any()):
        return {}
    rows = [(list(prompt) + opening, said) for row in samples for opening, said in row for prompt in prompts]
    scores = _scores(learner, rows, training).view(len(prompts), -1, len(prompts))
    return information(scores, lengths)._asdict()


@torch.no_grad()
def _scores(learner: Learner, rows: Sequence[tuple[list[int], list[int]]], settings: Training) -> Tensor:
    """The log-prob of each row's second part after its first, float64 (rows,), by teacher forcing."""
    scores = torch.zeros(len(rows), dtype=torch.float64)
    wanted = [index for index, (_, said) in enumerate(rows) if said]
    for part in torch.tensor(wanted).split(settings.minibatch):
        batch = _batch([rows[index] for index in part.tolist()], learner.bias.device)
        log_probs = sampled_scores(learner.model, batch, learner.bias, settings.temperature).log_probs
        scores[part] = log_probs.sum(dim=1, dtype=torch.float64).cpu()
    return scores


def _batch(rows: Sequence[tuple[list[int], list[int]]], device: torch.device) -> Batch:
    """Pairs of ids padded on the right, the second of each marked as sampled."""
    whole = [torch.tensor([*before, *said]) for before, said in rows]
    marks = [torch.tensor([False] * len(before) + [True] * len(said)) for before, said in rows]
    attention = [torch.ones(len(ids), dtype=torch.long) for ids in whole]
    ids, sampled, attended = (pad_sequence(part, batch_first=True).to(device) for part in (whole, marks, attention))
    return Batch(ids, sampled, attended, torch.zeros(ids.shape, device=device))


def rollout_entropy(learner: Learner, played: Sequence[Trajectory], settings: Training) -> dict[str, float]:
    """``entropy_forced``: the mean entropy of the distributions that the tokens were drawn from, in nats a token.

    It is exact, by teacher forcing, a forward pass over the iteration. ``entropy_sampled`` (``Iteration.figures``)
    costs nothing and has the same mean: their difference is noise, or a trainer that does not see what the sampler saw.
    """
    whole = [t for t in played if t.failure is None and t.sampled.any()]
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(whole), settings.minibatch):
            batch = Batch.of(whole[start : start + settings.minibatch], learner.bias.device)
            total += float(sampled_scores(learner.model, batch, learner.bias, settings.temperature).entropy.sum())
            count += int(batch.sampled.sum())
    return {"entropy_forced": total / count} if count else {}


class Information(NamedTuple):
    """Means over the samples that have any reasoning; nats a token."""

    mutual_information: float
    """I(X; Z), at most log(P) / |Z|; it may come out below 0, as an estimate can."""
    conditional_entropy: float
    """H(Z | X), at least 0."""
    retrieval_accuracy: float
    """The share of reasonings that are likeliest under their own prompt, in [0, 1]."""
    retrieval_chance: float
    """What guessing the prompt would score: 1 / P."""


def information(log_probs: Tensor, lengths: Tensor) -> Information:
    """The three estimates (RAGEN-2).

    With L_ikj = log p(Z_ik | X_j): matched = L_iki / |Z_ik|, marginal = (1 / |Z_ik|) log((1 / P) sum_j exp L_ikj),
    I(X; Z) = mean(matched - marginal), H(Z | X) = -mean(matched), and the accuracy is mean[i = argmax_j L_ikj].

    Args:
        log_probs: float (P, K, P), L_ikj: the sum over the tokens of sample k of prompt i under prompt j.
        lengths: integers (P, K), |Z_ik|. A sample without reasoning (0) says nothing and is left out.

    Where several prompts score equally best, the sample counts as that share of a hit, so that a policy that ignores
    its prompt scores the chance.

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
