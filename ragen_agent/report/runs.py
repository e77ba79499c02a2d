"""Training runs as a report sees them: read from their folders, and put together where only the seed differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, read_toml, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.run.alarm import Sign, signs_at
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines

#: Settings that do not change what is learned.
IRRELEVANT = (
    *("seed", "threads", "device", "evaluation.imitation"),
    *("diagnostics.tensorboard", "diagnostics.wandb", "diagnostics.tables_every"),
    *("hub.model", "hub.dataset", "hub.private"),
)
NAMED = 3  # settings that the name of a group may hold


@dataclass(frozen=True)
class RecordedRun:
    """A training run as its folder holds it, finished or not."""

    name: str  # unique among the runs that are looked at
    folder: RunFolder  # where it lies
    config: Config  # its settings
    summary: Mapping[str, Any]  # summary.json
    metrics: Sequence[Mapping[str, Any]]  # metrics.jsonl

    @property
    def finished(self) -> bool:
        """True if it was measured after its last iteration."""
        return "after" in self.summary

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings by dotted name, with those of the distributed trainer if it made the run."""
        openrlhf = self.folder.path / "openrlhf.toml"
        if not openrlhf.is_file():
            return flatten({"backend": "local", **asdict(self.config)})
        return flatten({"backend": "openrlhf", **asdict(self.config), "openrlhf": read_toml(openrlhf)})

    @cached_property
    def relevant_settings(self) -> dict[str, Any]:
        """Those that decide what is learned."""
        return {name: value for name, value in self.settings.items() if name not in IRRELEVANT}

    @cached_property
    def signs(self) -> list[Sign]:
        """Signs of the Echo Trap, each where the run first raised it."""
        raised = [(end, record["alarm"]) for end, record in enumerate(self.metrics, 1) if record.get("alarm")]
        return [sign for end, names in raised for sign in signs_at(self.metrics[:end]) if sign.name in names]


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in nothing but their seed and the machine. ``colour`` is the group's place among all."""

    name: str
    colour: int
    runs: Sequence[RecordedRun]

    def rates(self, row: str) -> dict[int, Mapping[str, Any]]:
        """A row of the summaries by seed, of the runs that have it."""
        return {run.config.seed: run.summary[row] for run in self.runs if row in run.summary}


def load_run(path: Path, name: str = "") -> RecordedRun:
    """The run of a folder; raises a ValueError if there is none, or a file of it is damaged."""
    folder, config = RunFolder.reopen(path)
    return RecordedRun(name or path.name, folder, config, folder.read_summary(), read_json_lines(folder.metrics))


def load_runs(paths: Sequence[Path]) -> list[RecordedRun]:
    """The runs of these folders, in this order, with names that differ.

    Raises:
        ValueError: a folder holds no run or is named twice, or a file of it is damaged.
    """
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise ValueError(f"the run {paths[place]} is named twice: name each once.")
    short = [path.name for path in resolved]
    names = [path.name if short.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in resolved]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [load_run(path, name) for path, name in zip(paths, names, strict=True)]


def read_episode(line: bytes) -> tuple[dict[str, Any], Trajectory]:
    """A line of ``episodes.jsonl`` and its episode; raises a ValueError where it holds something else."""
    record: dict[str, Any] = json.loads(line)
    try:
        return record, Trajectory.from_dict(record)
    except (KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables by dotted names; an empty table stands as one."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, f"{name}."))
        else:
            found[name] = value
    return found


def group_by_settings(runs: Sequence[RecordedRun]) -> list[SeedGroup]:
    """The runs by their settings, in the order in which each is first met, named by what differs.

    A group holds each seed once: whoever repeats a run, as before and after a change of the code, compares the two.
    """
    groups: list[list[RecordedRun]] = []
    for run in runs:
        same = [
            group
            for group in groups
            if group[0].relevant_settings == run.relevant_settings
            and all(other.config.seed != run.config.seed for other in group)
        ]
        same[0].append(run) if same else groups.append([run])
    differing = _differing([group[0] for group in groups])
    names = [_group_name(group, differing) for group in groups]
    if len(set(names)) < len(names):
        names = [group[0].name for group in groups]
    return [SeedGroup(name, place, group) for place, (name, group) in enumerate(zip(names, groups, strict=True))]


def differing_settings(groups: Sequence[SeedGroup]) -> list[tuple[str, list[str]]]:
    """The settings in which the groups differ: name, and the value in each group."""
    firsts = [group.runs[0] for group in groups]
    return [(name, [format_setting(run.settings.get(name)) for run in firsts]) for name in _differing(firsts)]


def changed_settings(groups: Sequence[SeedGroup]) -> list[tuple[str, str, str]]:
    """The settings that all groups share and that are not the default of their game and model: name, value, default."""
    differing, config = _differing([group.runs[0] for group in groups]), groups[0].runs[0].config
    usual = Config() if "game" in differing else with_settings(Config(), default_settings(config.game, config.model))
    defaults = flatten({"backend": "local", **asdict(usual), "openrlhf": asdict(OpenRLHF())})
    return [
        (name, format_setting(value), format_setting(defaults.get(name)))
        for name, value in groups[0].runs[0].relevant_settings.items()
        if name not in differing and value != defaults.get(name)
    ]


def format_setting(value: Any) -> str:
    """A value as in TOML; a dash for one that is not there, or an empty text."""
    if value is None or value in ("", {}, []):
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _differing(runs: Iterable[RecordedRun]) -> list[str]:
    """The names of the relevant settings that are not the same in all runs; a missing one differs."""
    each = [run.relevant_settings for run in runs]
    names = dict.fromkeys(name for one in each for name in one)
    return [name for name in names if any(name not in one or one[name] != each[0].get(name) for one in each)]


def _group_name(group: Sequence[RecordedRun], differing: Sequence[str]) -> str:
    config, others = group[0].config, [name for name in differing if name not in ("game", "training.starpo_s")]
    if not differing:
        return config.game
    words = [config.game] if "game" in differing else []
    if "training.starpo_s" in differing:
        words.append("StarPO-S" if config.training.starpo_s else "StarPO")
    if len(others) > NAMED or (not words and not others):
        return group[0].name
    words += [f"{name.removeprefix('training.')} {_short(group[0].settings.get(name))}" for name in others]
    return ", ".join(words)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return format_setting(value) if value not in ("", None) else "as preset"
