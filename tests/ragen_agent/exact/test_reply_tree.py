"""Reply trees: probabilities that add up, tokens read as the engine reads them, and prefixes that cannot be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ragen_agent import ChatFormat
from ragen_agent.exact.reply_tree import CUT, ENDED, HOPELESS, INNER, ReplyTexts, Root, walk
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.models.small_model import build_tokenizer
from ragen_gym import make_turn
from ragen_gym.envs.reply import parse_reply
from tests.ragen_agent.exact.conftest import Tiny
from tests.ragen_agent.update.test_prefix_tree import gpt2, llama

Make = Callable[..., Tiny]


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("shared", [0, 5])
def test_a_tree_is_read_as_whole_rows_are(build: Callable[[], PreTrainedModel], shared: int) -> None:
    torch.manual_seed(0)
    model, rng = build(), np.random.default_rng(0)
    reader = TreeReader(model, 40, 0.7)
    opening = rng.integers(1, 40, shared).tolist()
    for _ in range(2):  # the opening is read once
        prompts = [[*opening, place + 1, *rng.integers(1, 40, size).tolist()] for place, size in enumerate((3, 7, 1))]
        first = reader.prompts(prompts)
        rows, found = [list(prompt) for prompt in prompts], list(first)
        trees, numbers = [0, 1, 2], [-1, -1, -1]
        count = 0
        for _ in range(4):
            chosen = rng.integers(0, len(rows), 6)
            tokens = rng.integers(1, 40, 6)
            now = reader.grow(np.array([trees[i] for i in chosen]), np.array([numbers[i] for i in chosen]), tokens)
            for place, (i, token) in enumerate(zip(chosen.tolist(), tokens.tolist(), strict=True)):
                rows.append([*rows[i], token])
                trees.append(trees[i])
                numbers.append(count + place)
                found.append(now[place])
            count += 6
        for row, distribution in zip(rows, found, strict=True):
            with torch.no_grad():
                expected = (model(torch.tensor([row])).logits[0, -1].double() / 0.7).softmax(-1)
            assert distribution == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_mass_of_a_tree_adds_up(tiny: Make) -> None:
    policy = tiny()
    levels = policy.levels(1, 2, 3)
    texts = ReplyTexts(policy.chat, think=False, known_form=True)
    for mass in (0.3, 1e-2, 1e-5):
        roots = [Root(level.prompt(level.start), 5, 2, mass, level.env.parse) for level in levels]
        for tree, level in zip(walk(policy.reader(), texts, roots), levels, strict=True):
            assert tree.chances.sum() + tree.left_out == pytest.approx(1.0)
            assert tree.left_out <= mass
            for node in np.flatnonzero(tree.outcome >= 0).tolist():
                ids = tree.path(node)
                reply = level.env.parse(policy.chat.decode_reply(ids))
                outcome = tree.outcomes[tree.outcome[node]]
                assert outcome.malformed == (reply.problem is not None)
                assert outcome.actions == reply.actions[:2] or tree.kind[node] == HOPELESS
                assert (ids[-1] in policy.chat.stop_ids) == (tree.kind[node] == ENDED)
                assert len(ids) == 5 or tree.kind[node] != CUT
                assert tree.find(ids)[-1] == node
            for parent in np.flatnonzero(tree.kind == INNER):
                below = tree.reach[tree.parent == parent].sum() + tree.closed[parent]
                assert below == pytest.approx(tree.reach[parent])


TOKENIZER = build_tokenizer()
PIECES = ["<answer>", "</answer>", "<think>", "Up", " Left", " ||", " ", "\n", "O", "\u00e9", "<ans", "wer>"]


@pytest.fixture(scope="module", params=["words", "bytes"])
def spelled(
    request: pytest.FixtureRequest, make_tokenizer: Callable[[str, str], PreTrainedTokenizerBase]
) -> tuple[ChatFormat, list[int]]:
    """A chat format, and tokens to write: of whole words, or parts of words and of characters."""
    tokenizer = TOKENIZER if request.param == "words" else make_tokenizer("bpe", "chatml")
    ids = {token for piece in PIECES for token in tokenizer.encode(piece, add_special_tokens=False)}
    return ChatFormat.from_tokenizer(tokenizer), sorted(ids)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), think=st.booleans())
def test_a_hopeless_beginning_stays_malformed(
    spelled: tuple[ChatFormat, list[int]], data: st.DataObject, think: bool
) -> None:
    chat, words = spelled
    whole = st.sampled_from(["<answer>Up</answer>", "<answer>Up || \u00e9 || Left</answer>", "<think>O</think>"])
    ids = chat.reply_ids(data.draw(whole))[:-1] if data.draw(st.booleans()) else []
    ids = [*ids, *data.draw(st.lists(st.sampled_from(words), max_size=8))]
    length, node = data.draw(st.integers(0, len(ids))), 0
    texts = ReplyTexts(chat, think=think, known_form=True)
    for token in ids[:length]:
        node = texts.child(node, token)
    hopeless = texts.hopeless(node)
    for token in ids[length:]:
        node = texts.child(node, token)
    reply = parse_reply(texts.text(node), ("Left", "Down", "Right", "Up"), think=think)
    if hopeless:
        assert reply.problem is not None
        assert not reply.actions


@pytest.mark.parametrize("budget", ["", "<budget>[1, 12]</budget>", "<budget>impossible</budget>"])
def test_a_reply_that_is_being_written_is_not_hopeless(spelled: tuple[ChatFormat, list[int]], budget: str) -> None:
    chat, _ = spelled
    texts, node = ReplyTexts(chat, think=False, known_form=True, budget=bool(budget)), 0
    for token in chat.reply_ids(f"{budget}<answer>Up || \u00e9 || Left</answer>")[:-1]:
        node = texts.child(node, token)
        assert not texts.hopeless(node), texts.text(node)


def test_other_forms_are_never_hopeless() -> None:
    """RAGEN's prompt begins the reply, and reads it leniently."""
    env = make_turn("FrozenLake", prompt="ragen-v1", think=False)
    chat = ChatFormat.from_tokenizer(TOKENIZER, reply_opening=env.config.reply_opening)
    texts = ReplyTexts(chat, think=False, known_form=False)
    assert not texts.hopeless(texts.child(0, chat.reply_ids("Up")[0]))


def test_models_that_cannot_be_read_along_a_tree_are_refused() -> None:
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = MistralConfig(num_attention_heads=4, num_key_value_heads=2, sliding_window=8, **sizes)
    model = MistralForCausalLM(config)
    with pytest.raises(ValueError, match="mistral cannot be read along a tree"):
        TreeReader(model, 40, 1.0)
    with pytest.raises(ValueError, match="temperature is 0; it must be positive"):
        TreeReader(llama(), 40, 0)
