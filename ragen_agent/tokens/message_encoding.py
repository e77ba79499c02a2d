"""Encoding of texts so that messages cannot end a turn or speak for another role.

A message that spells a special token is cut inside the spelling, and its parts are encoded one by one: the characters
stay the same, and only these messages' ids differ from the ids of the whole text. (A tokenizer that puts a space before
every text, as the first Llama models do, shows one at the cut.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["MessageEncoder", "decode", "encode"]

_CACHED = 2**20  # cached ids; all are forgotten at once
_ENTRIES = 4096  # cached parts: all are counted for a new one


@dataclass(frozen=True)
class MessageEncoder:
    """Encodes messages within the texts of a chat template.

    Attributes:
        tokenizer: encodes.
        end_id: the id that ends a reply.
        control: spellings of the tokens that messages must not produce, with their ids.
    """

    tokenizer: PreTrainedTokenizerBase
    end_id: int
    control: Mapping[str, int]
    _expected: dict[tuple[str, ...], list[int]] = field(default_factory=dict, repr=False, compare=False)
    _encoded: dict[tuple[str, ...], list[int]] = field(default_factory=dict, repr=False, compare=False)

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """Ids of template texts and messages in turn, a template text first and last.

        Recent encodings are cached: the rollouts of a group read the same prompt, and often the same board.

        Raises:
            ValueError: a message holds a special token that has no other spelling.
        """
        key = tuple(pieces)
        ids = self._encoded.get(key)
        if ids is None:
            ids = self._encode(key)
            kept = [*self._encoded.values()]
            if len(kept) >= _ENTRIES or len(ids) + sum(map(len, kept)) > _CACHED:
                self._encoded.clear()
            self._encoded[key] = ids
        return ids.copy()

    def control_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids among these that messages must not produce."""
        control = set(self.control.values())
        return [token for token in ids if token in control]

    def cut(self, message: str) -> list[str]:
        """The message in parts, cut after the first character of every special token that it spells."""
        cuts = [match.start() + 1 for match in self._spelled.finditer(message)]
        return [message[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]

    def _encode(self, pieces: tuple[str, ...]) -> list[int]:
        templates = pieces[::2]
        if templates not in self._expected:
            self._expected[templates] = self.control_ids(encode(self.tokenizer, "x".join(templates)))
        expected = self._expected[templates]
        ids = encode(self.tokenizer, "".join(pieces))
        if self.control_ids(ids) == expected:
            return ids
        runs = [""]
        for index, piece in enumerate(pieces):
            first, *others = self.cut(piece) if index % 2 else [piece]
            runs[-1] += first
            runs += others
        end = self.tokenizer.convert_ids_to_tokens(self.end_id)
        ids = encode(self.tokenizer, runs[0])
        for run in runs[1:]:  # after a special token, so that it does not count as the start of a text
            ids += encode(self.tokenizer, f"{end}{run}")[1:]
        if self.control_ids(ids) != expected:
            raise ValueError(
                f"a message holds a special token that has no other spelling: {[*pieces[1::2]]!r}; choose "
                "symbols for the board that are not special tokens"
            )
        return ids

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        tokens = "|".join(re.escape(token) for token in sorted(self.control, key=len, reverse=True))
        return re.compile(f"(?=(?:{tokens}))", re.IGNORECASE)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text; straight from the Rust tokenizer if ``transformers`` would add only time."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.truncation is None and backend.padding is None:
        [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)  # "fast": it leaves out the offsets
        return list(encoding.ids)
    return list(tokenizer.encode(text, add_special_tokens=False))


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """The text of ids without special tokens; see ``encode``."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.decode(ids, skip_special_tokens=True))
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
