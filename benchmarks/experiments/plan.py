"""The runs of an experiment: its arms times its seeds, each with its settings, its folder and its estimated cost.

Runs whose settings before reinforcement are the same share one warm start, those of other experiments included, so that
arms differ in nothing else and the cost is paid once.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.experiments.spec import Arm, Experiment
from ragen_agent.config import Config, Settings, merged, to_toml, with_settings
from ragen_agent.config.algorithms import FILTER_RULES
from ragen_agent.config.io import OPENRLHF
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.config.settings import pretrained
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.tokens.rollout import Instance
from ragen_gym.core.validation import did_you_mean

__all__ = ["QUICK", "Cost", "PlannedRun", "WarmStart", "arm_settings", "costs", "plan", "warm_starts"]

#: Overrides of every arm by ``--quick``: shows that an experiment runs, evidence of nothing.
QUICK: Settings = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "demonstrations": {"episodes": 64},
    "warm_start": {"epochs": 1},
    "evaluation": {"levels": 16},
}
QUICK_ITERATIONS, QUICK_GROUPS, QUICK_GROUP_SIZE = 3, 4, 4

#: Tokens a second on one idle core of a laptop, of the small model: sampled by the engine, and trained on.
SAMPLED_PER_S, TRAINED_PER_S = 15_000, 45_000

#: How many times slower a pretrained model of 135M parameters is on two cores that multiply bfloat16 matrices.
PRETRAINED_FACTOR = 25
DEMONSTRATED_PER_S = 600  # episodes
START_S = 2  # to build a run and to draw its curve

#: What decides a run before its reinforcement, without those of ``turns`` that an episode earns by and never shows.
BEFORE = (
    "game",
    "seed",
    "model",
    "env_options",
    "games",
    "turns",
    "small_model",
    "demonstrations",
    "warm_start",
    "evaluation",
)
EARNED = ("state_reward", "state_score")


@dataclass(frozen=True)
class WarmStart:
    """A warm start that runs share: a run without reinforcement."""

    config: Config
    folder: Path


@dataclass(frozen=True)
class PlannedRun:
    """One run."""

    arm: Arm
    config: Config
    folder: Path
    warm: WarmStart
    evaluations: int = 1  # see ``Experiment``

    @property
    def name(self) -> str:
        """Such as ``vanilla-seed0``."""
        return self.folder.name


@dataclass(frozen=True)
class Cost:
    """Estimated minutes on one core: of the run without its warm start, and of that."""

    run: float
    warm: float


def plan(
    experiment: Experiment,
    out: Path,
    seeds: int,
    *,
    only: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> list[PlannedRun]:
    """All runs, seed by seed, so that an interrupted experiment has all arms of its first seeds.

    Args:
        experiment: the table.
        out: the experiment's folder; warm starts are in ``warm`` next to it.
        seeds: how many, from 0.
        only: names of arms; all if empty.
        overrides: settings that replace those of every arm.
        quick: whether to make every run tiny.

    Raises:
        ValueError: an unknown arm or setting.
    """
    arms = {arm.name: arm for arm in experiment.arms}
    for name in only:
        if name not in arms:
            known = "; ".join(map(repr, arms))
            raise ValueError(f"{experiment.name} has no arm {name!r}.{did_you_mean(name, arms)} Its arms are {known}.")
    chosen = [arm for arm in experiment.arms if not only or arm.name in only]
    return [_planned(experiment, arm, out, seed, overrides or {}, quick) for seed in range(seeds) for arm in chosen]


def warm_starts(planned: Iterable[PlannedRun]) -> list[WarmStart]:
    """The warm starts that they need, each once."""
    return list({run.warm.folder: run.warm for run in planned}.values())


def arm_settings(experiment: Experiment, arm: Arm) -> Settings:
    """The settings of an arm over those of the experiment, and of its recipe, where it names one."""
    settings = merged(experiment.settings, arm.settings)
    if recipe := settings.pop("recipe", ""):
        settings = merged(read_recipe(str(recipe)).settings, settings)
        settings.pop(OPENRLHF, None)
    return settings


def _planned(
    experiment: Experiment, arm: Arm, out: Path, seed: int, overrides: Mapping[str, Any], quick: bool
) -> PlannedRun:
    settings = merged(arm_settings(experiment, arm), {"seed": seed})
    base = default_settings(settings.get("game", Config.game), str(settings.get("model", "")))
    config = with_settings(Config(), merged(base, settings))
    if quick:
        small = {
            "iterations": min(QUICK_ITERATIONS, config.training.iterations),
            "groups": min(QUICK_GROUPS, config.training.groups),
            "group_size": min(QUICK_GROUP_SIZE, config.training.group_size),
        }
        config = with_settings(config, merged(QUICK, {"training": small}))
    config = with_settings(config, overrides)
    kept = {name: getattr(config, name) for name in (*BEFORE, "device", "threads")}
    kept["turns"] = replace(config.turns, **{name: getattr(Config().turns, name) for name in EARNED})
    before = replace(Config(), **kept, training=replace(Config().training, iterations=0))
    key = json.dumps({name: asdict(before)[name] for name in BEFORE}, sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    slug = "-".join("".join(c if c.isalnum() or c == "." else " " for c in arm.name).split())
    warm = WarmStart(before, out.parent / "warm" / digest)
    return PlannedRun(arm, config, out / "runs" / f"{slug}-seed{seed}", warm, experiment.evaluations)


def costs(planned: Sequence[PlannedRun]) -> list[Cost]:
    """Estimates in the order of the runs; a warm start that several share is counted with the first."""
    seen: set[Path] = set()
    found = []
    for run in planned:
        unit = (PRETRAINED_FACTOR if pretrained(run.config.model) else 1) / 60
        warm = 0.0 if run.warm.folder in seen else _warm_s(run.config)
        seen.add(run.warm.folder)
        found.append(Cost(_reinforcement_s(run) * unit, warm * unit))
    return found


def _warm_s(config: Config) -> float:
    if not config.warm_start.epochs:
        return START_S
    length, sampled = _lengths(_key(config))
    episodes = config.demonstrations.episodes
    trained = episodes * config.warm_start.epochs * length / TRAINED_PER_S
    return START_S + episodes / DEMONSTRATED_PER_S + trained + _measured_s(config, sampled)


def _reinforcement_s(run: PlannedRun) -> float:
    """As if all iterations took as long as the first, with every round of refills: runs that die early are cheaper."""
    config, training = run.config, run.config.training
    length, sampled = _lengths(_key(config))
    episodes = training.groups * training.group_size
    share = training.keep if FILTER_RULES[training.filter_rule].fixed_share else 1.0
    passes = training.updates * share * (1 + training.replay) * (2.5 if training.critic else 1.0)
    passes += share * (training.kl_estimate != "none") / 3
    diagnostics = config.diagnostics
    # A forward pass costs a third; the norms take about two minibatches forward and backward twice.
    if diagnostics.entropy_every:
        passes += 1 / 3 / diagnostics.entropy_every
    probes = 0.0
    if diagnostics.gradients_every:
        probes = 10 * training.minibatch * length / TRAINED_PER_S / diagnostics.gradients_every
    played = episodes * (1 + training.refills)
    iteration = played * sampled / SAMPLED_PER_S + episodes * passes * length / TRAINED_PER_S + probes
    whole = START_S + training.iterations * iteration + _measured_s(config, sampled)
    return whole * 2 + _warm_s(config) if run.arm.imitation else whole


def _measured_s(config: Config, sampled: float) -> float:
    return config.evaluation.levels * sampled / SAMPLED_PER_S


def _key(config: Config) -> str:
    """What the length of an episode depends on, as text that ``_lengths`` can cache."""
    return to_toml(
        Config(
            game=config.game,
            env_options=config.env_options,
            turns=config.turns,
            small_model=config.small_model,
            demonstrations=config.demonstrations,
        )
    )


@cache
def _lengths(text: str) -> tuple[float, float]:
    """Tokens of an episode, and how many of them are sampled, in the mean over some demonstrations."""
    config = with_settings(Config(), tomllib.loads(text))
    process = Policy.build(config).processes("train", 1)[0]
    shown = demonstrate(process, [Instance(seed, seed) for seed in range(24)], config.demonstrations, 0)
    return sum(len(t.ids) for t in shown) / len(shown), sum(float(t.sampled.sum()) for t in shown) / len(shown)
