"""The same ids are the same reply in training, in the benchmark's agents and in the adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ragen_agent.agents.hf import answer_of, rendered
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_gym import make_turn
from ragen_gym.envs.reply import Problem
from ragen_gym.integrations import Rollout
from ragen_gym.integrations.token_rollout import TokenRollout

OPENED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPENING{% endif %}"
)
TEMPLATES = {
    "opened": OPENED.replace("OPENING", "<think>\n"),  # DeepSeek-R1, QwQ, Qwen3-Thinking
    "opened without a line": OPENED.replace("OPENING", "<think>"),
    "opened after words": OPENED.replace("OPENING", "Here is my thought process: <think> "),
    "not opened": OPENED.replace("OPENING", ""),
    "closed": OPENED.replace("OPENING", "<think>\n\n</think>\n\n"),
    "qwen3": "qwen3",
    "qwen3.5": "qwen3.5",
    "nemotron3": "nemotron3",
}
REPLIES = {
    "completes": "go down</think><answer>Down</answer>",
    "whole": "<think>go down</think><answer>Down</answer>",
    "answers": "<answer>Down</answer>",
    "cut": "go down and then",
    "twice": "a</think>b</think><answer>Down</answer>",
    "spells a special token": "go <|endoftext|>down</think><|im_start|><answer>Down</answer>",
}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_path_reads_the_same_reply_of_the_same_ids(
    template: str, reply: str, ended: bool, make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast]
) -> None:
    tokenizer = make_tokenizer("bpe", TEMPLATES[template])
    tokenizer.eos_token = "<|im_end|>"
    chat = ChatFormat.from_tokenizer(tokenizer, keep_thinking=template not in ("qwen3.5", "nemotron3"))
    options: dict[str, Any] = {"split": "test", "success_rate": 1.0}
    ids = tokenizer(REPLIES[reply] + "<|im_end|>" * ended, add_special_tokens=False)["input_ids"]

    mdp = TokenMDP(make_turn("FrozenLake", **options), chat, max_tokens_per_turn=len(ids), max_tokens_per_episode=4096)
    mdp.begin(seed=3)
    *_, trained = [mdp.step(token)[-1] for token in ids]

    rollout = Rollout("FrozenLake", **options)
    rollout.begin(3)
    messages = rollout.messages
    _, begun = rendered(tokenizer, messages, {})
    benchmarked = answer_of(tokenizer, 0, ids, chat.stop_ids, begun).text
    TokenRollout(rollout, tokenizer).reply(ids)

    assert benchmarked == trained["reply_text"]
    assert rollout.messages[2]["content"] == trained["reply_text"]
    assert rollout.info["reply"].problem == trained["reply"].problem
    if reply == "whole":  # as behind a server, where the prompt is not known
        assert trained["reply"].problem is None
    if reply == "completes":
        opened = template not in ("not opened", "closed", "qwen3")
        assert trained["reply"].problem is (None if opened else Problem.NO_ANSWER)
