"""One episode on both backends: the same tokens give the same trajectory, and whatever breaks costs one episode."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_agent.config import Config, with_settings
from ragen_agent.inference import ImageSpan, RowImages, Sampled
from ragen_agent.openrlhf.episode import (
    ContractError,
    TooManyFailuresError,
    check_failures,
    play_episode,
)
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.rollout import Instance, play
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory, failed

CONFIG = with_settings(
    Config(),
    {
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4, "success_rate": 0.5},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 12, "max_tokens_per_episode": 200},
    },
)


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(CONFIG)


def process_of(agent: Policy, env: gymnasium.Env[str, str] | None = None, history: int = -1) -> TokenMDP:
    return TokenMDP.from_settings(env or make_env(CONFIG, "train"), agent.chat, replace(CONFIG.turns, history=history))


class Scripted:
    """Replies with the given tokens, turn by turn, cut at the limit as by an engine, on both backends."""

    def __init__(self, replies: Sequence[Sequence[int]], stops: frozenset[int]) -> None:
        self.replies, self.stops, self.turn = replies, stops, 0
        self.limits: list[int] = []
        self.seeds: list[int] = []

    def say(self, limit: int) -> Sampled:
        said: list[int] = []
        for token in self.replies[self.turn % len(self.replies)]:
            said.append(token)
            if token in self.stops or len(said) == limit:
                break
        else:
            said.append(min(self.stops))
        self.turn += 1
        self.limits.append(limit)
        return Sampled(said[:limit], [-0.125 * (1 + token % 7) for token in said[:limit]])

    async def __call__(self, ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        await asyncio.sleep(0)
        self.seeds.append(seed)
        return self.say(limit)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        episodes: Sequence[int] | None = None,
        images: RowImages = None,
    ) -> Scripted:
        return self

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int], *, images: RowImages = None) -> None:
        raise AssertionError("one episode is played")

    def max_rows(self, tokens: int) -> int:
        return 1

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        return [self.say(limits[0])]

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]], *, images: RowImages = None) -> None:
        assert len(rows) == len(ids) == 1

    def close(self) -> None:
        pass


def alone(process: TokenMDP, generate: Any, seed: int = 5, **limits: float) -> Trajectory:
    return asyncio.run(
        play_episode(
            process,
            generate,
            seed=seed,
            noise_seed=seed + 1,
            request_seed=lambda turn: 100 + turn,
            generation_timeout=limits.get("generation", 20.0),
            environment_timeout=limits.get("environment", 20.0),
        )
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**40))
def test_equal_tokens_give_equal_trajectories_on_both_backends(agent: Policy, data: st.DataObject, seed: int) -> None:
    text = st.sampled_from(["<answer>Up</answer>", "<think></think><answer>Down || Left</answer>", "Right", ""])
    known = [agent.tokenizer.encode(t, add_special_tokens=False) for t in (data.draw(text), data.draw(text))]
    noise = data.draw(st.lists(st.integers(0, len(agent.tokenizer) - 1), max_size=15))
    replies, history = [*known, noise], data.draw(st.integers(-1, 1))
    here = play(
        Scripted(replies, agent.chat.stop_ids),
        [process_of(agent, history=history)],
        [Instance(seed, seed + 1)],
        temperature=1.0,
        seed=0,
    )[0]
    there = alone(process_of(agent, history=history), Scripted(replies, agent.chat.stop_ids), seed)
    assert here.to_dict() == there.to_dict()
    assert here.failure is None


def test_both_token_budgets_hold_and_every_request_has_its_own_seed(agent: Policy) -> None:
    word = agent.tokenizer.encode("Up", add_special_tokens=False)[0]
    engine = Scripted([[word] * 50], agent.chat.stop_ids)
    played = alone(process_of(agent), engine)
    turns = CONFIG.turns
    assert max(engine.limits) == turns.max_tokens_per_turn
    assert len(played.ids) <= turns.max_tokens_per_episode
    assert engine.seeds == [100, 101, 102][: len(engine.seeds)]
    tight = TokenMDP(make_env(CONFIG, "train"), agent.chat, max_tokens_per_turn=50, max_tokens_per_episode=100)
    engine = Scripted([[word] * 80], agent.chat.stop_ids)
    played = alone(tight, engine)
    assert len(played.ids) == 100
    assert engine.limits[-1] < 50
    assert played.truncated


class Faulty(gymnasium.Wrapper[str, str, str, str]):
    def __init__(self, where: str, error: Exception | None, seconds: float = 0.0) -> None:
        super().__init__(make_env(CONFIG, "train"))
        self.where, self.error, self.seconds = where, error, seconds

    def _break(self, where: str) -> None:
        if where == self.where:
            time.sleep(self.seconds)
            if self.error is not None:
                raise self.error

    def reset(self, **arguments: Any) -> Any:
        self._break("reset")
        return super().reset(**arguments)

    def step(self, action: str) -> Any:
        self._break("step")
        return super().step(action)


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("kind", ["environment_error", "environment_timeout"])
def test_a_broken_environment_costs_its_episode(agent: Policy, where: str, kind: str) -> None:
    env = Faulty(where, RuntimeError("torn")) if kind == "environment_error" else Faulty(where, None, 1.0)
    began = time.monotonic()
    played = alone(process_of(agent, env), Scripted([[]], agent.chat.stop_ids), environment=0.2)
    assert str(played.failure).startswith(kind)
    assert played.turn_rewards == ()
    assert time.monotonic() - began < 0.9, "nobody waits for a hanging environment"


def test_a_broken_engine_costs_its_episode(agent: Policy) -> None:
    async def hangs(ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    async def dies(ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        raise RuntimeError("device lost")

    async def stammers(ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        return Sampled([3], [-1.0])  # neither an end token nor the limit

    async def infinite(ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        return Sampled([min(agent.chat.stop_ids)], [-math.inf])

    kinds = {hangs: "generation_timeout", dies: "engine_error", stammers: "engine_error", infinite: "engine_nan"}
    for engine, kind in kinds.items():
        played = alone(process_of(agent), engine, generation=0.2)
        assert str(played.failure).startswith(f"{kind}: "), engine.__name__


def test_what_would_break_every_episode_ends_the_run(agent: Policy) -> None:
    async def refuses(ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        raise ValueError("max_tokens is 0")

    with pytest.raises(ContractError, match="max_tokens is 0"):
        alone(process_of(agent), refuses)
    small = TokenMDP(make_env(CONFIG, "train"), agent.chat, max_tokens_per_episode=8)
    with pytest.raises(ContractError, match="raise it"):
        alone(small, refuses)


def test_the_failure_budget(agent: Policy) -> None:
    sound = alone(process_of(agent), Scripted([[]], agent.chat.stop_ids))
    broken = [failed([1, 2], f"environment_error: torn {i}") for i in range(3)]
    check_failures([sound] * 8 + broken[:2], 0.2)
    with pytest.raises(TooManyFailuresError, match=r"3 of 10 .*failure_budget=0.2 .*torn 0; environment_error: torn 1"):
        check_failures([sound] * 7 + broken, 0.2)
    with pytest.raises(TooManyFailuresError):
        check_failures([sound] * 9 + broken[:1], 0.0)
