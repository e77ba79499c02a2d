"""The episodes of a suite that are to be played, what names each, and their timeouts and token prices."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ragen_gym.bench.agent import ReplyAgent, StepAgent
from ragen_gym.bench.records import TurnRecord
from ragen_gym.bench.suite import Split, Suite, noise_seed
from ragen_gym.core.validation import check_number
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Job", "Limits", "Prices", "Request", "episode_key", "identity", "jobs_of", "make_env", "prompt_hash"]


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
        split = replace(split, env_options={**split.env_options, "observation": observation})
    env = split.make_env()
    env.reset(seed=0)
    return env


def prompt_hash(split: Split) -> str:
    """16 hexadecimal digits that change with the messages: those that begin the split's first episode."""
    env = make_env(split)
    _, info = env.reset(options={"level": split.levels[0], "noise_seed": 0})
    return hashlib.sha256(json.dumps(info["messages"]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Request:
    """What of a suite is to be played, and how.

    Attributes:
        splits: names of splits; empty for all of them.
        rollouts: episodes of each instance.
        limit: the first so many instances of each split, or None for all of them.
        temperature: at which language models are sampled; None for the suite's.
        concurrency: the most episodes in play at a time.
        limits: how long an agent may take.
        prices: of tokens, or None.
    """

    splits: tuple[str, ...] = ()
    rollouts: int = 1
    limit: int | None = None
    temperature: float | None = None
    concurrency: int = 32
    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None

    def __post_init__(self) -> None:
        check_number("bench", "rollouts", self.rollouts, 1, whole=True)
        check_number("bench", "concurrency", self.concurrency, 1, whole=True)
        if self.limit is not None:
            check_number("bench", "limit", self.limit, 1, whole=True)
        if self.temperature is not None:
            check_number("bench", "temperature", self.temperature, 0)
        for name, seconds in asdict(self.limits).items():
            if seconds is not None:
                check_number("bench", f"{name}_timeout", seconds, 0)


def identity(suite: Suite, agent: ReplyAgent | StepAgent, request: Request) -> dict[str, Any]:
    """All that decides what is asked of an agent, as JSON: what two sessions of one run must have in common.

    Raises:
        ValueError: the agent has no name, or neither of the two methods.
    """
    if not getattr(agent, "name", None):
        raise ValueError(f"{agent!r} has no `name`: an agent needs one, which every result carries.")
    if not hasattr(agent, "reply") and not hasattr(agent, "act"):
        raise ValueError(f"{agent!r} has neither a method `reply` nor `act`.")
    temperature = suite.temperature if request.temperature is None else request.temperature
    return {
        "suite": suite.name,
        "hash": suite.hash,
        "agent": agent.name,
        "settings": dict(getattr(agent, "settings", {})),
        "temperature": temperature,
        "prompts": {split.name: prompt_hash(split) for split in suite.splits},
    }


def episode_key(identity: dict[str, Any], split: str, index: int, rollout: int) -> str:
    """See `EpisodeRecord.key`; 16 hexadecimal digits."""
    same = [identity[name] for name in ("hash", "agent", "settings", "temperature")]
    content = json.dumps([*same, identity["prompts"][split], split, index, rollout], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def jobs_of(suite: Suite, identity: dict[str, Any], request: Request) -> list[Job]:
    """The episodes that are asked for: the first rollout of all instances, then the second, and so on.

    Raises:
        ValueError: the suite has no split of such a name.
    """
    names = [split.name for split in suite.splits]
    for name in request.splits:
        if name not in names:
            raise ValueError(f"{suite.name} has no split {name!r}: choose of {', '.join(names)}.")
    return [
        Job(
            suite=suite.name,
            split=split,
            index=index,
            rollout=rollout,
            noise_seed=noise_seed(suite, split, index, rollout),
            seed=_agent_seed(suite, split, index, rollout),
            temperature=identity["temperature"],
            key=episode_key(identity, split.name, index, rollout),
        )
        for rollout in range(request.rollouts)
        for split in suite.splits
        if not request.splits or split.name in request.splits
        for index in range(len(split.levels[: request.limit]))
    ]


def _agent_seed(suite: Suite, split: Split, index: int, rollout: int) -> int:
    """From 0 to 2**32 - 1, and nothing that the episode's luck could be told from."""
    name = f"{suite.hash}/{split.name}/{index}/{rollout}/agent"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
