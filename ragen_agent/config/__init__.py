"""Everything that a training run can be told, as frozen dataclasses, read from and written to TOML.

A run's settings are laid one over another: the defaults here, the game's recipe (`ragen_agent.config.game_defaults`), a
TOML file, the command line. The result is written to the run folder's `config.toml`, which repeats the run when
given to `--config`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tomli_w

from ragen_agent.config.checks import check

__all__ = [
    "Config",
    "Demonstrations",
    "Diagnostics",
    "Evaluation",
    "Lora",
    "SmallModel",
    "Stops",
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
    """The turn environment and its budgets (RAGEN, arXiv 2504.20073, section 3).

    `history`: how many earlier turns the prompt of a turn keeps; -1 keeps all, 0 shows the current turn alone.
    `keep_thinking`, `template_options`: see `ChatFormat.from_tokenizer`.
    `grounding`, `world_modelling`, `state_reward`: see `ragen_gym.TurnEnv`.
    """

    max_turns: int = 5
    max_actions_per_turn: int = 5
    max_actions: int = 10
    format_penalty: float = -0.1
    think: bool = True
    max_tokens_per_turn: int = 40
    max_tokens_per_episode: int = 1024
    history: int = -1
    keep_thinking: bool = True
    template_options: dict[str, Any] = field(default_factory=dict)
    grounding: bool = False
    world_modelling: bool = False
    state_reward: float = 0.0


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
    `quality`: chance that an answer follows the oracle; all moves of the others are drawn uniformly.
    `thought`: name of a row of `ragen_agent.training.demo_thoughts.THOUGHTS`.
    """

    episodes: int = 4096
    moves: list[float] = field(default_factory=lambda: [0.7, 0.2, 0.1])
    mistakes: float = 0.0
    quality: float = 1.0
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
    starting model. Each of the three parts may be chosen by itself: `filter`, `clip` and `kl_kind`, where empty means
    as `starpo_s` says. The formulas and their papers are in `ragen_agent.algo`.

    `algo`: ppo (with a critic), or a rule by which episodes are compared: `algo.NORMALISATIONS`.
    `shared_noise`: whether the members of a group meet the same luck, as in the paper's code, or each has its own.
    `filter`: a rule of `algo.FILTERS`; `keep` is its amount. `filter_by`: reward, entropy or length of the episodes.
    `filter_statistic`: std or variance. `reweight`: 0, or the power of the spread by which groups are weighed.
    `updates`: passes over one batch of rollouts (Online-k). `replay`: how many earlier iterations' kept episodes each
    update learns from beside its own. `save_every`: iterations between saved states.
    `clip`: symmetric or higher. `dual_clip`: 0 for none, or a bound above 1.
    `kl_kind`: none, k1, k2 or k3. `kl_place`: reward or loss.
    `aggregation`: a key of `algo.AGGREGATIONS`; "constant" divides by `turns.max_tokens_per_episode`.
    `credit`, of ppo: trajectory, turn or bi_level; `gamma` is the discount between tokens, `gamma_turn` between turns.
    `loss_tokens`, `advantage_tokens`: all sampled tokens, or those of the reasoning or of the answer alone.
    `format_reward`: a key of `algo.FORMAT_REWARDS`, added to what the game pays; `turns.format_penalty` is the game's.
    """

    algo: str = "grpo"
    starpo_s: bool = True
    iterations: int = 60
    groups: int = 32
    members: int = 8
    shared_noise: bool = False
    filter: str = ""
    filter_by: str = "reward"
    filter_statistic: str = "std"
    keep: float = 0.25
    reweight: float = 0.0
    minibatch: int = 64
    updates: int = 1
    replay: int = 0
    learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    clip: str = ""
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    aggregation: str = "token_mean"
    kl_kind: str = ""
    kl_place: str = "reward"
    kl: float = 0.001
    entropy_bonus: float = 0.001
    credit: str = "trajectory"
    gamma: float = 1.0
    gamma_turn: float = 0.95
    gae_lambda: float = 1.0
    loss_tokens: str = "all"
    advantage_tokens: str = "all"
    format_reward: str = "none"
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    save_every: int = 1

    @property
    def critic(self) -> bool:
        """Whether a critic estimates the advantages."""
        return self.algo == "ppo"

    @property
    def filter_rule(self) -> str:
        """The filter with the preset resolved."""
        return self.filter or ("top" if self.starpo_s else "none")

    @property
    def kl_estimate(self) -> str:
        """The estimate of the divergence with the preset resolved; none where its weight is 0."""
        return (self.kl_kind or ("none" if self.starpo_s else "k1")) if self.kl else "none"

    @property
    def upper_clip(self) -> float:
        """How far the ratio may rise above 1, with the preset resolved."""
        higher = self.clip == "higher" if self.clip else self.starpo_s
        return self.clip_high if higher else self.clip_low


@dataclass(frozen=True)
class Lora:
    """Low-rank adaptation in reinforcement (LoRA, arXiv 2106.09685, section 4.1); `rank = 0` trains every weight.

    The weights W that are adapted stay as they are, and W + (alpha / rank) B A plays, where A and B have `rank` rows
    and columns and B starts at 0; only A and B are trained, and the reference of a KL term is W alone. The warm start
    trains every weight; with `rank` the model that it leaves is the one that is adapted.

    `targets`: names of the layers that are adapted, such as ["q_proj", "v_proj"], or ["all-linear"]: every linear
    layer but the output layer.
    """

    rank: int = 0
    alpha: float = 32.0
    targets: list[str] = field(default_factory=lambda: ["all-linear"])


@dataclass(frozen=True)
class Stops:
    """When to give a run up early (RAGEN-2, arXiv 2604.06268); every rule is off at 0.

    `spread_patience`: iterations in a row with a spread below `spread_share` of its mean over the first
    `spread_first` iterations.
    `validate_every`: iterations between measurements on `validation_levels` fixed levels of the split `validation`.
    `validation_times`: measurements in a row with a success below `validation_floor`.
    """

    spread_patience: int = 0
    spread_share: float = 0.1
    spread_first: int = 10
    validate_every: int = 0
    validation_levels: int = 64
    validation_times: int = 0
    validation_floor: float = 0.01


@dataclass(frozen=True)
class Diagnostics:
    """What is measured beside the training itself; see `ragen_agent.local.probes`. Every 0 turns a part off.

    `tensorboard`: write the figures of each iteration for TensorBoard too, into `tensorboard/` in the run's folder.

    `alarm`: watch for the Echo Trap. `entropy_every`, `gradients_every`, `information_every`: iterations between the
    entropies of all rollouts, between the gradient norms of the parts of the loss, and between the mutual information
    of reasoning and prompt, which is measured on `information_prompts` prompts with `information_samples` episodes
    each.
    """

    tensorboard: bool = False
    alarm: bool = True
    entropy_every: int = 0
    gradients_every: int = 0
    information_every: int = 0
    information_prompts: int = 8
    information_samples: int = 4


@dataclass(frozen=True)
class Evaluation:
    """The final measurement: one episode on each of `levels` fixed, distinct levels of `split`."""

    levels: int = 256
    split: str = "test"
    temperature: float = 0.5
    batch: int = 256


@dataclass(frozen=True)
class Config:
    """One run. `model` is a Hugging Face folder, or empty for the small model; `knobs` are the game's own.

    `device`: cpu, cuda or cuda:N; auto takes a GPU for a pretrained model where there is one, and the CPU otherwise,
    where the small model is at home. `dtype`, of the weights that play: float32, bfloat16, or auto, bfloat16 for a
    pretrained model on a GPU and float32 otherwise. What is trained is kept in float32 beside weights in bfloat16.

    `games`: a mixture to train on instead of `game` alone: tables {game, weight, knobs, turns, thought}, where a
    level's game is drawn by weight and what a table leaves out is as in the run. Measured is each by itself, and the
    comparisons are those of `game`.
    `curriculum`: tables {iteration, knobs} in ascending order; from that iteration on levels are drawn with these
    knobs laid over the run's. Measured are levels of the run's own knobs.
    """

    game: str = "FrozenLake"
    seed: int = 0
    model: str = ""
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    knobs: dict[str, Any] = field(default_factory=dict)
    games: list[dict[str, Any]] = field(default_factory=list)
    curriculum: list[dict[str, Any]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    small_model: SmallModel = field(default_factory=SmallModel)
    demonstrations: Demonstrations = field(default_factory=Demonstrations)
    warm_start: WarmStart = field(default_factory=WarmStart)
    training: Training = field(default_factory=Training)
    lora: Lora = field(default_factory=Lora)
    stops: Stops = field(default_factory=Stops)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        check(self)


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
            raise ValueError(f"unknown setting {name!r}.{hint} Known here are {', '.join(types)}.")
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
