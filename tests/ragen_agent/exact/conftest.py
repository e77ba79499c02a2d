"""A tiny policy with six tokens to write, so that all its replies can be listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ragen_agent import ChatFormat
from ragen_agent.config import Config, SmallModel, Turns, with_settings
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.inference.weights import move
from ragen_agent.models.small_model import build_model, build_tokenizer
from ragen_agent.tokens.rollout import Instance
from ragen_gym import make_turn
from ragen_gym.envs.turn import TurnEnv

#: What the policy can write, besides the end.
WORDS = ("<answer>Right || Right</answer>", "<answer>Down</answer>")
OPTIONS: dict[str, Any] = {"size": 2, "success_rate": 1.0, "split": None, "max_turns": 2, "max_actions_per_turn": 2}


@dataclass(frozen=True)
class Tiny:
    """The policy; levels are lakes of 2x2 cells unless options say otherwise."""

    model: PreTrainedModel
    chat: ChatFormat
    turns: Turns
    temperature: float = 0.8

    def reader(self) -> TreeReader:
        return TreeReader(self.model, self.chat.vocabulary_size, self.temperature)

    def env(self, **options: Any) -> TurnEnv:
        return make_turn("FrozenLake", **{**OPTIONS, "think": False, **options})

    def levels(self, *seeds: int, **options: Any) -> list[ExactLevel]:
        env = self.env(**options)
        return [ExactLevel(env, self.chat, self.turns, Instance(seed, 0)) for seed in seeds]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The fastest for a network this small, by far on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Tiny]:
    """A policy that was taught a little, of one kind of float, with so many tokens a reply: each is made once."""
    tokenizer = build_tokenizer()
    chat = ChatFormat.from_tokenizer(tokenizer)
    taught = [chat.reply_ids(text) for text in WORDS]
    written = {token for ids in taught for token in ids}

    @cache
    def make(room: int = 5, dtype: torch.dtype = torch.float32, history: int = 0) -> Tiny:
        shape = SmallModel(hidden=32, layers=2, feed_forward=32)
        model: PreTrainedModel = move(build_model(shape, tokenizer, 0), "cpu", dtype)
        assert model.generation_config is not None
        model.generation_config.suppress_tokens = [i for i in range(len(tokenizer)) if i not in written]
        settings = {"max_tokens_per_turn": room, "history": history, "think": False}
        policy = Tiny(model, chat, with_settings(Config(), {"turns": settings}).turns)
        _teach(policy, taught)
        return policy

    return make


def _teach(policy: Tiny, taught: list[list[int]]) -> None:
    """A few steps of imitation, so that replies are well-formed now and then, and differ from board to board."""
    prompts = [level.prompt(level.start) for level in policy.levels(*range(6))]
    rows = [prompt + taught[i % len(taught)] for i, prompt in enumerate(prompts)]
    optimiser = torch.optim.Adam(policy.model.parameters(), 3e-3)
    for _ in range(30):
        loss = torch.stack(
            [
                -policy.model(torch.tensor([row]))
                .logits[0, len(prompt) - 1 : -1]
                .log_softmax(-1)
                .gather(1, torch.tensor(row[len(prompt) :])[:, None])
                .mean()
                for row, prompt in zip(rows, prompts, strict=True)
            ]
        ).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    policy.model.zero_grad()
