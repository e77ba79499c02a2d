"""A small tokenizer made from the games' own texts: words, digits and board symbols, one id each.

Three rules make it exact and short:

- Every piece keeps its white space and decoding joins pieces, so text -> ids -> text is the identity.
- A capital letter that no small letter follows is a piece of its own, as is every sign: neighbouring symbols of a
  board never merge into a word.
- A phrase of the rules that stands in every level's messages, such as a whole sentence of the instructions, is one
  id. The text that a reader sees is unchanged and the prompt is several times shorter. Such ids are for reading
  only: `reading_only` lists them, and a model that uses this tokenizer suppresses them when it writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from ragen_agent.training.demo_thoughts import WORDS, thinking
from ragen_gym.envs.turn import TurnEnv

__all__ = ["END", "START", "GameTexts", "build_tokenizer", "check_known", "game_texts", "reading_only"]

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
PIECE = r"</?[a-z]+>| ?\|\|| ?[A-Z]?[a-z]+| ?(?:1[0-9]|[0-9])|\s|\S"
ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(games: Sequence[GameTexts]) -> Qwen2Tokenizer:
    """A word-level tokenizer with a ChatML template; its ids depend on the texts alone, not on their order."""
    phrases = {phrase for game in games for phrase in _phrases(game.levels)} | {f"{role}\n" for role in ROLES}
    texts = [text for game in games for level in game.levels for text in level]
    texts += [text for game in games for text in game.replies]
    words = {piece for text in texts for piece in re.findall(PIECE, text)}
    words |= {f"{space}{n}" for space in ("", " ") for n in range(20)}  # numbers that no text happened to hold
    control = [PAD, START, END]
    vocabulary = dict.fromkeys([*control, *sorted(phrases), *sorted(words - phrases), *sorted(ByteLevel.alphabet())])
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=PAD,  # never drawn: every byte has an id
        additional_special_tokens=[START],
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in sorted(phrases | words)])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def reading_only(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that no reply may hold, increasing: phrases, single bytes, padding, the start of a message."""
    words = {
        index
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.content == END or (not token.special and re.fullmatch(PIECE, token.content))
    }
    return [index for index in range(len(tokenizer)) if index not in words]


def check_known(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> None:
    """Raises a ValueError if a text held a word that this tokenizer could only spell byte by byte.

    Any other tokenizer passes: spelling is what it was trained on.
    """
    known = _known(tokenizer)
    if known and not known.issuperset(ids):
        spelled = [place for place, index in enumerate(ids) if index not in known]
        nearby = ids[max(0, spelled[0] - 8) : spelled[0] + 12]
        raise ValueError(
            f"the small model's tokenizer lacks a word, here: {tokenizer.decode(list(nearby))!r}. It was made from "
            "another game's texts: train a model on this game, or give --model a model with a general tokenizer."
        )


@cache
def _known(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids of words, of a tokenizer that `build_tokenizer` made; none of any other."""
    made_here = {START, f"{ROLES[0]}\n"} <= tokenizer.get_vocab().keys()
    return frozenset(tokenizer.added_tokens_decoder) if made_here else frozenset()


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


LEVELS = 200  # enough to meet every pair of the bandits' names
PLAYED = 8


@dataclass(frozen=True)
class GameTexts:
    """`levels`: the instructions and user messages of an episode on each level; `replies`: what a player may write."""

    levels: list[list[str]]
    replies: set[str]


def game_texts(env: TurnEnv, thought: str) -> GameTexts:
    """Messages on `LEVELS` levels; the first `PLAYED` are played badly and well, so that all kinds of message occur."""
    texts = GameTexts([], {WORDS[thought]} if thought in WORDS else set())
    for seed in range(LEVELS):
        _, info = env.reset(seed=seed)
        over = seed >= PLAYED
        names = env.action_names
        opening = thinking(env, thought)
        texts.replies.update(f"{opening}<answer>{name} || {name}</answer>" for name in names)
        replies: Sequence[str] = [names[seed % len(names)], f"{opening}<answer>{' || '.join(names)}</answer>"]
        while not over:
            _, _, terminated, truncated, info = env.step(replies[info["turn"] % 2])
            over = terminated or truncated
        texts.levels.append([m["content"] for m in info["messages"] if m["role"] != "assistant"])
    return texts
