"""Runs as a report sees them: read from their folders, named, and put together where only the seed differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, read_toml
from ragen_agent.training.alarm import Sign, signs_at
from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

__all__ = ["CIRCUMSTANCES", "Group", "Run", "differing", "first_signs", "flat", "grouped", "load_runs"]

#: Settings that say nothing of what is learned.
CIRCUMSTANCES = ("seed", "threads", "device", "diagnostics.tensorboard", "diagnostics.alarm")
NAMED = 3  # settings that the name of a group may hold

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A run, finished or not.

    Attributes:
        name: unique in the report.
        folder: where it lies.
        config: its settings.
        settings: the same by dotted name, with those of the distributed trainer where it was that.
        rates: `summary.json`.
        metrics: `metrics.jsonl`.
        signs: of the Echo Trap, each where it was first seen, by the factors in force today.
    """

    name: str
    folder: RunFolder
    config: Config
    settings: Settings
    rates: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    signs: Sequence[Sign]

    @property
    def whole(self) -> bool:
        """Whether it was measured at its end."""
        return "after" in self.rates


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed and the machine. `colour` is its place among the groups."""

    name: str
    colour: int
    runs: Sequence[Run]

    def rates(self, row: str) -> dict[int, Mapping[str, Any]]:
        """A row of the summaries by seed, of the runs that have it."""
        return {run.config.seed: run.rates[row] for run in self.runs if row in run.rates}


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of these folders, in this order.

    Raises:
        ValueError: a folder holds no run or is named twice, or a file of it is damaged.
    """
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise ValueError(f"the run {paths[place]} is named twice: name each once.")
    names = [path.name for path in resolved]
    told = [path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in resolved]
    if len(set(told)) < len(told):
        told = [str(path) for path in paths]
    return [_load(path, name) for path, name in zip(paths, told, strict=True)]


def _load(path: Path, name: str) -> Run:
    folder, config = RunFolder.reopen(path)
    distributed = path / "openrlhf.toml"
    settings: dict[str, Any] = {"backend": "openrlhf" if distributed.is_file() else "local", **asdict(config)}
    if distributed.is_file():
        settings["openrlhf"] = read_toml(distributed)
    metrics = read_json_lines(folder.metrics)
    return Run(name, folder, config, flat(settings), folder.read_summary(), metrics, first_signs(metrics))


def first_signs(metrics: Sequence[Mapping[str, Any]], known: Sequence[Sign] = (), done: int = 0) -> list[Sign]:
    """Each sign of the Echo Trap where it was first seen, in the order of their iterations.

    Args:
        metrics: `metrics.jsonl`.
        known: what was found in its first `done` records, which are not looked at again.
        done: see `known`.
    """
    seen = {sign.name: sign for sign in known}
    for end in range(done + 1, len(metrics) + 1):
        for sign in signs_at(metrics[:end]):
            seen.setdefault(sign.name, sign)
    return list(seen.values())


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables by dotted names; an empty table stands as one."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs by configuration, in the order in which each is first met, named by what tells them apart.

    A seed stands in a group once: who runs one twice, as before and after a change of the code, compares the two.
    """
    members: list[list[Run]] = []
    for run in runs:
        same = [
            group
            for group in members
            if _told(group[0]) == _told(run) and all(other.config.seed != run.config.seed for other in group)
        ]
        same[0].append(run) if same else members.append([run])
    varying = differing(group[0].settings for group in members)
    names = [_name(group, varying) for group in members]
    if len(set(names)) < len(names):
        names = [group[0].name for group in members]
    return [Group(name, place, group) for place, (name, group) in enumerate(zip(names, members, strict=True))]


def differing(settings: Iterable[Settings]) -> list[str]:
    """The names of the settings, circumstances aside, that are not the same everywhere; a missing one differs."""
    each = list(settings)
    names = dict.fromkeys(name for one in each for name in one if name not in CIRCUMSTANCES)
    return [name for name in names if any(name not in one or one[name] != each[0].get(name) for one in each)]


def _told(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.settings.items() if name not in CIRCUMSTANCES}


def _name(group: Sequence[Run], varying: Sequence[str]) -> str:
    """The game, the preset, and the other settings that differ if they are few; else the first folder's name."""
    config, rest = group[0].config, [name for name in varying if name not in ("game", "training.starpo_s")]
    if not varying:
        return config.game
    words = [config.game] if "game" in varying else []
    if "training.starpo_s" in varying:
        words.append("StarPO-S" if config.training.starpo_s else "StarPO")
    if len(rest) > NAMED or (not words and not rest):
        return group[0].name
    words += [f"{name.rpartition('.')[2]} {_short(group[0].settings.get(name))}" for name in rest]
    return ", ".join(words)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in ("", None) else "as preset"
