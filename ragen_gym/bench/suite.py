"""What is played: a suite of splits, each a list of frozen levels with the budgets to play them under."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ragen_gym.levels import Level

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
        knobs: arguments of the environment beside the levels, such as ``{"success_rate": 0.8}``.
        levels: the instances, in order; the same level may occur twice, its place is what names an instance.
        budgets: what an episode may cost.
        about: one sentence for a table: what the split asks for.
        published: success rates that others report on this split, from 0 to 1, by their name and source.
    """

    name: str
    env: str
    knobs: dict[str, Any]
    levels: tuple[Level, ...]
    budgets: Budgets = field(default_factory=Budgets)
    about: str = ""
    published: dict[str, float] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """All that decides what is played, as JSON."""
        return {
            "name": self.name,
            "env": self.env,
            "knobs": self.knobs,
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
