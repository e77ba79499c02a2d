"""A chat template's texts in the tokens of its tokenizer.

The start and end tokens of a reply, the spellings that messages must not produce, and the text for a picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_agent.tokens.chat_template import Render, TemplateText, read_image_text
from ragen_agent.tokens.message_encoding import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ragen_agent.inference.vision import Vision

__all__ = [
    "control_tokens",
    "end_of_reply",
    "generation_ends",
    "picture_text",
    "unfinished_header",
]

_THINK, _END_THINK = "<think>", "</think>"
_MARKUP = re.compile(r"[^\w\s]\S*[^\w\s]")


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
