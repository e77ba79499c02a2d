"""Messages and a tokenizer's chat template turned into token ids, append-only.

A multi-turn episode is one row of ids: the prompt, a sampled reply, the template's glue with the next
message, the next sampled reply, and so on. ``ChatFormat`` takes the template apart once and then encodes only text that
was not sampled: a reply stays in the row as its sampled ids.

From text to ids:

- Template and message between two replies are encoded in one go, from the special token that ends a reply
  to the place where the next reply begins. A tokenizer splits its text at special tokens, so these are the
  ids of the whole rendered conversation, merges across the seams of template and message included.
- No message can end a turn or speak for another role by spelling a special token: see ``MessageEncoder``.
- If the template drops or rewrites earlier thinking and is followed (``drops_thinking``), nothing is appended: each
  turn's prompt is encoded from the whole conversation, and only the tokens sampled after it are trained on. A reply
  that spells a special token in ordinary tokens could then end a turn, so it is malformed (``special_texts``), and
  later prompts hold it with a space in the spelling.
- Text is never merged across the start of a reply: the prompt's ids encode the text up to there.
- A picture in a message becomes the template's text for it, whose placeholder is repeated for each visual token, as the
  model's processor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragen_agent.inference import ImageSpan
from ragen_agent.tokens.chat_template import Content, Render, TemplateText, open_template
from ragen_agent.tokens.message_encoding import (
    MessageEncoder,
    control_tokens,
    decode,
    encode,
    end_of_reply,
    generation_ends,
    picture_text,
    unfinished_header,
)
from ragen_gym.core.validation import shown
from ragen_gym.envs.messages import fold_system
from ragen_gym.envs.reply import open_thinking, whole_reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ragen_agent.config import Turns
    from ragen_agent.inference.vision import Vision

Images = Sequence[NDArray[np.uint8]]
"""The pictures of a message in the order of its parts, each uint8 (height, width, 3)."""


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer with its chat template taken apart; make one with ``from_tokenizer``.

    Attributes:
        tokenizer: encodes messages and decodes replies.
        text: the template's constant texts.
        end_id: the id that ends a reply; appended, unsampled, to a reply that was cut by length.
        after_end: the template's text between the end token and the next user message.
        stop_ids: the ids that end a turn when sampled: ``end_id``, the tokenizer's end of sequence, and the ids that
            the generation config next to the tokenizer names.
        deviations: sentences on differences between a row and the template's rendering of the same conversation; empty
            if there are none.
        begun: the end of the generation prompt that belongs to the reply: a thinking that it opens, or
            ``reply_opening``.
        header: the rest of a reply's header, if the template leaves it to the model (gpt-oss, whose generation prompt
            ends before the channel). Empty for most.
        drops_thinking: True if every turn begins with the conversation as the template writes it, without the thinking
            of earlier replies or with rewritten replies; a ``TokenMDP`` then encodes each turn anew.
        vision: the model's picture handling; None for a text-only model.
        image_text: the template's text for a picture; empty if there is none.
        image_refusal: the reason why messages may not hold pictures; empty if they may.
    """

    tokenizer: PreTrainedTokenizerBase
    text: TemplateText
    end_id: int
    after_end: str
    stop_ids: frozenset[int]
    deviations: tuple[str, ...]
    begun: str
    header: str
    drops_thinking: bool
    vision: Vision | None
    image_text: str
    image_refusal: str
    _render: Render = field(repr=False, compare=False)
    _encoder: MessageEncoder = field(repr=False)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        *,
        keep_thinking: bool = True,
        template_options: Mapping[str, Any] | None = None,
        reply_opening: str = "",
        vision: Vision | None = None,
    ) -> ChatFormat:
        """Take the tokenizer's chat template apart.

        Args:
            tokenizer: a Hugging Face tokenizer with a chat template.
            keep_thinking: some templates (Qwen3, DeepSeek-R1) drop the thinking of a reply once a later message
                follows. True keeps every sampled token in the row, which deviates from such a template (see
                ``deviations``). False follows the template: then each turn is a row of its own (see
                ``drops_thinking``). Templates that write another header before earlier replies (GLM-4 MoE, gpt-oss)
                require False. If a model writes the end of that header itself (``header``), its reply is the text after
                it, without other channels before it.
            template_options: further variables of the template, such as ``{"enable_thinking": False}``
                (Qwen3) or ``{"date_string": "26 Jul 2024"}`` (Llama 3, which otherwise writes today's date
                into the prompt).
            reply_opening: unsampled start of every reply, such as ``<think>``; ignored if the template opens the
                thinking itself.
            vision: the model's picture handling; None for a text-only model.

        Raises:
            ValueError: the template cannot be used, or not append-only; the message names the cause and the fix.
        """
        if not hasattr(tokenizer, "chat_template"):
            raise ValueError(
                f"{shown(tokenizer)} is not a tokenizer: give for example AutoTokenizer.from_pretrained(PATH)."
            )
        if not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template; set tokenizer.chat_template "
                "(a Jinja text, for example the instruction-tuned model's) and save it with the model"
            )

        render, text = open_template(tokenizer, template_options or {})
        if text.rewrites and keep_thinking:
            raise ValueError(
                f"{text.rewrites}, and a row of tokens can only be appended to; with turns.keep_thinking=false "
                "(keep_thinking=False) each turn is a row of its own, as the template writes it"
            )
        drops = not keep_thinking and not (text.keeps_thinking and not text.rewrites)
        deviations = text.deviations(appended=not drops)
        begun, header = open_thinking(text.opening), unfinished_header(tokenizer, text)
        if reply_opening and not begun:
            written, begun, header = f"{header}{reply_opening}", reply_opening, ""
            text, render = replace(text, opening=f"{text.opening}{written}"), replace(render, opening=written)
        end, after_end, end_deviation = end_of_reply(tokenizer, text)
        end_id = encode(tokenizer, end)[0]
        image_text, image_refusal = picture_text(tokenizer, render, text, vision)
        chat = cls(
            tokenizer=tokenizer,
            text=text,
            end_id=end_id,
            after_end=after_end,
            stop_ids=frozenset({end_id, tokenizer.eos_token_id, *generation_ends(tokenizer)} - {None}),
            deviations=(*deviations, *([] if drops else end_deviation)),
            begun=begun,
            header=header,
            drops_thinking=drops,
            vision=vision,
            image_text=image_text,
            image_refusal=image_refusal,
            _render=render,
            _encoder=MessageEncoder(tokenizer, end_id, control_tokens(tokenizer, text, end)),
        )
        chat._check()
        return chat

    @classmethod
    def from_settings(
        cls, tokenizer: PreTrainedTokenizerBase, turns: Turns, vision: Vision | None = None
    ) -> ChatFormat:
        """The chat format of a run's settings; see ``from_tokenizer``."""
        return cls.from_tokenizer(
            tokenizer,
            keep_thinking=turns.keep_thinking,
            template_options=turns.template_options,
            reply_opening=turns.reply_opening,
            vision=vision,
        )

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Spellings of the tokens that messages must not produce."""
        return tuple(self._encoder.control)

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids, added ones included; a model's output layer may be wider (padded)."""
        return len(self.tokenizer)

    @property
    def reserved_ids(self) -> frozenset[int]:
        """Picture ids, which replies must not hold."""
        return frozenset() if self.vision is None else self.vision.reserved_ids

    def prompt_ids(self, system: str, user: Content, images: Images = ()) -> list[int]:
        """Ids of the conversation's start, up to where the first reply begins.

        Args:
            system: the instructions. Empty means no system message: the template then uses its default, if any
                (Qwen2.5). For a template without system messages they begin the first user message, followed by an
                empty line.
            user: the first user message.
            images: its pictures.

        Raises:
            ValueError: an empty ``system`` where the template demands one, a special token in a message that has no
                other spelling, pictures that the model or its template does not accept, or a wrong number of pictures.
        """
        text = self.text
        system, (first, *others) = self._trimmed(system), self._pieces(user)
        if system and not text.fold_system:
            pieces = [text.before_system, system, text.before_user, first, *others, text.opening]
            return self._expanded(self._encoder.ids(pieces), images)
        if text.without_system is None:
            raise ValueError("the chat template demands a system message; give instructions that are not empty")
        first = f"{system}\n\n{first}" if system else first
        return self._expanded(self._encoder.ids([text.without_system, first, *others, text.opening]), images)

    def glue_ids(self, user: Content, images: Images = ()) -> list[int]:
        """Ids between a reply's end token (excluded) and the place where the next reply begins.

        Args:
            user: the next user message.
            images: its pictures.

        Raises:
            ValueError: a special token in the message that has no other spelling, or its pictures, see ``prompt_ids``.
        """
        end = self.tokenizer.convert_ids_to_tokens(self.end_id)
        ids = self._encoder.ids([f"{end}{self.after_end}", *self._pieces(user), self.text.opening])
        return self._expanded(ids[1:], images)

    def conversation_ids(self, messages: Sequence[Mapping[str, Any]], images: Images = ()) -> list[int]:
        """Ids of a whole conversation as the template writes it, up to where the next reply begins.

        Args:
            messages: {"role", "content"} from the system message on, a user message last. A special token
                spelled in an assistant's message gets a space after its first character.
            images: the pictures of all messages.

        Raises:
            ValueError: a special token in another message, or pictures, see ``prompt_ids``.
        """
        for message in messages:
            self._pieces(message["content"])  # raises for pictures that are not accepted
        said = [dict(message) for message in (fold_system(messages) if self.text.fold_system else messages)]
        for message in said:
            if message["role"] == "assistant":
                message["content"] = " ".join(self._encoder.cut(message["content"]))
        ids = encode(self.tokenizer, self._render(said, True))
        wordless = [{**message, "content": _without_words(message["content"])} for message in said]
        frame = encode(self.tokenizer, self._render(wordless, True))
        if self._encoder.control_ids(ids) != self._encoder.control_ids(frame):
            raise ValueError(
                "a message holds a special token, which a conversation that drops its thinking cannot spell in "
                "another way; choose symbols for the board that are not special tokens, or keep_thinking=True"
            )
        return self._expanded(ids, images)

    def image_spans(self, ids: Sequence[int], images: Images) -> list[ImageSpan]:
        """Places of the pictures in ids that hold exactly their placeholders."""
        if not images:
            return []
        assert self.vision is not None
        spans, at = [], 0
        for pixels in images:
            at = ids.index(self.vision.image_id, at)
            spans.append(ImageSpan(at, self.vision.processor.grid(pixels), pixels))
            at = spans[-1].end
        return spans

    def decode_reply(self, ids: Sequence[int]) -> str:
        """The text of a sampled reply, as the environment reads it.

        A stop token at its end, special tokens and everything up to the last ``header`` are dropped. ``begun``, the
        part of the reply in the generation prompt, is put in front.
        """
        content = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        length = len(self._header_ids)
        for end in range(len(content), length - 1, -1) if length else ():
            if content[end - length : end] == self._header_ids:
                content = content[end:]
                break
        return whole_reply(decode(self.tokenizer, content), begun=self.begun)

    def reply_ids(self, reply: str) -> list[int]:
        """The ids of a reply as a model would sample them, with its ``header`` and end token, without ``begun``.

        Raises:
            ValueError: it spells a special token, at which a rollout would end or which it would skip.
        """
        rest = reply.removeprefix(self.begun if reply.startswith(self.begun) else self.begun.rstrip())
        ids = encode(self.tokenizer, rest)
        if spelled := self._encoder.control_ids(ids):
            raise ValueError(
                f"a reply spells the special token {self.tokenizer.convert_ids_to_tokens(spelled[0])}, which must not "
                "occur within a reply; remove it (the end token is added automatically): "
                f"{shown(reply)}"
            )
        return [*self._header_ids, *ids, self.end_id]

    @cached_property
    def _header_ids(self) -> list[int]:
        return encode(self.tokenizer, self.header)

    def _pieces(self, message: Content) -> list[str]:
        """The texts of a message, with the template's text for a picture between them; a text first and last."""
        if isinstance(message, str):
            return [self._trimmed(message)]
        pieces = [""]
        for part in message:
            if part["type"] == "text":
                pieces[-1] += part["text"]
            elif self.image_refusal:
                raise ValueError(self.image_refusal)
            else:
                pieces += [self.image_text, ""]
        return pieces if len(pieces) > 1 else [self._trimmed(pieces[0])]

    def _expanded(self, ids: list[int], images: Images) -> list[int]:
        """Expand one placeholder per picture into one per visual token."""
        if self.vision is None:
            return ids
        return self.vision.placed(ids, images)[0]

    def _trimmed(self, message: str) -> str:
        return message.strip() if self.text.trims_messages else message

    def _check(self) -> None:
        """Compare the ids of a conversation with the ids of its whole rendered text."""
        system, first, second = "Play well.", "Turn 1:\nP_G", "Turn 2:\n_PG"
        if self.text.fold_system:
            messages = [{"role": "user", "content": f"{system}\n\n{first}"}]
        else:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": first}]
        prompt = encode(self.tokenizer, self._render(messages, True))
        messages += [{"role": "assistant", "content": "Up"}, {"role": "user", "content": second}]
        row = encode(self.tokenizer, self._render(messages, True))
        glue = self.glue_ids(second)
        if self.prompt_ids(system, first) != prompt or row[len(row) - len(glue) :] != glue:
            raise ValueError(
                "the tokenizer encodes a part of a conversation differently from the whole, so its ids cannot "
                "be appended turn by turn; use a tokenizer whose turns are ended by a special token"
            )


def _without_words(content: Content) -> Content:
    """A message with its pictures, without its words."""
    if isinstance(content, str):
        return "x"
    return [{"type": "text", "text": "x"} if part["type"] == "text" else part for part in content]
