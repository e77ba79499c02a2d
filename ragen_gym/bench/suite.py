"""What is played: a suite of splits, each a list of frozen levels with the budgets to play them under."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from ragen_gym.core.levels import Level
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.turn import TurnEnv, make_turn

__all__ = ["Split", "Suite", "noise_seed"]

#: The options of a turn that a suite's hash always covers; any other one only where it differs from its default, so
#: that a new option leaves the hashes of older suites as they are.
_HASHED = ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty", "think")


@dataclass(frozen=True)
class Split:
    """Levels of one kind.

    Attributes:
        name: such as ``"sokoban"``.
        env: name of a row of the registry, such as ``"Sokoban"``.
        env_options: arguments of `ragen_gym.make_turn` besides the levels and the options of a turn, such as
            ``{"success_rate": 0.8}``; plain values, or a `Vocabulary`.
        levels: the instances, in order; the same level may occur twice, its place is what names an instance.
        turn_config: how replies are read, bounded and rewarded.
        about: one sentence for a table: what the split asks for.
        published: success rates that others report on this split, from 0 to 1, by their name and source.
        ladder: name of the ladder of difficulty that this split is a rung of, or "". The rungs of a ladder stand in the
            suite from easy to hard.
    """

    name: str
    env: str
    env_options: dict[str, Any]
    levels: tuple[Level, ...]
    turn_config: TurnConfig = field(default_factory=TurnConfig)
    about: str = ""
    published: dict[str, float] = field(default_factory=dict)
    ladder: str = ""

    def make_env(self) -> TurnEnv:
        """The environment of every episode; ``reset(options={"level": …, "noise_seed": …})`` chooses the instance.

        It draws from the split's first level where no level is given, so that a reset never generates one in vain.
        """
        return make_turn(self.env, self.turn_config, levels=self.levels[:1], **self.env_options)

    def content(self) -> dict[str, Any]:
        """All that decides what is played, as JSON."""
        return {
            "name": self.name,
            "env": self.env,
            "knobs": {
                name: asdict(value) if isinstance(value, Vocabulary) else value
                for name, value in self.env_options.items()
            },
            "budgets": {
                option.name: getattr(self.turn_config, option.name)
                for option in fields(TurnConfig)
                if option.name in _HASHED or getattr(self.turn_config, option.name) != option.default
            },
            "levels": [level.text for level in self.levels],
        }


@dataclass(frozen=True)
class Suite:
    """A benchmark.

    Attributes:
        name: with its version, such as ``"ragen-v1"``.
        splits: in the order of the report.
        temperature: at which language models are sampled.
        about: what the suite measures, in a sentence or two.
    """

    name: str
    splits: tuple[Split, ...]
    temperature: float = 0.5
    about: str = ""

    @cached_property
    def hash(self) -> str:
        """Content hash, 16 hexadecimal digits of SHA-256: every result carries it."""
        content = [self.name, self.temperature, [split.content() for split in self.splits]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def noise_seed(suite: Suite, split: Split, index: int, rollout: int) -> int:
    """The seed of an episode's noise, 0 to 2**32 - 1: one for each instance and rollout, the same for all agents."""
    name = f"{suite.hash}/{split.name}/{index}/{rollout}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
