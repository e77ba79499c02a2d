"""The published rules, written out, each with the variants that trainers compute instead.

They are written apart from ``ragen_agent.algo``, which is one of the libraries that are compared with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ragen_agent.conform.batches import (
    CONSTANT,
    GAMMA,
    LAMBDA,
    LENGTH,
    Batch,
    advantage_batches,
    divergence_batches,
    loss_batches,
    value_batches,
)

CLIP = (0.2, 0.28)
"""Bounds of the probability ratio below and above 1."""

TEMPERATURES = (1.0, 1.05)


@dataclass(frozen=True)
class Rule:
    """A published formula and its known variants."""

    kind: str
    """advantages, or loss: then the gradient with respect to ``Batch.log_probs`` is compared."""
    source: str
    formula: Callable[..., Tensor]
    """Of a batch and the keywords of ``variants``."""
    batches: Callable[[], dict[str, Batch]]
    variants: dict[str, dict[Any, str]] = field(default_factory=dict)
    """Values of each keyword, the formula's first, and what a library with this value does."""


def _group(batch: Batch, *, divide: bool, eps: float = 1e-6, alone: str = "zero", over: int = 1) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    for rows in batch.ids:
        returns = batch.rewards[rows]
        if len(rows) == 1:
            advantages[rows] = returns if alone == "reward" else 0.0
        elif bool((returns != returns[0]).any()):
            advantages[rows] = (returns - returns.mean()) / (returns.std(correction=over) + eps if divide else 1)
    return advantages[:, None] * batch.mask


def _grpo(batch: Batch, **changed: Any) -> Tensor:
    return _group(batch, divide=True, **changed)


def _dr_grpo(batch: Batch, **changed: Any) -> Tensor:
    return _group(batch, divide=False, **changed)


def _rloo(batch: Batch, *, alone: str = "zero") -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    for rows in batch.ids:
        returns, n = batch.rewards[rows], len(rows)
        if n > 1 and bool((returns != returns[0]).any()):
            advantages[rows] = returns - (returns.sum() - returns) / (n - 1)
        elif n == 1 and alone == "reward":
            advantages[rows] = returns
    return advantages[:, None] * batch.mask


def _gae(batch: Batch, *, observations: str = "skipped", whiten: str = "no") -> Tensor:
    rewards, advantages = batch.token_rewards, torch.zeros_like(batch.values)
    values = batch.values if observations == "their value" else batch.values * batch.mask
    after, running = torch.zeros(len(values)).double(), torch.zeros(len(values)).double()
    for t in reversed(range(LENGTH)):
        passed = batch.mask[:, t] if observations == "skipped" else torch.ones_like(batch.mask[:, t])
        here = rewards[:, t] + GAMMA * after - values[:, t] + GAMMA * LAMBDA * running
        running, after = torch.where(passed, here, running), torch.where(passed, values[:, t], after)
        advantages[:, t] = running
    if whiten != "no":
        chosen = advantages[batch.responses if whiten == "responses" else batch.mask]
        advantages = (advantages - chosen.mean()) / chosen.var(correction=int(whiten != "n")).sqrt()
    return advantages * batch.mask


def _mean(terms: Tensor, mask: Tensor, over: str) -> Tensor:
    terms, tokens = torch.where(mask, terms, 0.0), mask.sum(dim=1)
    rows = len(mask) if over.startswith("all rows") else int((tokens > 0).sum())
    if over == "tokens":
        return terms.sum() / tokens.sum()
    if over.endswith(("constant", "width")):
        return terms.sum() / (rows * (len(terms[0]) if over.endswith("width") else CONSTANT))
    return (terms.sum(dim=1) / tokens.clamp(min=1)).sum() / rows


def _ratio(batch: Batch) -> Tensor:
    return (batch.log_probs - batch.old).exp()


def _clipped(ratio: Tensor, advantages: Tensor, bound: float | None = None) -> Tensor:
    low, high = CLIP
    terms = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return terms if bound is None else torch.where(advantages < 0, torch.maximum(terms, bound * advantages), terms)


def _ppo(batch: Batch, *, over: str, dual: float | None = None) -> Tensor:
    return -_mean(_clipped(_ratio(batch), batch.advantages, dual), batch.mask, over)


def _gspo(batch: Batch, *, over: str = "rows") -> Tensor:
    change = torch.where(batch.mask, batch.log_probs - batch.old, 0.0).sum(dim=1, keepdim=True)
    ratio = (change / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)).exp()
    return -_mean(_clipped(ratio.expand_as(batch.old), batch.advantages), batch.mask, over)


def _cispo(batch: Batch, *, bounds: tuple[float, float] = (0, 1 + CLIP[1])) -> Tensor:
    weight = _ratio(batch).clamp(*bounds).detach()
    return -_mean(weight * batch.advantages * batch.log_probs, batch.mask, "tokens")


def _sapo(batch: Batch, *, over: str = "rows") -> Tensor:
    positive, other = (torch.full_like(batch.advantages, each) for each in TEMPERATURES)
    tau = torch.where(batch.advantages > 0, positive, other)
    gate = 4 / tau * torch.sigmoid(tau * (_ratio(batch) - 1))
    return -_mean(gate * batch.advantages, batch.mask, over)


def _divergence(batch: Batch, *, kind: str, most: float | None = None, weighed: bool = False) -> Tensor:
    d = batch.log_probs - batch.reference
    estimate = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[kind]
    if most is not None:
        estimate = estimate.clamp(-most, most)
    return _mean(estimate * _ratio(batch) if weighed else estimate, batch.mask, "tokens")


def _with(formula: Callable[..., Tensor], **fixed: Any) -> Callable[..., Tensor]:
    return lambda batch, **changed: formula(batch, **fixed | changed)


ALONE = {"zero": "", "reward": "the only rollout of a group keeps its return"}
EPS = {1e-6: "", 1e-4: "std + 1e-4", 1e-8: "std + 1e-8", 1e-9: "std + 1e-9", 0.0: "std without epsilon"}
DUAL = {None: "", 3.0: "bounded at 3 times a negative advantage (dual clip)"}
ROWS = {"rows": "", "all rows": "rows without tokens count as rows", "tokens": "mean over tokens"}

RULES: dict[str, Rule] = {
    "GRPO": Rule(
        "advantages",
        "arXiv 2402.03300, section 4.1.2",
        _grpo,
        advantage_batches,
        {
            "eps": EPS,
            "alone": ALONE,
            "over": {1: "", 0: "std over n, not n - 1"},
        },
    ),
    "Dr. GRPO": Rule("advantages", "arXiv 2503.20783, section 3.2", _dr_grpo, advantage_batches, {"alone": ALONE}),
    "RLOO": Rule("advantages", "arXiv 2402.14740", _rloo, advantage_batches, {"alone": ALONE}),
    "GAE": Rule(
        "advantages",
        "arXiv 1506.02438, equation 16; over sampled tokens alone",
        _gae,
        value_batches,
        {
            "observations": {
                "skipped": "",
                "their value": "the value at an observation's tokens stands in for the next turn's",
                "zero": "a turn is taken to end with value 0 where an observation follows",
            },
            "whiten": {
                "no": "",
                "n - 1": "whitened",
                "n": "whitened, with a variance over n",
                "responses": "whitened over observations too",
            },
        },
    ),
    "PPO, token mean": Rule(
        "loss",
        "arXiv 1707.06347, equation 7, bounds and mean of arXiv 2503.14476",
        _with(_ppo, over="tokens"),
        loss_batches,
        {"dual": DUAL},
    ),
    "PPO, sequence mean": Rule(
        "loss",
        "arXiv 2402.03300, equation 3, without its KL term",
        _with(_ppo, over="rows"),
        loss_batches,
        {"dual": DUAL, "over": ROWS},
    ),
    "PPO, constant length": Rule(
        "loss",
        "arXiv 2503.20783, section 3.2",
        _with(_ppo, over="all rows, constant"),
        loss_batches,
        {"dual": DUAL, "over": {"all rows, constant": "", "all rows, width": "divided by the width of the batch"}},
    ),
    "GSPO": Rule("loss", "arXiv 2507.18071, equation 5", _gspo, loss_batches, {"over": ROWS}),
    "CISPO": Rule(
        "loss",
        "arXiv 2506.13585, equations 4 and 5, with no lower bound",
        _cispo,
        loss_batches,
        {
            "bounds": {
                (0, 1 + CLIP[1]): "",
                (1 - CLIP[0], 1 + CLIP[1]): "ratios clipped from below too",
                (1, 1 + CLIP[1]): "ratios below 1 count as 1",
            }
        },
    ),
    "SAPO": Rule("loss", "arXiv 2511.20347", _sapo, loss_batches, {"over": ROWS}),
    **{
        f"KL, {kind}": Rule(
            "loss",
            "Schulman 2020; as a loss",
            _with(_divergence, kind=kind),
            divergence_batches,
            {
                "most": {None: "", 10.0: "no gradient where the estimate is beyond 10"},
                "weighed": {False: "", True: "times the probability ratio, with its gradient"},
            },
        )
        for kind in ("k1", "k2", "k3")
    },
}
