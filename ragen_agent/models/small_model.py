"""The small model: a Qwen2 of a few hundred thousand parameters from scratch, and a tokenizer built from the games.

The head size is 32, which inference servers' attention kernels support, so the checkpoint loads wherever a Qwen2 loads.
The tokenizer has the words, digits and board symbols of every game of the suite, one id each, so an agent trained on
one game can play them all. Four rules make it exact and short:

- Every piece keeps its white space and decoding joins pieces, so text -> ids -> text is the identity.
- Signs, digits, and capital letters without a following small letter are pieces of their own: neighbouring symbols of a
  board never merge into a word.
- A place such as ``(2,4)`` is two pieces, its row and its column.
- A phrase in the messages of every level, such as a sentence of the instructions, is one id. The visible text is
  unchanged, and the prompt is several times shorter. Boards and the meanings of their symbols are never part of a
  phrase, so other symbols change nothing else. Phrase ids are for reading only: ``reading_only`` lists them, and a
  model with this tokenizer suppresses them when it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from ragen_agent.config import SmallModel
from ragen_agent.models.checkpoint import tokenizer_hash
from ragen_agent.tasks.demo_thoughts import WORDS, thinking
from ragen_agent.tokens.board_tokens import formats_of
from ragen_gym.envs.messages import IMAGE
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.registry import TABLE

HEAD_SIZE = 32
CONTEXT = 4096
INITIAL_SCALE = 0.1  # about 1 / sqrt(hidden); the usual 0.02, meant for wide models, learns several times slower

_Model = TypeVar("_Model", bound=PreTrainedModel)

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
PIECE = r"</?[a-z]+>| ?\|\|| ?[A-Z]?[a-z]+| ?\([0-9],|[0-9]\)| ?[0-9]|\s|\S"
ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LEVELS = 200  # enough for every pair of the bandits' names to occur
FEW = 8  # enough to exclude chance recurrences in a game with the same names on every level
PLAYED = 8

#: Options that change the wording of the messages, each with defaults for the rest.
WORDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"think": False},
    {"grounding": True, "world_modelling": True},
    {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1},
    {"max_actions_per_turn": 1, "think": False},
    {"prompt": "ragen-v1"},
    {"prompt": "ragen-v1", "think": False},
)


def build_model(shape: SmallModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A model with weights drawn from ``seed``, which may not write the tokenizer's ids for reading only."""
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
    return from_scratch(Qwen2ForCausalLM, config, tokenizer, seed)


def from_scratch(kind: type[_Model], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> _Model:
    """A model with weights drawn from ``seed``, which may not write the tokenizer's ids for reading only."""
    # Weights are drawn from torch's global state, on the CPU: seed it, then restore it.
    with torch.random.fork_rng(devices=[]):  # without devices it would take memory on every GPU
        torch.default_generator.manual_seed(seed)
        model = kind(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=reading_only(tokenizer),
        do_sample=True,
    )
    model.train(False)
    return model


def build_tokenizer(games: Sequence[GameTexts] = ()) -> Qwen2Tokenizer:
    """A word-level tokenizer with a ChatML template, of the suite's texts and these.

    Its ids depend on the texts alone, not on their order, so it is the same for every run on games of the suite, unless
    options such as names of arms add words.
    """
    every = [*suite_texts(), *games]
    phrases = {phrase for game in every for phrase in _phrases(game.frames)} | {f"{role}\n" for role in ROLES}
    texts = {text for game in every for level in game.frames for text in level}.union(*(game.texts for game in every))
    words = {piece for text in texts for piece in re.findall(PIECE, text)}
    words |= {form.format(digit) for digit in range(10) for form in ("{}", " {}", "({},", " ({},", "{})")}
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
    """The ids that replies must not hold, increasing: phrases, single bytes, padding, the start of a message."""
    words = {
        index
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.content == END or (not token.special and re.fullmatch(PIECE, token.content))
    }
    return [index for index in range(len(tokenizer)) if index not in words]


def check_known(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> None:
    """Raises a ValueError if a text holds a word that the small tokenizer can only spell byte by byte.

    Other tokenizers always pass, since they were trained on such spellings.
    """
    known = _known(tokenizer)
    if known and not known.issuperset(ids):
        spelled = [place for place, index in enumerate(ids) if index not in known]
        nearby = ids[max(0, spelled[0] - 8) : spelled[0] + 12]
        raise ValueError(
            f"the small model's tokenizer does not know a word in {tokenizer.decode(list(nearby))!r}. It was built "
            "without the texts of these settings: train a model with them, or use --model with a general tokenizer."
        )


@cache
def _known(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The word ids of a tokenizer from ``build_tokenizer``; empty for any other."""
    made_here = {START, f"{ROLES[0]}\n"} <= tokenizer.get_vocab().keys()
    return frozenset(tokenizer.added_tokens_decoder) if made_here else frozenset()


def _phrases(levels: Sequence[Sequence[str]]) -> set[str]:
    """Runs of two words or more, without digits or line ends, common to the texts of every level."""
    each = [
        {
            run
            for text in texts
            for run in re.split(r" ?\((?=[0-9])|[0-9\n]", text)
            if len(re.findall(r"[A-Za-z]+", run)) > 1
        }
        for texts in levels
    ]
    return set.intersection(*each) if each else set()


@dataclass(frozen=True)
class GameTexts:
    """The texts of a game for its tokenizer."""

    frames: list[list[str]]
    """The instructions and user messages of an episode on each level, without boards and symbols."""
    texts: set[str]
    """Boards, the meanings of their symbols, and texts that a policy may write."""


@cache
def suite_texts() -> tuple[GameTexts, ...]:
    """The texts of every game of the suite: in each of its vocabularies, text formats and ``WORDINGS``."""
    words = GameTexts([], set(WORDS.values()))
    return (words, *(_texts(env, "none", LEVELS if env.game.layout == "arms" else FEW) for env in _suite()))


def game_texts(env: ReplyEnv, thought: str) -> GameTexts:
    """The texts of one environment and of a demonstrator with this thought."""
    if isinstance(env, TaskEnv):
        return _task_texts(env)
    assert isinstance(env, TurnEnv)
    return _texts(env, thought, LEVELS)


def _suite() -> Iterator[TurnEnv]:
    """Every game of the suite in every form; a user's game adds its texts in its own runs."""
    for spec in TABLE.values():
        if not spec.game.startswith("ragen_gym."):
            continue
        plain = make_turn(spec.name)
        yield from (make_turn(spec.name, **wording) for wording in WORDINGS)
        yield from (make_turn(spec.name, vocabulary=name) for name in plain.game.vocabularies)
        yield from (make_turn(spec.name, text_format=name) for name in formats_of(plain))


def _task_texts(env: TaskEnv) -> GameTexts:
    """The messages and known replies of ``LEVELS`` episodes of a text task, each played to its end."""
    found, rng = GameTexts([], set()), np.random.default_rng(0)
    writers = [env.optimal_reply] * env.has_oracle + [lambda: env.random_reply(rng)] * env.has_random_replies
    for seed in range(LEVELS):
        frame = env.instructions.split("\n")
        for write in writers or [lambda: ""]:
            env.reset(seed=seed)
            frame.append(env.message_text)
            while not env.over:
                reply = write()
                found.texts.add(reply)
                env.step(reply)
                frame.append(env.message_text)
        found.frames.append(frame)
    return found


def _texts(env: TurnEnv, thought: str, levels: int) -> GameTexts:
    """Messages on ``levels`` levels; the first ``PLAYED`` are played badly and well, so that every kind occurs."""
    legend = [meaning for _, meaning in env.game.legend(env.env.vocabulary)]
    lines = env.instructions.split("\n")
    symbols = [line for line in lines if legend and all(meaning in line for meaning in legend)]
    rules = [line for line in lines if line not in symbols]
    found = GameTexts([], {*symbols, *env.env.vocabulary.symbols, WORDS.get(thought, "")})
    cells = env.game.layout == "grid" and env.env.text_format != "coord"  # its symbols are words of their own
    for seed in range(levels):
        _, info = env.reset(seed=seed)
        frame, over = list(rules), seed >= PLAYED
        names = env.action_names
        opening = thinking(env, thought)
        found.texts.update(f"{opening}<answer>{name} || {name}</answer>" for name in names)
        replies: Sequence[str] = [names[seed % len(names)], f"{opening}<answer>{' || '.join(names)}</answer>"]
        shown: list[str] = []  # boards in the message
        while True:
            found.texts.add("" if cells else env.board)
            shown = [*shown, env.board][-1 - env.config.summary :]
            text = env.message_text.replace(IMAGE, "\n")
            for board in shown:
                text = text.replace(board, "\n", 1)
            frame.append(text)
            if over:
                break
            _, _, terminated, truncated, info = env.step(replies[info["turn"] % 2])
            over = terminated or truncated
        found.frames.append(frame)
    return found
