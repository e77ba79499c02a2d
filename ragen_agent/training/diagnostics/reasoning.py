"""Which tokens of a reply are its reasoning, found in the tokens as they were sampled.

Nothing is encoded again: the sampled ids are decoded one by one, and the tags, which are plain ASCII, are looked for
in the joined pieces. A token that holds a tag's end and the first letters after it belongs to both sides of the seam
and is counted with the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from ragen_agent.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PARTS", "piece_decoder", "reasoning_spans", "reply_parts", "turn_spans"]

THINK, END_THINK = "<think>", "</think>"
PARTS = ("reasoning", "answer")

Span = tuple[int, int]


def piece_decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """The text of one id, special tokens included, remembered for each id."""

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
    """Each turn's reasoning (up to and with its closing tag) or answer (the rest), so that the two make the reply.

    Args:
        trajectory: any.
        piece: see `piece_decoder`.
        part: "reasoning" or "answer". A reply without a closing tag is an answer.

    Returns:
        a span (first, end) of token indices for each turn, perhaps empty.

    Raises:
        ValueError: an unknown part.
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
    """The tokens between the thinking tags of each turn, without the tags.

    A template may open the thinking itself; then it begins with the reply.

    Returns:
        a span (first, end) of token indices for each turn; empty where the thinking is empty or not closed.
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
        # A token is inside if any of its characters is: it ends after `start` and begins before `close`.
        inside = bisect_right(ends, start), _tokens_until(ends, close)
        spans.append((first + inside[0], first + inside[1]))
    return spans


def _text(trajectory: Trajectory, span: Span, piece: Callable[[int], str]) -> tuple[str, list[int]]:
    """The text of a span, and where in it each token ends."""
    pieces = [piece(int(token)) for token in trajectory.ids[slice(*span)]]
    return "".join(pieces), list(accumulate(map(len, pieces)))


def _tokens_until(ends: list[int], character: int) -> int:
    """How many tokens it takes to hold the first `character` characters."""
    return next((count for count, end in enumerate(ends, 1) if end >= character), len(ends))
