"""The figures of one iteration, under the names that the local trainer uses; one line of metrics.jsonl.

Beside those of the local trainer: `spread_kept` and `spread_dropped` (mean spread of the groups on either side of the
filter), `kept_share`, `updates`, `learning_rate` (of the update to come), `failures` (how many of each kind), `vllm_kl`
and `vllm_gap` (see `experience.agreement`), `critic_grad_norm`, `eval_success`, `eval_random` and `eval_optimal` where
the fixed levels were played, and the seconds of each part. `approx_kl` is the k1 estimate here, where the local trainer
has k3, and the gradient norms are those of the last step. `entropy_sampled` is there in every iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragen_agent.openrlhf.generation import EpisodeSample
from ragen_agent.training.iteration import ScoredGroups
from ragen_gym.core.failures import Failure, failure_kind

__all__ = ["of_episodes", "of_training"]

_NAMES = {
    "entropy_loss": "entropy",
    "actor_grad_norm": "grad_norm",
    "ppo_clip_ratio": "clip_fraction",
    "ppo_kl": "approx_kl",
    "critic_loss": "value_loss",
    "critic_grad_norm": "critic_grad_norm",
    "actor_lr": "learning_rate",
    "kl": "kl",
}


def of_episodes(played: Sequence[EpisodeSample], scored: ScoredGroups) -> dict[str, Any]:
    """What was played and what the filter kept of it."""
    whole = [p for p in played if p.trajectory.failure is None]
    kinds = Counter(failure_kind(p.trajectory.failure) for p in played if p.trajectory.failure is not None)
    games = sorted({p.row.game for p in whole})
    kept, spread = scored.kept.any(1), scored.spread
    shares = {f"success/{game}": _mean([p.trajectory.success for p in whole if p.row.game == game]) for game in games}
    shares = shares if len(games) > 1 else {}
    return {
        "success": _mean([p.trajectory.success for p in whole]),
        **shares,
        "return": _mean([p.trajectory.total_reward for p in whole]),
        "spread": float(spread.mean()),
        "spread_kept": float(spread[kept].mean()) if bool(kept.any()) else 0.0,
        "spread_dropped": float(spread[~kept].mean()) if bool((~kept).any()) else 0.0,
        "kept": int(scored.kept.sum()),
        "kept_share": float(kept.float().mean()),
        "failed": len(played) - len(whole),
        "failures": {kind.value: kinds[kind] for kind in Failure if kinds[kind]},
        "entropy_sampled": _surprise(whole),
        "reply_tokens": _mean([p.trajectory.sampled.sum() / max(1, len(p.trajectory.turn_ends)) for p in played]),
    }


def of_training(status: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenRLHF reports of its steps, under our names."""
    return {ours: float(status[theirs]) for theirs, ours in _NAMES.items() if theirs in status}


def _surprise(whole: Sequence[EpisodeSample]) -> float:
    """The rollouts' entropy by sampling, nats a token: minus the mean log-prob of the tokens that were drawn."""
    tokens = sum(int(p.trajectory.sampled.sum()) for p in whole)
    return -sum(float(p.trajectory.log_probs.sum(dtype="float64")) for p in whole) / max(1, tokens)


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
