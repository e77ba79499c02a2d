"""Per-iteration diagnostics and their timings, shared by both trainers.

The mutual information of reasoning and prompt needs passes of the model: RAGEN-2 (arXiv 2604.06268, section on
diagnostics) samples reasoning Z for each of P prompts X, K times, and scores every reasoning under every prompt by
teacher forcing. In *template collapse* the reasoning stays varied, so the conditional entropy stays high, but it no
longer depends on its prompt, so the mutual information falls and the prompt cannot be retrieved from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ragen_agent.config import Config
from ragen_agent.inference.vision import ImageTable
from ragen_agent.run.alarm import History
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import reasoning_spans
from ragen_gym.core.stats import Rate

__all__ = [
    "Information",
    "MeasuredPolicy",
    "Monitor",
    "information",
    "information_figures",
]

T = TypeVar("T")

PROMPTS, SAMPLES = 8, 4  # of an estimate of the mutual information


class MeasuredPolicy(Protocol):
    """The policy that played an iteration."""

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """The log-prob of each row's second part after its first, float64 (rows,), by teacher forcing.

        Both are token ids, with visual tokens as numbered by ``images``; the value is 0 if the second part is empty.
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
        measures: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
            "replies": (1, lambda: iteration.figures(self.piece)),
            "information": (
                self.config.diagnostics.information_every,
                lambda: information_figures(policy, iteration.played, self.piece),
            ),
        }
        figures: dict[str, Any] = {}
        if self.config.stops.sampled_tokens:
            figures["sampled_tokens"] = iteration.sampled_tokens
        if self.config.program.command:
            figures["new_prompts"] = sum(max(0, len(t.contexts) - 1) for t in iteration.played)
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


def information_figures(
    policy: MeasuredPolicy, played: Sequence[Trajectory], piece: Callable[[int], str]
) -> dict[str, float]:
    """``information`` of the first turns of an iteration; empty with too few prompts or no reasoning.

    It takes up to ``PROMPTS`` levels with distinct prompts and ``SAMPLES`` episodes of each, or as many as a level has.
    """
    images = ImageTable() if any(t.images for t in played) else None
    found: dict[tuple[int, ...], list[tuple[list[int], list[int]]]] = {}
    for trajectory in played:
        if trajectory.failure is not None:
            continue
        first = int(trajectory.sampled.argmax())
        start, end = reasoning_spans(trajectory, piece)[0]
        ids = (trajectory.ids if images is None else images.keys(trajectory.ids, trajectory.images)).tolist()
        found.setdefault(tuple(ids[:first]), []).append((ids[first:start], ids[start:end]))
    count = min(SAMPLES, max(map(len, found.values()), default=0))
    enough = [key for key, samples in found.items() if len(samples) >= count]
    prompts = enough[:PROMPTS]
    samples = [found[prompt][:count] for prompt in prompts]
    lengths = torch.tensor([[len(reasoning) for _, reasoning in row] for row in samples])
    if len(prompts) < 2 or not bool((lengths > 0).any()):
        return {}
    rows = [(list(prompt) + opening, said) for row in samples for opening, said in row for prompt in prompts]
    scores = policy.log_probs(rows, images).view(len(prompts), -1, len(prompts))
    return information(scores, lengths)._asdict()


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
