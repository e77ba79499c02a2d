"""Encoding of texts so that messages cannot end a turn or speak for another role, and a template's control tokens.

A message that spells a special token is cut inside the spelling, and its parts are encoded one by one: the characters
stay the same, and only these messages' ids differ from the ids of the whole text. (A tokenizer that puts a space before
every text, as the first Llama models do, shows one at the cut.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_agent.tokens.chat_template import Render, TemplateText, read_image_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ragen_agent.inference.vision import Vision

_CACHED = 512  # encodings; all are forgotten at once
_THINK, _END_THINK = "<think>", "</think>"
_MARKUP = re.compile(r"[^\w\s]\S*[^\w\s]")


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
            if len(self._encoded) >= _CACHED:
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
        return re.compile(f"(?=(?:{tokens}))")


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


def generation_ends(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids that end a reply by ``generation_config.json`` in the tokenizer's folder; none without one."""
    if not tokenizer.name_or_path:
        return set()
    try:
        path = Path(tokenizer.name_or_path, "generation_config.json")
        ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):  # loading the model reports the error
        return set()
    every = ends if isinstance(ends, list) else [ends]
    return {end for end in every if isinstance(end, int) and 0 <= end < len(tokenizer)}


def unfinished_header(tokenizer: PreTrainedTokenizerBase, text: TemplateText) -> str:
    """The rest of a past reply's header after the generation prompt, if a special token ends it; else empty."""
    rest = text.past_opening.removeprefix(text.opening)
    ends = tuple(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return rest if rest != text.past_opening and rest.endswith(ends) else ""


def picture_text(
    tokenizer: PreTrainedTokenizerBase, render: Render, text: TemplateText, vision: Vision | None
) -> tuple[str, str]:
    """The template's text for a picture and the reason if there is none; one of the two is empty."""
    if vision is None:
        name = tokenizer.name_or_path or "here"
        return "", (
            f"a message holds a picture, but the model {name} reads text only; use a visual model "
            "(small_model.kind='vision' trains one from scratch), or turns.observation='text'."
        )
    fix = "use the model's own chat template, saved with the tokenizer, or turns.observation='text'."
    try:
        found = read_image_text(render)
    except ValueError as error:
        return "", f"a message holds a picture, but {error}; {fix}"
    if text.trims_messages or encode(tokenizer, found).count(vision.image_id) != 1:
        one = f"one {tokenizer.convert_ids_to_tokens(vision.image_id)} among messages that it leaves as they are"
        return "", f"a message holds a picture, for which the chat template writes {found!r}, not {one}; {fix}"
    return found, ""


def end_of_reply(tokenizer: PreTrainedTokenizerBase, text: TemplateText) -> tuple[str, str, list[str]]:
    """The token that ends a reply, the text after it, and deviations from the template."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.all_special_tokens)
    found = [(text.closing.find(token), -len(token), token) for token in added if token in text.closing]
    if found:
        position, _, end = min(found)
        lead = text.closing[:position]
        if lead.strip():
            raise ValueError(
                f"the chat template writes {lead!r} between a reply and the token {end} that ends it; use a "
                "template that writes the token right after the reply, where a model samples it"
            )
        if text.after_reply.startswith(lead + end):
            after_end = text.after_reply[len(lead + end) :]
            note = f"the template writes {lead!r} between a reply and its end token; the row does not"
            return end, after_end, [note] if lead else []
    else:
        if tokenizer.eos_token is None:
            raise ValueError(
                f"the chat template ends a reply with {text.closing!r}, which holds no special token, and "
                "the tokenizer has no end-of-sequence token; set tokenizer.eos_token"
            )
        end = str(tokenizer.eos_token)
    return end, text.after_reply, [f"the template does not write {end} after past replies; the row does"]


def control_tokens(tokenizer: PreTrainedTokenizerBase, text: TemplateText, end: str) -> dict[str, int]:
    """The tokens that messages must not produce, with their ids.

    They are the special tokens and the added markup tokens (``<|user|>``, ``[INST]``) that the template itself writes.
    The unknown token is excluded, since any unknown word becomes one, and so are the thinking tags, which instructions
    name.
    """
    frame = "".join((text.before_system, text.before_user, text.without_system or "", text.past_opening))
    frame += text.after_reply
    tokens = {end: encode(tokenizer, end)[0]}
    for index, token in tokenizer.added_tokens_decoder.items():
        if token.special or (_MARKUP.fullmatch(token.content) and token.content in frame):
            tokens[token.content] = index
    for name in (_THINK, _END_THINK, tokenizer.unk_token):
        tokens.pop(str(name), None)
    return tokens
