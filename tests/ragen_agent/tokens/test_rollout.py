"""What breaks in an engine, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.inference import Sampled
from ragen_agent.inference.torch_engine import TorchSession
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance, PastReply, play
from ragen_agent.tokens.trajectory import without_failed

CONFIG = with_settings(
    Config(),
    {
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 4},
    },
)

INSTANCES = [Instance(1, 1), Instance(2, 2), Instance(3, 3), Instance(4, 4)]


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(CONFIG)


Break = Callable[..., None]


@pytest.fixture
def break_engine(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Breaks the engine at the given replies: it raises ``error``, or else a log-prob is not finite."""
    reply, asked = TorchSession.reply, count()

    def breaks(turns: Sequence[int], error: BaseException | None = None) -> None:
        def broken(session: TorchSession, limits: Sequence[int]) -> list[Sampled | None]:
            replies, turn = reply(session, limits), next(asked)
            if turn in turns and error is not None:
                raise error
            if turn in turns and replies[0] is not None:
                replies[0].log_probs[-1] = math.nan
            return replies

        monkeypatch.setattr(TorchSession, "reply", broken)

    return breaks


def test_a_broken_engine_costs_the_episodes_it_was_playing(agent: Policy, break_engine: Break) -> None:
    break_engine([1], MemoryError("full"))
    played = play(agent.engine, agent.processes("train", 2), INSTANCES, temperature=1.0, seed=0)
    assert [t.failure for t in played] == ["engine_error: MemoryError: full"] * 2 + [None] * 2
    assert [len(t.turn_ends) for t in played] == [1, 1, 3, 3]


def test_a_log_prob_that_is_not_finite_costs_its_own_episode(agent: Policy, break_engine: Break) -> None:
    break_engine([1])
    played = play(agent.engine, agent.processes("train", 4), INSTANCES, temperature=1.0, seed=0)
    assert played[0].failure is not None
    assert played[0].failure.startswith("engine_nan: the log-probability of a sampled token is nan")
    assert [t.failure for t in played[1:]] == [None] * 3
    assert [len(t.turn_ends) for t in played] == [1, 3, 3, 3]


def test_an_engine_that_breaks_every_episode_of_a_part_leaves_the_run_to_the_others(
    agent: Policy, break_engine: Break
) -> None:
    break_engine([0, 1], OSError("device lost"))
    played = play(agent.engine, agent.processes("train", 2), INSTANCES, temperature=1.0, seed=0)
    assert [t.failure for t in played] == ["engine_error: OSError: device lost"] * 4
    with pytest.raises(ValueError, match=r"all 4 episodes failed.*device lost"):
        without_failed(played)


@pytest.mark.parametrize("broken", [[3], [1, 2], [1, 2, 3, 4]])
def test_a_reset_that_raises_costs_its_own_episode(
    agent: Policy, broken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in episodes that programs or vLLM play."""
    processes = agent.processes("train", 2)
    for process in processes:
        reset = process.env.reset

        def breaks(*, seed: int, options: dict[str, Any], reset: Callable[..., Any] = reset) -> Any:
            if seed in broken:
                raise OSError("no such level")
            return reset(seed=seed, options=options)

        monkeypatch.setattr(process.env, "reset", breaks)
    played = play(agent.engine, processes, INSTANCES, temperature=1.0, seed=0)
    reason = "environment_error: OSError: no such level"
    assert [t.failure for t in played] == [reason if each.seed in broken else None for each in INSTANCES]
    assert [t.seed for t in played] == [1, 2, 3, 4]
    assert [len(t.turn_ends) for t in played] == [0 if each.seed in broken else 3 for each in INSTANCES]


@pytest.mark.parametrize("differs", ["OSError: no disk", "it is over", "a reply of 5 tokens"])
def test_a_branch_whose_past_cannot_be_played_again_costs_its_own_episode(
    agent: Policy, differs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A game that breaks, ends or leaves less room for the reply the second time."""
    process = agent.processes("train", 1)[0]
    first = play(agent.engine, [process], [INSTANCES[0]], temperature=1.0, seed=0)[0]
    ids = first.ids[: first.turn_ends[0] + 1][first.sampled[: first.turn_ends[0] + 1]].tolist()
    if differs == "a reply of 5 tokens":
        ids = ids[:1] * 5
    past = [PastReply(ids, [-1.0] * len(ids), 1)]
    step, played_again = process.env.step, iter([True])

    def breaks(reply: str) -> Any:
        observation, reward, terminated, truncated, info = step(reply)
        if next(played_again, False) and "OSError" in differs:
            raise OSError("no disk")
        return observation, reward, terminated or differs == "it is over", truncated, info

    monkeypatch.setattr(process.env, "step", breaks)
    branch = Instance(1, 9, past)
    found = play(agent.engine, [process], [branch, INSTANCES[1]], temperature=1.0, seed=0)
    assert found[0].failure is not None
    assert found[0].failure.startswith("environment_error: RuntimeError: the replay of turn 1 differs from the episode")
    assert differs in found[0].failure
    assert found[1].failure is None


def test_an_interruption_and_the_check_go_through(agent: Policy, break_engine: Break) -> None:
    break_engine([1], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        play(agent.engine, agent.processes("train", 4), INSTANCES, temperature=1.0, seed=0)

    def check(ids: Sequence[int]) -> None:
        raise ValueError("unknown word")

    with pytest.raises(ValueError, match="unknown word"):  # of the prompts, before any reply
        play(agent.engine, agent.processes("train", 4), INSTANCES, temperature=1.0, seed=0, check=check)
