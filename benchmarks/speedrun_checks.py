"""Refusals of a tokenizer that could hold the policy, and of replies with more moves than ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from ragen_agent import Trajectory


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refusal of a tokenizer that rewrites texts.

    Normalizers and the patterns of pre-tokenizers can search for ways on a board, and decoders can spell moves.

    Raises:
        ValueError: it is not of the library ``tokenizers``, has a normalizer, a pre-tokenizer other than ByteLevel, or
            a decoder other than ByteLevel.
    """
    parts = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(parts, Tokenizer):
        raise ValueError(f"the tokenizer is a {type(tokenizer).__name__}; give one of the library tokenizers.")
    if parts.normalizer is not None:
        raise ValueError(
            f"the tokenizer has a normalizer, {type(parts.normalizer).__name__}, which can rewrite boards; remove it."
        )
    if not isinstance(parts.pre_tokenizer, pre_tokenizers.ByteLevel | None):
        raise ValueError(
            f"the tokenizer's pre-tokenizer is {type(parts.pre_tokenizer).__name__}, which can cut boards; "
            "use ByteLevel alone, or none."
        )
    if not isinstance(parts.decoder, decoders.ByteLevel):
        found = "missing" if parts.decoder is None else type(parts.decoder).__name__
        raise ValueError(f"the tokenizer's decoder is {found}; use ByteLevel alone, so that ids spell their own text.")


def check_spellings(texts: Mapping[int, str], names: Sequence[str]) -> None:
    """Raises a ValueError for an id whose text names two moves: with such ids any plan would be one token."""
    for token, text in texts.items():
        if _moves(text, names) > 1:
            raise ValueError(f"the id {token} spells {text!r}; an id may spell one move at most.")


def check_replies(trajectory: Trajectory, names: Sequence[str]) -> None:
    """Raises a ValueError for a reply whose text names more moves than it has ids."""
    replies = [message["content"] for message in trajectory.messages if message["role"] == "assistant"]
    begun = 0
    for reply, end in zip(replies, trajectory.turn_ends, strict=True):
        ids, begun = int(trajectory.sampled[begun : end + 1].sum()), end + 1
        if (moves := _moves(reply, names)) > ids:
            raise ValueError(f"a reply of {ids} ids spells {moves} moves, {reply!r}; an id may spell one move at most.")


def _moves(text: str, names: Sequence[str]) -> int:
    """Moves that a text names, in upper or lower case, as the environment reads them."""
    return len(re.findall("|".join(names), text, re.IGNORECASE))
