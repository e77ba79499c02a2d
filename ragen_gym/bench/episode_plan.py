"""The episodes of a run: which are played, the key of each, and timeouts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ragen_gym.bench.agent import ReplyAgent, StepAgent, plain_dict
from ragen_gym.bench.records import MOST
from ragen_gym.bench.suites import Split, Suite, noise_seed
from ragen_gym.core.validation import check_number
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv


@dataclass(frozen=True)
class PlannedEpisode:
    """One episode to play."""

    suite: str  # name of the suite
    split: Split  # what is played
    index: int  # place of the instance in the split
    rollout: int  # which of its rollouts
    noise_seed: int  # of the episode's transition noise
    seed: int  # for the agent's own randomness
    temperature: float  # at which a language model is to be sampled
    key: str  # see ``EpisodeRecord.key``


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds; None waits for ever."""

    request: float | None = None  # of one answer
    episode: float | None = None  # of a whole episode


def make_env(split: Split, observation: Any = "text") -> TurnEnv | TaskEnv:
    """The environment that plays any instance of a split; ``observation`` is what an agent that moves is shown."""
    env = split.make_env()
    if observation != "text" and not split.is_task:
        moves = StepEnv(split.env, observation=observation, levels=split.one_of_each_size, **split.env_options)
        env = TurnEnv(moves, split.turn_config)
    env.reset(seed=0)
    return env


def prompt_hash(split: Split) -> str:
    """Hash of the first messages of the split's first episode, 16 hexadecimal digits."""
    _, info = split.begin(make_env(split), 0, 0)
    return hashlib.sha256(json.dumps(info["messages"]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunOptions:
    """The episodes of a suite to play, and the options of a turn."""

    splits: tuple[str, ...] = ()  # names of splits; empty for all of them
    rollouts: int = 1  # episodes of each instance
    limit: int | None = None  # the first so many instances of each split, or None for all of them
    temperature: float | None = None  # at which language models are sampled; None for the suite's
    concurrency: int = 32  # the most episodes in play at a time
    timeouts: Timeouts = field(default_factory=Timeouts)  # how long an agent may take

    def __post_init__(self) -> None:
        check_number("bench", "rollouts", self.rollouts, 1, MOST, whole=True)
        check_number("bench", "concurrency", self.concurrency, 1, MOST, whole=True)
        if self.limit is not None:
            check_number("bench", "limit", self.limit, 1, MOST, whole=True)
        if self.temperature is not None:
            check_number("bench", "temperature", self.temperature, 0, MOST)
        for name, seconds in asdict(self.timeouts).items():
            if seconds is not None:
                check_number("bench", f"{name}_timeout", seconds, 0.001)


def identity(suite: Suite, agent: ReplyAgent | StepAgent, options: RunOptions) -> dict[str, Any]:
    """Everything that decides what is asked of an agent, as JSON: what two sessions of one run must have in common.

    Raises:
        ValueError: the agent has no name, neither of the two methods, or settings that are not plain JSON.
    """
    if not isinstance(getattr(agent, "name", None), str) or not agent.name:
        raise ValueError(f"{agent!r} has no `name`: an agent needs a text, which every result carries.")
    if not agent.name.isprintable():
        raise ValueError(f"the agent is named {agent.name!r}, which no terminal should print: choose another name.")
    if not hasattr(agent, "reply") and not hasattr(agent, "act"):
        raise ValueError(f"{agent!r} has neither a method `reply` nor `act`.")
    temperature = suite.temperature if options.temperature is None else options.temperature
    return {
        "suite": suite.name,
        "hash": suite.hash,
        "agent": agent.name,
        "settings": plain_dict(agent, "settings"),
        "temperature": temperature,
        "prompts": {split.name: prompt_hash(split) for split in suite.splits},
    }


def episode_key(identity: dict[str, Any], split: str, index: int, rollout: int) -> str:
    """See ``EpisodeRecord.key``; 16 hexadecimal digits."""
    same = [identity[name] for name in ("hash", "agent", "settings", "temperature")]
    content = json.dumps([*same, identity["prompts"][split], split, index, rollout], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def plan_episodes(suite: Suite, identity: dict[str, Any], options: RunOptions) -> list[PlannedEpisode]:
    """The episodes that are asked for: the first rollout of all instances, then the second, and so on.

    Raises:
        ValueError: the suite has no split of such a name.
    """
    names = [split.name for split in suite.splits]
    for name in options.splits:
        if name not in names:
            raise ValueError(f"{suite.name} has no split {name!r}: choose one of {', '.join(names)}.")
    return [
        PlannedEpisode(
            suite=suite.name,
            split=split,
            index=index,
            rollout=rollout,
            noise_seed=noise_seed(suite, split, index, rollout),
            seed=_agent_seed(suite, split, index, rollout),
            temperature=identity["temperature"],
            key=episode_key(identity, split.name, index, rollout),
        )
        for rollout in range(options.rollouts)
        for split in suite.splits
        if not options.splits or split.name in options.splits
        for index in range(len(split.levels[: options.limit]))
    ]


def check_playable(agent: ReplyAgent | StepAgent, splits: Iterable[Split]) -> None:
    """Raise a ValueError unless an agent can play the splits: text tasks ask for replies, and an agent may refuse."""
    for split in splits:
        env = split.make_env()
        why = agent.refuses(env) if hasattr(agent, "refuses") else ""
        if split.is_task and not hasattr(agent, "reply") and not hasattr(agent, "task_reply"):
            why = f"That is a text task, and the agent {agent.name} only chooses moves."
        if why:
            played = f"the split {split.name!r} plays {split.env}"
            raise ValueError(f"{played}. {why} Choose another agent, or other splits.")


def _agent_seed(suite: Suite, split: Split, index: int, rollout: int) -> int:
    """From 0 to 2**32 - 1, independent of the episode's noise seed."""
    name = f"{suite.hash}/{split.name}/{index}/{rollout}/agent"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
