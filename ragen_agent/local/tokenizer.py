"""A small tokenizer made from the games' own texts: words, digits and board symbols, one id each.

Three rules make it exact and short:

- Every piece keeps its white space and decoding joins pieces, so text -> ids -> text is the identity.
- A capital letter that no small letter follows is a piece of its own, as is every sign: neighbouring symbols of a board never
  merge into a word.
- A phrase of the rules that stands in every level's messages, such as a whole sentence of the instructions, is one id. The text
  that a reader sees is unchanged and the prompt is several times shorter. Such ids are for reading only:
  `reading_only` lists them, and a model that uses this tokenizer suppresses them when it writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragen_agent.local.texts import GameTexts

__all__ = ["END", "START", "UNKNOWN", "build_tokenizer", "check_known", "reading_only"]

PAD, UNKNOWN, START, END = "<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>"
PIECE = r"</?[a-z]+>| ?\|\|| ?[A-Z]?[a-z]+| ?(?:1[0-9]|[0-9])|\s|\S"
ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(games: Sequence[GameTexts]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with a ChatML template; its ids depend on the texts alone, not on their order."""
    phrases = sorted({phrase for game in games for phrase in _phrases(game.levels)} | {f"{role}\n" for role in ROLES})
    texts = [text for game in games for level in game.levels for text in level]
    texts += [text for game in games for text in game.replies]
    words = {piece for text in [*texts, *ROLES] for piece in re.findall(PIECE, text)}
    words |= {chr(code) for code in range(32, 127)} | {f"{space}{n}" for space in ("", " ") for n in range(20)}
    vocabulary = {
        token: i for i, token in enumerate([PAD, UNKNOWN, START, END, *phrases, *sorted(words - set(phrases))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, UNKNOWN, START, END)])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in phrases])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def reading_only(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that no reply may hold, increasing: phrases, padding, the unknown word, the start of a message."""
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.content != END}
    return sorted(added)


def check_known(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> None:
    """Raises a ValueError if a text held a word that this tokenizer does not know."""
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        place = list(ids).index(tokenizer.unk_token_id)
        raise ValueError(
            f"the tokenizer lacks a word of this game, after {tokenizer.decode(ids[max(0, place - 12) : place])!r}: it was made "
            "from other texts. Train a new model on this game, or give --model a model with a general tokenizer."
        )


def _phrases(levels: Sequence[Sequence[str]]) -> set[str]:
    """Runs of two words or more, without digits or line ends, that every level's messages hold; and whole messages."""
    each = [
        {
            run
            for text in messages
            for run in [text, *re.split(r"[0-9\n]", text)]
            if len(re.findall(r"[A-Za-z]+", run)) > 1
        }
        for messages in levels
    ]
    return set.intersection(*each) if each else set()
