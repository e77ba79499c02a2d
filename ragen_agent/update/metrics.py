"""The figures of ``metrics.jsonl``: names, formats, and reply metrics.

The reply metrics measure length, reasoning tokens, repetition and malformed replies. Nothing is encoded again: the
sampled ids are decoded one by one, and the tags, which are plain ASCII, are searched in the joined pieces. A token that
holds a tag's end and the first letters after it is counted with the text.

Collapse is visible here first: the replies of a collapsed policy are malformed, or the same few for all boards (RAGEN,
arXiv 2504.20073, section on the Echo Trap).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragen_agent.tokens.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK, END_THINK = "<think>", "</think>"
PARTS = ("reasoning", "answer")

Span = tuple[int, int]


@dataclass(frozen=True)
class Metric:
    """A figure of an iteration."""

    label: str  # for axes, tables and the dashboard; a unit stands in brackets
    share: bool = False  # True if it is from 0 to 1 and printed in percent
    progress: str = ""  # format of its value in an iteration's line; empty to leave it out
    rare: bool = False  # True to leave a 0 out of that line


#: Figures that a report shows at once, as far as a run has them, by the key in ``metrics.jsonl``.
MAIN: dict[str, Metric] = {
    "success": Metric("training success", share=True, progress="success {:.2f}"),
    "validation": Metric("validation success", share=True),
    "eval_success": Metric("success on the levels of the evaluation", share=True),
    "return": Metric("episode return"),
    "return_std": Metric("return std within groups", progress="return std {:.2f}"),
    "entropy": Metric("entropy (nats per token)", progress="entropy {:.2f}"),
    "grad_norm": Metric("gradient norm before clipping", progress="grad {:.2f}"),
    "reply_tokens": Metric("tokens per reply"),
    "reasoning_tokens": Metric("reasoning tokens per reply"),
    "invalid_rate": Metric("malformed replies", share=True),
    "effective_rate": Metric("turns with an effective move", share=True),
    "repeated_rate": Metric("repeated replies", share=True),
    "kl": Metric("KL from the initial model"),
    "approx_kl": Metric("KL from the sampling policy (k3)"),
    "clip_fraction": Metric("clipped tokens (fraction)"),
    "corrected": Metric("tokens outside the bounds of the correction (fraction)"),
    "mismatch_kl": Metric("KL of vLLM's policy from the trainer's (k3)"),
    "staleness": Metric("staleness of the episodes (updates)"),
    "entropy_deviation": Metric("entropy outside its band (nats per token)"),
    "refilled": Metric("further levels, in place of decided ones", progress="refilled {:.0f}"),
    "overlong": Metric("overlong replies", share=True),
    "value_loss": Metric("value loss"),
    "mutual_information": Metric("mutual information of reasoning and prompt"),
    "turns_mutual_information": Metric("mutual information of reasoning and all before it"),
    "retrieval_accuracy": Metric("prompt retrieval accuracy", share=True),
}

#: All figures with a label; other keys are labelled by their names, and a report folds away what is not in ``MAIN``.
METRICS = MAIN | {
    "observation_rate": Metric("right observations", share=True),
    "prediction_rate": Metric("right predictions", share=True),
    "conditional_entropy": Metric("conditional entropy of the reasoning"),
    "information_zscore": Metric("mutual information over its marginal's std"),
    "information_zscore_ema": Metric("mutual information over the average of its marginal's std"),
    "retrieval_at_2": Metric("prompts retrieved among the best 2", share=True),
    "retrieval_at_4": Metric("prompts retrieved among the best 4", share=True),
    "turns_retrieval_accuracy": Metric("retrieval accuracy, all turns", share=True),
    "valid_thinking_rate": Metric("turns with reasoning", share=True),
    "entropy_sampled": Metric("entropy of all rollouts"),
    "return_std_kept": Metric("return std, kept groups"),
    "return_std_dropped": Metric("return std, dropped groups"),
    "kept": Metric("episodes in the update"),
    "lacking": Metric("decided levels that were not replaced"),
    "budget_reward": Metric("reward of stated budgets"),
    "kept_share": Metric("kept groups", share=True),
    "updates": Metric("optimiser steps"),
    "failed": Metric("failed episodes"),
    "overflowed": Metric("episodes cut at turns.max_tokens_per_episode", progress="out of tokens {:.0f}", rare=True),
    "sampled_tokens": Metric("sampled tokens"),
    "tokens_per_s": Metric("sampled tokens per second", progress="{:.0f} tokens/s"),
    "seconds": Metric("seconds per iteration"),
    "train_tokens": Metric("tokens trained on"),
    "loss": Metric("loss", progress="loss {:z.3f}"),
}


def metric_label(name: str) -> str:
    """The label of a figure; ``success/Sokoban`` is the success in one game of a mixture."""
    if name in METRICS:
        return METRICS[name].label
    return name.replace("success/", "success in ").replace("_", " ")


def is_share(name: str) -> bool:
    """True if a figure is from 0 to 1 and printed in percent."""
    return METRICS[name].share if name in METRICS else name.startswith(("success/", "eval_"))


def format_metric(name: str, value: float) -> str:
    """A value of a figure as text: shares in percent, other numbers with two or three digits."""
    if is_share(name):
        return f"{100 * value:.0f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f} k".replace("-", "\N{MINUS SIGN}")
    digits = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    text = f"{value:z.{digits}f}" if size >= 0.001 or value == 0 else f"{value:.0e}"
    text = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return text.replace("-", "\N{MINUS SIGN}")


SMOOTHING = 0.25  # default weight of each value in the moving average


def smooth(series: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """The exponential moving average: each value enters with ``weight``, the first one in full."""
    smoothed: list[float] = []
    for value in series:
        smoothed.append(value if not smoothed else weight * value + (1 - weight) * smoothed[-1])
    return smoothed


def cost_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Cost of each measurement, relative to the time of an iteration without them; the costliest first."""
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


def piece_decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """A cached function from an id to its text, special tokens included."""

    @cache
    def piece(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return piece


def turn_spans(trajectory: Trajectory) -> list[Span]:
    """The (first, end) of each turn's sampled tokens in the row, end excluded."""
    spans, start = [], 0
    for end in trajectory.turn_ends:
        first = start + int(trajectory.sampled[start : end + 1].argmax())
        spans.append((first, end + 1))
        start = end + 1
    return spans


def reply_parts(trajectory: Trajectory, piece: Callable[[int], str], part: str) -> list[Span]:
    """Each turn's reasoning (up to its closing tag, included) or answer (the rest); together they are the reply.

    A reply without a closing tag is an answer. Spans are (first, end) of token indices, perhaps empty.

    Raises:
        ValueError: ``part`` is not in ``PARTS``.
    """
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}")
    spans = []
    for first, end in turn_spans(trajectory):
        text, ends = _text(trajectory, (first, end), piece)
        at = text.find(END_THINK)
        seam = first if at < 0 else first + _tokens_until(ends, at + len(END_THINK))
        spans.append((first, seam) if part == "reasoning" else (seam, end))
    return spans


def reasoning_spans(trajectory: Trajectory, piece: Callable[[int], str]) -> list[Span]:
    """The tokens (first, end) between the thinking tags of each turn; empty if there are none or the tag is not closed.

    If the template opens the thinking, it begins with the reply.
    """
    spans = []
    for first, end in turn_spans(trajectory):
        text, ends = _text(trajectory, (first, end), piece)
        close = text.find(END_THINK)
        begin = text.find(THINK, 0, max(close, 0))
        start = 0 if begin < 0 else begin + len(THINK)
        if close <= start:
            spans.append((first, first))
            continue
        # A token is inside if any of its characters is: if it ends after ``start`` and begins before ``close``.
        inside = bisect_right(ends, start), _tokens_until(ends, close)
        spans.append((first + inside[0], first + inside[1]))
    return spans


def _text(trajectory: Trajectory, span: Span, piece: Callable[[int], str]) -> tuple[str, list[int]]:
    """The text of a span, and the end of each token in it."""
    pieces = [piece(int(token)) for token in trajectory.ids[slice(*span)]]
    return "".join(pieces), list(accumulate(map(len, pieces)))


def _tokens_until(ends: list[int], character: int) -> int:
    """Number of tokens that hold the first ``character`` characters."""
    return next((count for count, end in enumerate(ends, 1) if end >= character), len(ends))


def reply_figures(
    trajectories: Sequence[Trajectory],
    piece: Callable[[int], str] | None = None,
    own: Sequence[NDArray[np.bool_]] | None = None,
) -> dict[str, float]:
    """Shares and means over the turns of an iteration that the environment reports on.

    ``reply_tokens``: sampled tokens per turn, end token included. ``reasoning_tokens``: tokens between the thinking
    tags, 0 without tags, and ``valid_thinking_rate``: share of turns with such a token; both measured only with
    ``piece``, which gives a token's text. ``repeated_rate``: share of turns whose reply occurs more than once, token by
    token; it is high for any policy with few moves, so its trend matters more than its value, and a reply that the
    branches of a tree share is one reply: ``own`` are the tokens that no episode before holds, None if no episodes
    branch. ``invalid_rate``: malformed, or an unknown action. ``effective_rate``: the board changed or the game ended.
    ``observation_rate`` and ``prediction_rate``: the described or predicted board was exactly right.
    """
    whole = [t for t in trajectories if t.failure is None]
    said = [turn for t in whole for turn in t.turn_infos]
    spans = [(t, span) for t in whole for span in turn_spans(t)]
    mine = [t.sampled for t in trajectories] if own is None else own
    drawn = [
        tuple(t.ids[first:end].tolist())
        for t, mask in zip(trajectories, mine, strict=True)
        for first, end in turn_spans(t)
        if t.failure is None and mask[end - 1]
    ]
    replies = Counter(drawn)
    reasoning = [] if piece is None else [end - first for t in whole for first, end in reasoning_spans(t, piece)]
    measured: dict[str, tuple[float, int]] = {  # a sum and its divisor
        "reply_tokens": (sum(int(t.sampled.sum()) for t in whole), len(spans)),
        "repeated_rate": (sum(count for count in replies.values() if count > 1), len(drawn)),
        "invalid_rate": (sum(bool(turn.problem) for turn in said), len(said)),
        "effective_rate": (sum(turn.effective for turn in said), len(said)),
        "observation_rate": _share(turn.observation_right for turn in said),
        "prediction_rate": _share(turn.prediction_right for turn in said),
        "reasoning_tokens": (sum(reasoning), len(reasoning)),
        "valid_thinking_rate": (sum(map(bool, reasoning)), len(reasoning)),
    }
    return {name: total / count for name, (total, count) in measured.items() if count}


def _share(answers: Iterable[bool | None]) -> tuple[int, int]:
    """Number of right answers, and of answers that are not None."""
    known = [right for right in answers if right is not None]
    return sum(known), len(known)
