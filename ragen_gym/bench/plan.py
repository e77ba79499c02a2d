"""What of a suite is to be played, and what names each of its episodes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ragen_gym.bench.agent import ReplyAgent, StepAgent
from ragen_gym.bench.job import Job, Limits, Prices, prompt_hash
from ragen_gym.bench.suite import Split, Suite, noise_seed
from ragen_gym.games.game import check_number

__all__ = ["Request", "episode_key", "identity", "jobs_of"]


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
