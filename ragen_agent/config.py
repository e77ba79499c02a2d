"""Everything that a training run can be told, as frozen dataclasses, read from and written to TOML.

A run's settings are laid one over another: the defaults here, the game's recipe (`ragen_agent.local.recipes`), a
TOML file, the command line. The result is written to the run folder's `config.toml`, which repeats the run when
given to `--config`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tomli_w

__all__ = [
    "Config",
    "Demonstrations",
    "Evaluation",
    "SmallModel",
    "Training",
    "Turns",
    "WarmStart",
    "merged",
    "read_toml",
    "to_toml",
    "with_settings",
]

Settings = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Turns:
    """The turn environment and its budgets (RAGEN, arXiv 2504.20073, section 3)."""

    max_turns: int = 5
    max_actions_per_turn: int = 5
    max_actions: int = 10
    format_penalty: float = -0.1
    think: bool = True
    max_tokens_per_turn: int = 40
    max_tokens_per_episode: int = 1024


@dataclass(frozen=True)
class SmallModel:
    """Shape of the model from scratch; `hidden` is a multiple of the head size, 32."""

    hidden: int = 64
    layers: int = 2
    feed_forward: int = 192


@dataclass(frozen=True)
class Demonstrations:
    """What the warm start imitates: an oracle with faults, on levels of the training split.

    `moves`: chances that an answer holds 1, 2, 3, ... moves (an answer stops early where the episode ends).
    `mistakes`: chance that a move is drawn uniformly instead of taken from the oracle.
    `thought`: name of a row of `ragen_agent.local.demonstrations.THOUGHTS`.
    """

    episodes: int = 4096
    moves: list[float] = field(default_factory=lambda: [0.7, 0.2, 0.1])
    mistakes: float = 0.0
    thought: str = "none"


@dataclass(frozen=True)
class WarmStart:
    """Supervised steps on the demonstrations before reinforcement; `epochs = 0` skips them."""

    epochs: int = 1
    batch: int = 32
    learning_rate: float = 3e-3


@dataclass(frozen=True)
class Training:
    """Reinforcement by StarPO-S, or by vanilla StarPO with `starpo_s = false` (RAGEN, arXiv 2504.20073, section 3).

    Each iteration plays `groups` levels with `members` episodes each. StarPO-S keeps the share `keep` of the groups
    with the largest spread of returns, clips ratios to [1 - clip_low, 1 + clip_high] and has no KL term; vanilla
    keeps all groups, clips to 1 -+ clip_low and subtracts `kl` times the k1 estimate of the divergence from the
    starting model.
    `updates`: passes over one batch of rollouts. `save_every`: iterations between saved states.
    """

    algo: str = "grpo"
    starpo_s: bool = True
    iterations: int = 60
    groups: int = 32
    members: int = 8
    keep: float = 0.25
    minibatch: int = 64
    updates: int = 1
    learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.001
    entropy_bonus: float = 0.001
    gamma: float = 1.0
    gae_lambda: float = 1.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    save_every: int = 1


@dataclass(frozen=True)
class Evaluation:
    """The final measurement: one episode on each of `levels` fixed, distinct levels of `split`."""

    levels: int = 256
    split: str = "test"
    temperature: float = 0.5
    batch: int = 256


@dataclass(frozen=True)
class Config:
    """One run. `model` is a Hugging Face folder, or empty for the small model; `knobs` are the game's own."""

    game: str = "FrozenLake"
    seed: int = 0
    model: str = ""
    device: str = "cpu"
    threads: int = 1
    knobs: dict[str, Any] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    small_model: SmallModel = field(default_factory=SmallModel)
    demonstrations: Demonstrations = field(default_factory=Demonstrations)
    warm_start: WarmStart = field(default_factory=WarmStart)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        training = self.training
        for name, value, allowed in (
            ("training.algo", training.algo, ("grpo", "ppo")),
            ("evaluation.split", self.evaluation.split, ("train", "validation", "test")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(allowed)}.")
        for name, number, least in (
            ("seed", self.seed, 0),
            ("threads", self.threads, 1),
            ("training.iterations", training.iterations, 0),
            ("training.groups", training.groups, 1),
            ("training.members", training.members, 2),
            ("training.minibatch", training.minibatch, 1),
            ("training.updates", training.updates, 1),
            ("training.save_every", training.save_every, 1),
            ("demonstrations.episodes", self.demonstrations.episodes, 1),
            ("warm_start.epochs", self.warm_start.epochs, 0),
            ("warm_start.batch", self.warm_start.batch, 1),
            ("evaluation.levels", self.evaluation.levels, 1),
            ("evaluation.batch", self.evaluation.batch, 1),
            ("turns.max_tokens_per_turn", self.turns.max_tokens_per_turn, 1),
            ("small_model.layers", self.small_model.layers, 1),
            ("small_model.feed_forward", self.small_model.feed_forward, 1),
            ("training.clip_high", training.clip_high, 0),
            ("training.kl", training.kl, 0),
            ("training.entropy_bonus", training.entropy_bonus, 0),
        ):
            if not least <= number < inf:
                raise ValueError(f"{name} is {number}; it must be at least {least}.")
        for name, share, low, high in (
            ("training.keep", training.keep, 0.0, 1.0),
            ("training.temperature", training.temperature, 0.0, 10.0),
            ("evaluation.temperature", self.evaluation.temperature, 0.0, 10.0),
            ("training.learning_rate", training.learning_rate, 0.0, 1e3),
            ("training.critic_learning_rate", training.critic_learning_rate, 0.0, 1e3),
            ("training.max_grad_norm", training.max_grad_norm, 0.0, inf),
            ("warm_start.learning_rate", self.warm_start.learning_rate, 0.0, 1e3),
        ):
            if not low < share <= high:
                raise ValueError(f"{name} is {share}; it must be above {low:g} and at most {high:g}.")
        for name, share in (
            ("demonstrations.mistakes", self.demonstrations.mistakes),
            ("training.gamma", training.gamma),
            ("training.gae_lambda", training.gae_lambda),
        ):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}; it must be from 0 to 1.")
        if not 0 <= training.clip_low < 1:
            raise ValueError(f"training.clip_low is {training.clip_low}; it must be at least 0 and below 1.")
        if self.small_model.hidden % 32 or self.small_model.hidden < 32:
            raise ValueError(f"small_model.hidden is {self.small_model.hidden}; it must be a multiple of 32.")
        moves: list[Any] = self.demonstrations.moves  # a list of anything, as TOML gives it
        numbers = all(isinstance(chance, int | float) and not isinstance(chance, bool) for chance in moves)
        if not numbers or not all(0 <= chance < inf for chance in moves) or not sum(moves):
            raise ValueError(
                f"demonstrations.moves is {self.demonstrations.moves}; give chances such as [0.7, 0.2, 0.1]."
            )


def with_settings(base: T, settings: Mapping[str, Any], where: str = "") -> T:
    """`base` (a dataclass) with some fields replaced; nested tables replace single fields of nested dataclasses.

    Raises:
        ValueError: an unknown key, or a value of another type than the field's; the message says which are known.
    """
    types = get_type_hints(type(base))
    changes = {}
    for key, value in settings.items():
        name = f"{where}{key}"
        if key not in types:
            near = get_close_matches(key, types, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"unknown setting {name!r}: known here are {', '.join(types)}.{hint}")
        old = getattr(base, key)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                raise ValueError(f"setting {name!r} is {value!r}; it must be a table, such as [{name}] in TOML.")
            value = with_settings(old, value, f"{name}.")
        elif isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif type(value) is not type(old):
            raise ValueError(f"setting {name!r} is {value!r}; it must be {type(old).__name__}, such as {old!r}.")
        changes[key] = value
    replaced: T = dataclasses.replace(base, **changes)  # type: ignore[type-var]
    return replaced


def merged(under: Settings, over: Mapping[str, Any]) -> Settings:
    """Nested tables of settings laid one over the other; `knobs` too are merged key by key."""
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = merged(result[key], value)
        result[key] = value
    return result


def read_toml(path: Path) -> Settings:
    """The settings of a TOML file; raises a ValueError if it is missing or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def to_toml(config: Config) -> str:
    """The whole configuration as TOML; `with_settings(Config(), tomllib.loads(...))` gives it back."""
    return tomli_w.dumps(dataclasses.asdict(config))
