"""The small model: a Qwen2 of a few hundred thousand parameters from scratch, and a tokenizer made from the games.

The head size is 32, which inference servers' attention kernels support, so the checkpoint loads wherever a Qwen2 loads.
The tokenizer has words, digits and board symbols, one id each. Three rules make it exact and short:

- Every piece keeps its white space and decoding joins pieces, so text -> ids -> text is the identity.
- A capital letter that no small letter follows is a piece of its own, as is every sign: neighbouring symbols of a
  board never merge into a word.
- A phrase of the rules that stands in every level's messages, such as a whole sentence of the instructions, is one
  id. The text that a reader sees is unchanged and the prompt is several times shorter. Such ids are for reading
  only: ``reading_only`` lists them, and a model that uses this tokenizer suppresses them when it writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from ragen_agent.config import SmallModel
from ragen_agent.training.checkpoint import tokenizer_hash
from ragen_agent.training.demo_thoughts import WORDS, thinking
from ragen_gym.envs.turn import TurnEnv

__all__ = ["END", "START", "GameTexts", "build_model", "build_tokenizer", "check_known", "game_texts", "reading_only"]

HEAD_SIZE = 32
CONTEXT = 4096
INITIAL_SCALE = 0.1  # about 1 / sqrt(hidden); the usual 0.02, meant for wide models, learns several times slower here

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
PIECE = r"</?[a-z]+>| ?\|\|| ?[A-Z]?[a-z]+| ?(?:1[0-9]|[0-9])|\s|\S"
ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LEVELS = 200  # enough to meet every pair of the bandits' names
PLAYED = 8


def build_model(shape: SmallModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A model with weights drawn from ``seed``, which may not write the tokenizer's ids for reading only.

    Raises:
        ValueError: a model without layers or without units in them.
    """
    for name, number in (("layers", shape.layers), ("feed_forward", shape.feed_forward)):
        if number < 1:
            raise ValueError(f"small_model.{name} is {number}; it must be at least 1.")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // HEAD_SIZE,
        num_key_value_heads=shape.hidden // HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=INITIAL_SCALE,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.tokenizer_sha256 = tokenizer_hash(tokenizer)
    with torch.random.fork_rng():  # weights are drawn from torch's global state: seed it, then put it back as it was
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=reading_only(tokenizer),
        do_sample=True,
    )
    model.eval()
    return model


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
    """The ids of words, of a tokenizer that ``build_tokenizer`` made; none of any other."""
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


@dataclass(frozen=True)
class GameTexts:
    """The texts of a game that its tokenizer is made from."""

    levels: list[list[str]]
    """The instructions and user messages of an episode on each level."""
    replies: set[str]
    """What a policy may write."""


def game_texts(env: TurnEnv, thought: str) -> GameTexts:
    """Messages on ``LEVELS`` levels; the first ``PLAYED`` are played badly and well, so that every kind occurs."""
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
