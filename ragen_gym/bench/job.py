"""What is played: one episode of a split, its environment, and the patience and prices that go with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from ragen_gym.bench.records import TurnRecord
from ragen_gym.bench.suite import Split
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Job", "Limits", "Prices", "make_env", "prompt_hash"]


@dataclass(frozen=True)
class Job:
    """One episode to play.

    Attributes:
        suite: name of the suite.
        split: what is played.
        index: place of the instance in the split.
        rollout: which of its rollouts.
        noise_seed: of the episode's luck.
        seed: for the agent's own randomness.
        temperature: at which a language model is to be sampled.
        key: see `EpisodeRecord.key`.
    """

    suite: str
    split: Split
    index: int
    rollout: int
    noise_seed: int
    seed: int
    temperature: float
    key: str


@dataclass(frozen=True)
class Limits:
    """Patience.

    Attributes:
        request: seconds for one answer, or None.
        episode: seconds for a whole episode, or None.
    """

    request: float | None = None
    episode: float | None = None


@dataclass(frozen=True)
class Prices:
    """What tokens cost, for a million of them.

    Attributes:
        prompt: tokens read.
        completion: tokens written.
    """

    prompt: float
    completion: float

    def of(self, turns: list[TurnRecord]) -> float | None:
        """The cost of these turns, or None where some tokens were not counted."""
        total = 0.0
        for turn in turns:
            if turn.prompt_tokens is None or turn.completion_tokens is None:
                return None
            total += turn.prompt_tokens * self.prompt + turn.completion_tokens * self.completion
        return total / 1e6


def make_env(split: Split, observation: str = "text") -> TurnEnv:
    """The environment that plays any instance of a split; ``observation`` is what an agent that moves is shown."""
    if observation != "text":
        split = replace(split, knobs={**split.knobs, "observation": observation})
    env = split.make_env()
    env.reset(seed=0)
    return env


def prompt_hash(split: Split) -> str:
    """16 hexadecimal digits that change with the messages: those that begin the split's first episode."""
    env = make_env(split)
    _, info = env.reset(options={"level": split.levels[0], "noise_seed": 0})
    return hashlib.sha256(json.dumps(info["messages"]).encode()).hexdigest()[:16]
