"""The figures of ``metrics.jsonl``: what each is called, how its values are written, and its moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["METRICS", "Metric", "cost_line", "format_metric", "is_share", "metric_label", "smooth"]


@dataclass(frozen=True)
class Metric:
    """A figure of an iteration.

    Attributes:
        label: for axes, tables and the dashboard; a unit stands in brackets.
        share: whether it lies between 0 and 1 and is printed in percent.
        progress: the format of its value in the line that a run prints for each iteration; empty to leave it out.
    """

    label: str
    share: bool = False
    progress: str = ""


#: By the key in ``metrics.jsonl``; a key that is not here is labelled by its name.
METRICS: dict[str, Metric] = {
    "success": Metric("training success", share=True, progress="success {:.2f}"),
    "validation": Metric("validation success", share=True),
    "return": Metric("episode return"),
    "spread": Metric("return std within groups", progress="return std {:.2f}"),
    "entropy": Metric("entropy (nats per token)", progress="entropy {:.2f}"),
    "grad_norm": Metric("gradient norm before clipping", progress="grad {:.2f}"),
    "invalid_rate": Metric("malformed replies", share=True),
    "effective_rate": Metric("turns with an effective move", share=True),
    "repeated_rate": Metric("repeated replies", share=True),
    "response_tokens": Metric("tokens per reply"),
    "reply_tokens": Metric("tokens per reply"),
    "reasoning_tokens": Metric("reasoning tokens per reply"),
    "observation_rate": Metric("right observations", share=True),
    "prediction_rate": Metric("right predictions", share=True),
    "mutual_information": Metric("mutual information of reasoning and prompt"),
    "conditional_entropy": Metric("conditional entropy of the reasoning"),
    "retrieval_accuracy": Metric("prompt retrieval accuracy", share=True),
    "kl": Metric("KL from the initial model"),
    "approx_kl": Metric("KL from the sampling policy (k3)"),
    "approx_kl_k1": Metric("KL from the sampling policy (k1)"),
    "clip_fraction": Metric("clipped tokens (fraction)"),
    "value_loss": Metric("value loss"),
    "entropy_forced": Metric("entropy of all rollouts, teacher-forced"),
    "entropy_sampled": Metric("entropy of all rollouts, as sampled"),
    "grad_policy": Metric("gradient norm of the policy loss"),
    "grad_entropy": Metric("gradient norm of the entropy bonus"),
    "grad_kl": Metric("gradient norm of the KL penalty"),
    "spread_kept": Metric("return std, kept groups"),
    "spread_dropped": Metric("return std, dropped groups"),
    "kept": Metric("episodes in the update"),
    "kept_share": Metric("kept groups", share=True),
    "updates": Metric("optimiser steps"),
    "failed": Metric("failed episodes"),
    "tokens_per_s": Metric("sampled tokens per second", progress="{:.0f} tokens/s"),
    "seconds": Metric("seconds per iteration"),
    "train_tokens": Metric("tokens trained on"),
    "loss": Metric("loss", progress="loss {:.3f}"),
}


def metric_label(name: str) -> str:
    """The label of a figure; ``success/Sokoban`` is the success in one game of a mixture."""
    if name in METRICS:
        return METRICS[name].label
    return name.replace("success/", "success in ").replace("_", " ")


def is_share(name: str) -> bool:
    """Whether a figure lies between 0 and 1 and is printed in percent."""
    return METRICS[name].share if name in METRICS else name.startswith("success/")


def format_metric(name: str, value: float) -> str:
    """A value of a figure as text: shares in percent, other numbers with two or three digits."""
    if is_share(name):
        return f"{100 * value:.0f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f} k".replace("-", "\N{MINUS SIGN}")
    digits = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    text = f"{value:.{digits}f}" if size >= 0.001 or value == 0 else f"{value:.0e}"
    text = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return text.replace("-", "\N{MINUS SIGN}")


def smooth(series: Sequence[float], weight: float = 0.25) -> list[float]:
    """The exponential moving average: each value enters with ``weight``; the first stands as it is."""
    smoothed: list[float] = []
    for value in series:
        smoothed.append(value if not smoothed else weight * value + (1 - weight) * smoothed[-1])
    return smoothed


def cost_line(records: Sequence[Mapping[str, Any]]) -> str:
    """What each measurement added to an iteration, as shares of the time without them; the costliest first."""
    costs: dict[str, float] = {}
    for record in records:
        for name, seconds in record.get("diagnostics_s", {}).items():
            costs[name] = costs.get(name, 0.0) + seconds
    rest = sum(record["seconds"] for record in records) - sum(costs.values())
    if not costs or rest <= 0:
        return ""
    shares = {name: 100 * seconds / rest for name, seconds in sorted(costs.items(), key=lambda cost: -cost[1])}
    parts = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items())
    return f"Measuring added {sum(shares.values()):.1f} % to an iteration: {parts}."
