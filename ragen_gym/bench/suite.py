"""What is played: a suite of splits, each a list of frozen levels with the budgets to play them under."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ragen_gym.core.levels import Level
from ragen_gym.core.text import Vocabulary
from ragen_gym.envs.turn import TurnEnv, make_turn

__all__ = ["Budgets", "Split", "Suite", "noise_seed"]


@dataclass(frozen=True)
class Budgets:
    """The arguments of `ragen_gym.make_turn` that bound an episode."""

    max_turns: int = 5
    max_actions_per_turn: int = 5
    max_actions: int = 10
    format_penalty: float = -0.1
    think: bool = True


@dataclass(frozen=True)
class Split:
    """Levels of one kind.

    Attributes:
        name: such as ``"sokoban"``.
        env: name of a row of the registry, such as ``"Sokoban"``.
        knobs: arguments of `make_turn` beside the levels and the budgets, such as ``{"success_rate": 0.8}``; plain
            values, or a `Vocabulary`.
        levels: the instances, in order; the same level may occur twice, its place is what names an instance.
        budgets: what an episode may cost.
        about: one sentence for a table: what the split asks for.
        published: success rates that others report on this split, from 0 to 1, by their name and source.
        ladder: name of the ladder of difficulty that this split is a rung of, or "". The rungs of a ladder stand in the
            suite from easy to hard.
    """

    name: str
    env: str
    knobs: dict[str, Any]
    levels: tuple[Level, ...]
    budgets: Budgets = field(default_factory=Budgets)
    about: str = ""
    published: dict[str, float] = field(default_factory=dict)
    ladder: str = ""

    def make_env(self) -> TurnEnv:
        """The environment of every episode; ``reset(options={"level": …, "noise_seed": …})`` chooses the instance.

        It draws from the split's first level where no level is given, so that a reset never generates one in vain.
        """
        return make_turn(self.env, levels=self.levels[:1], **asdict(self.budgets), **self.knobs)

    def content(self) -> dict[str, Any]:
        """All that decides what is played, as JSON."""
        return {
            "name": self.name,
            "env": self.env,
            "knobs": {
                knob: asdict(value) if isinstance(value, Vocabulary) else value for knob, value in self.knobs.items()
            },
            "budgets": asdict(self.budgets),
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
    """The seed of an episode's luck, 0 to 2**32 - 1: another for each instance and rollout, the same for all agents."""
    name = f"{suite.hash}/{split.name}/{index}/{rollout}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
