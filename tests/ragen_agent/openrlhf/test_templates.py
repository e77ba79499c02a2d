"""Episodes of the distributed executor under the chat templates of the families that people train."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams

from ragen_agent import ChatFormat
from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.executor import AgentExecutor
from ragen_agent.openrlhf.processes import VARIABLE, RunContext
from ragen_agent.openrlhf.prompt_dataset import train_rows
from ragen_agent.tokens.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("default")

MakeTokenizer = Callable[[str, str], PreTrainedTokenizerFast]
CONFIG = with_settings(
    Config(),
    {
        "env_options": {"size": 4, "random_start": False, "success_rate": 1.0},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 80, "max_tokens_per_episode": 4000},
        "training": {"iterations": 1, "groups": 1, "group_size": 2},
    },
)
REPLY = "<think>up or left</think><answer>Up</answer>"  # against the border: the game goes on


class Engine:
    """Says the same in every turn, as vLLM answers."""

    def __init__(self, said: Sequence[int]) -> None:
        self.said = list(said)

    async def generate(self, ids: list[int], parameters: Any, multi_modal_data: Any = None) -> Any:
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in self.said]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(self.said), logprobs=logprobs)])


def executor(monkeypatch: pytest.MonkeyPatch, **turns: Any) -> AgentExecutor:
    run = RunContext(with_settings(CONFIG, {"turns": turns}), OpenRLHF(), "/nowhere", (), 500)
    monkeypatch.setenv(VARIABLE, run.to_json())
    return AgentExecutor()


def play(playing: AgentExecutor, tokenizer: PreTrainedTokenizerFast, reply: str) -> dict[str, Any]:
    chat = ChatFormat.from_tokenizer(tokenizer)
    engine = Engine([*tokenizer.encode(reply, add_special_tokens=False), chat.end_id])
    label = next(train_rows(CONFIG)).label
    answer: dict[str, Any] = asyncio.run(playing.execute("name", label, SamplingParams(), 4000, tokenizer, engine))
    return answer


@pytest.mark.parametrize("template", ["chatml", "qwen3", "llama3", "plain"])
def test_the_row_is_the_template_s_conversation_and_the_replies_are_its_actions(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    tokenizer = make_tokenizer("bpe", template)
    reply = f" {REPLY}" if template == "plain" else REPLY
    answer = play(executor(monkeypatch), tokenizer, reply)
    trajectory = Trajectory.from_dict(json.loads(answer["label"])["trajectory"])
    assert trajectory.failure is None
    assert len(trajectory.turn_ends) == 3
    chat = ChatFormat.from_tokenizer(tokenizer)
    said = [*tokenizer.encode(reply, add_special_tokens=False), chat.end_id]
    assert [answer["observation_tokens"][start:end] for start, end in answer["action_ranges"]] == [said] * 3
    whole = tokenizer.decode(answer["observation_tokens"])
    kept = tokenizer.apply_chat_template([dict(message) for message in trajectory.messages], tokenize=False)
    assert isinstance(whole, str)
    assert isinstance(kept, str)
    assert whole.count("<think>up or left</think>") == 3, "no sampled token is dropped"
    if template == "qwen3":  # which drops the thinking of every reply that a message follows
        assert kept.count("<think>up or left</think>") == 0
    else:
        assert kept.startswith(whole)
