"""Small tokenizers with the chat templates of the model families that people train."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from hypothesis import settings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ragen_agent import ChatFormat

# How long an example takes says nothing on a busy machine; the same examples each time make a failure repeat.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

TEMPLATES = {
    # Qwen2.5: ChatML with a default system message.
    "chatml": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Llama 3: a header for each role, no line end after a turn, white space at a message's ends stripped.
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    # Plain text; the only special token ends a reply. The generation prompt stops before the space, as it must for
    # a byte-level tokenizer, whose words begin with theirs.
    "plain": (
        "{% for m in messages %}{% if m.role == 'assistant' %}assistant: {{ m.content | trim }}{{ eos_token }}\n"
        "{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
    # Qwen3: a reply's thinking goes as soon as a user message follows; an empty block before a reply on wish.
    "qwen3": (
        "{% set ns = namespace(last=-1) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.last %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
}
_CHATML_PAST = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.role == 'assistant' %}PAST"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}\n{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistantOPENING{% endif %}"
)
#: Families whose header before an earlier reply is not the header before a requested reply.
OTHER_HEADERS = {
    "glm4-moe": _CHATML_PAST.replace("PAST", "\n<think></think>\n").replace("OPENING", ""),
    "nemotron3": _CHATML_PAST.replace("PAST", "\n<think></think>").replace("OPENING", "\n<think>\n"),
    "qwen3.5": _CHATML_PAST.replace("PAST", "\n<think>\n\n</think>\n\n").replace("OPENING", "\n<think>\n"),
    # gpt-oss: the policy names the channel of its reply itself; the last reply of a conversation ends in another token.
    "gpt-oss": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}{{ ' final' if m.role == 'assistant' }}"
        "<|end_header_id|>{{ m.content.split('</think>')[-1] }}"
        "{{ '<|endoftext|>' if m.role == 'assistant' and loop.last else '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant{% endif %}"
    ),
}
TEMPLATES |= OTHER_HEADERS
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>")
LLAMA_SPECIAL = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<unk>")
CORPUS = (
    "You are helpful. system user assistant: <think> The goal is above. </think><answer>Up || Left</answer>",
    "Turn 1 of 5, actions left: 10.\nP___\n_O__\n__O_\n___G\nReply with <think>thoughts</think><answer>Up</answer>",
    "You go nowhere: Down || Down, Right || Down || Left",
    "the lake is frozen and the holes are deep\n\n\n  move  Up, Down, Left or Right  -0.1 for each action\n",
)


def _byte_level_bpe() -> Tokenizer:
    """Merges within the word pattern of Llama 3 and Qwen, where ' the' and '\\n\\n' are single tokens."""
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(words), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(alphabet),
        special_tokens=[*SPECIAL, *LLAMA_SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_level() -> Tokenizer:
    """Whole words, white space kept; the special tokens are words of its vocabulary too, split or not."""
    pattern = r"<\|[a-z_]+\|>|</?[a-z]+>|\s|[A-Za-z]+|\S"
    words = sorted({word for text in CORPUS for word in re.findall(pattern, text)})
    names = dict.fromkeys([*SPECIAL, *LLAMA_SPECIAL, *words])
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[str, str], PreTrainedTokenizerFast]:
    """A tokenizer of a kind ("bpe", "words") with a template, by its name or as text."""

    def make(kind: str, template: str) -> PreTrainedTokenizerFast:
        tokenizer = {"bpe": _byte_level_bpe, "words": _word_level}[kind]()
        special = [AddedToken(name, normalized=False) for name in (*SPECIAL, *LLAMA_SPECIAL)]
        tokenizer.add_special_tokens(special)
        tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
        ends = {"chatml": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>"}
        end = ends.get(template, "<|endoftext|>")
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token="<|begin_of_text|>",
            eos_token=end,
            pad_token="<|endoftext|>",
            unk_token="<unk>",
            clean_up_tokenization_spaces=False,
        )
        fast.chat_template = TEMPLATES.get(template, template)
        return fast

    return make


FORMATS = [
    ("bpe", "chatml"),
    ("bpe", "llama3"),
    ("bpe", "plain"),
    ("bpe", "qwen3"),
    ("words", "chatml"),
    ("words", "plain"),
]


@pytest.fixture(scope="session", params=FORMATS, ids="-".join)
def chat(request: pytest.FixtureRequest, make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast]) -> ChatFormat:
    """One chat format for each kind of tokenizer and template."""
    return ChatFormat.from_tokenizer(make_tokenizer(*request.param))
