"""The runs of an experiment: its arms times its seeds, each with its settings and its folder.

Runs whose settings before reinforcement are the same share one warm start, those of other experiments included, so that
arms differ in nothing else and the cost is paid once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.experiments.spec import Arm, Experiment
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.config.trainers import OPENRLHF
from ragen_gym.core.validation import did_you_mean

#: Overrides of every arm by ``--quick``: shows that an experiment runs, evidence of nothing.
QUICK: Settings = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "demonstrations": {"episodes": 64},
    "warm_start": {"epochs": 1},
    "evaluation": {"levels": 16},
}
QUICK_ITERATIONS, QUICK_GROUPS, QUICK_GROUP_SIZE = 3, 4, 4

#: What decides a run before its reinforcement, without those of ``turns`` that an episode earns by and never shows.
BEFORE = (
    *("game", "seed", "model", "env_options", "games", "turns", "small_model", "demonstrations", "warm_start"),
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


def plan(
    experiment: Experiment,
    out: Path,
    seeds: int,
    *,
    only: Sequence[str] = (),
    quick: bool = False,
) -> list[PlannedRun]:
    """All runs, seed by seed, so that an interrupted experiment has all arms of its first seeds.

    Args:
        experiment: the table.
        out: the experiment's folder; warm starts are in ``warm`` beside it.
        seeds: how many, from 0; an arm may have fewer.
        only: names of arms; all if empty.
        quick: whether to make every run tiny.

    Raises:
        ValueError: an unknown arm.
    """
    arms = {arm.name: arm for arm in experiment.arms}
    for name in only:
        if name not in arms:
            known = "; ".join(map(repr, arms))
            raise ValueError(f"{experiment.name} has no arm {name!r}.{did_you_mean(name, arms)} Its arms are {known}.")
    chosen = [arm for arm in experiment.arms if not only or arm.name in only]
    return [
        _planned(experiment, arm, out, seed, quick)
        for seed in range(seeds)
        for arm in chosen
        if arm.seeds is None or seed < arm.seeds
    ]


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


def _planned(experiment: Experiment, arm: Arm, out: Path, seed: int, quick: bool) -> PlannedRun:
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
    kept = {name: getattr(config, name) for name in (*BEFORE, "device", "threads")}
    kept["turns"] = replace(config.turns, **{name: getattr(Config().turns, name) for name in EARNED})
    before = replace(Config(), **kept, training=replace(Config().training, iterations=0))
    key = json.dumps({name: asdict(before)[name] for name in BEFORE}, sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    slug = "-".join("".join(c if c.isalnum() or c == "." else " " for c in arm.name).split())
    warm = WarmStart(before, out.parent / "warm" / digest)
    return PlannedRun(arm, config, out / "runs" / f"{slug}-seed{seed}", warm, experiment.evaluations)
