"""Rollouts as rows of ids: what was sampled stays as it was, and the template's text between replies is masked."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_gym.integrations import Rollout
from ragen_gym.integrations.token_rollout import TokenRollout
from tests.integrations.library import CHATML, REPLIES, byte_tokenizer

OPTIONS: dict[str, Any] = {"split": "test", "success_rate": 1, "max_turns": 3}


def begun(seed: int = 7, **options: Any) -> Rollout:
    rollout = Rollout("FrozenLake", **{**OPTIONS, **options})
    rollout.begin(seed)
    return rollout


def test_the_row_is_the_conversation_and_the_mask_its_replies() -> None:
    tokenizer = byte_tokenizer()
    tokens = TokenRollout(begun(), tokenizer)
    going = True
    for reply in REPLIES:
        assert going
        ids = tokenizer(f"{reply}<|im_end|>")["input_ids"]
        going = tokens.reply(ids, [-0.5] * len(ids))
    assert not going
    assert tokens.rollout.metrics()["malformed_replies"] == 1.0
    whole = tokenizer.apply_chat_template(tokens.rollout.messages[:-1], tokenize=False)
    assert tokenizer.decode(tokens.prompt + tokens.ids) == whole.rstrip("\n")
    sampled = tokenizer.decode([id for id, own in zip(tokens.ids, tokens.mask, strict=True) if own])
    assert sampled == "".join(f"{reply}<|im_end|>" for reply in REPLIES)
    assert tokens.log_probs == [-0.5 * own for own in tokens.mask]


def test_ids_that_no_encoding_gives_stay_as_they_were_sampled() -> None:
    tokenizer = byte_tokenizer()
    tokens = TokenRollout(begun(), tokenizer)
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    sampled = [start, *tokenizer("Up?<|im_end|>")["input_ids"]]  # a special token, which the reply's text lacks
    assert tokens.reply(sampled)
    assert tokens.rollout.messages[-2]["content"] == "Up?"
    assert tokens.ids[: len(sampled)] == sampled


@pytest.mark.parametrize("cut", ["Up?", "Up it is: <"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_ends_once_whether_or_not_its_end_was_sampled(ended: bool, cut: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<|pad|>"  # as of models whose turns end with another token than their texts
    tokens = TokenRollout(begun(), tokenizer)
    assert tokens.reply(tokenizer(cut + "<|im_end|>" * ended)["input_ids"])
    text = tokenizer.decode(tokens.ids)
    assert text.startswith(f"{cut}<|im_end|>\n<|im_start|>user\nReward: -0.1.\nTurn 2 of 3")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert sum(tokens.mask) == len(cut) + ended


def test_thinking_that_the_template_opens_belongs_to_the_reply() -> None:
    opening = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")
    tokenizer = byte_tokenizer(opening)
    tokens = TokenRollout(begun(), tokenizer)
    tokens.reply(tokenizer("Up it is.</think><answer>Up</answer><|im_end|>")["input_ids"])
    assert tokens.rollout.metrics()["malformed_replies"] == 0.0
    assert tokens.rollout.metrics()["actions"] == 1.0


def test_variables_of_the_template_reach_every_turn() -> None:
    tokenizer = byte_tokenizer(CHATML.replace("assistant\n{% endif", "assistant\n{{ mode }}{% endif"))
    tokens = TokenRollout(begun(), tokenizer, mode="/no_think")
    assert tokenizer.decode(tokens.prompt).endswith("<|im_start|>assistant\n/no_think")
    assert tokens.reply(tokenizer("Up?<|im_end|>")["input_ids"])
    assert tokenizer.decode(tokens.ids).endswith("<|im_start|>assistant\n/no_think")


def test_no_message_is_added_that_leaves_no_room_for_a_reply() -> None:
    tokenizer = byte_tokenizer()
    sampled = tokenizer("Up?<|im_end|>")["input_ids"]
    whole = TokenRollout(begun(), tokenizer)
    assert whole.reply(sampled)
    for limit, going in ((len(whole.ids) + 1, True), (len(whole.ids), False)):
        tokens = TokenRollout(begun(), tokenizer)
        assert tokens.reply(sampled, limit=limit) is going
        assert tokens.ids == (whole.ids if going else sampled)
        assert tokens.rollout.metrics()["unfinished"] == 1.0
