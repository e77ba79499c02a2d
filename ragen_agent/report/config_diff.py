"""What the runs were told and made with: settings, what differs first; versions and the state of the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ragen_agent.config import Config
from ragen_agent.report.runs import CIRCUMSTANCES, Group, Run, differing, flat
from ragen_agent.training.metrics import cost_line

__all__ = ["made_with", "own", "varying", "whole"]


def varying(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """The settings in which the groups differ: name, and the value in each group."""
    each = [group.runs[0].settings for group in groups]
    return [(name, [written(one.get(name)) for one in each]) for name in differing(each)]


def own(groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """The settings that are the same in all groups and not the default: name, value, default."""
    differ = {name for name, _ in varying(groups)}
    usual = {"backend": "local", **flat(asdict(Config()))}
    settings = groups[0].runs[0].settings
    return [
        (name, written(value), written(usual.get(name)))
        for name, value in settings.items()
        if name not in differ and name not in CIRCUMSTANCES and value != usual.get(name)
    ]


def whole(groups: Sequence[Group]) -> list[tuple[str, int, str]]:
    """For each group its name, its colour and `config.toml` as it lies in the folder of its first run."""
    return [
        (group.name, group.colour, (group.runs[0].folder.path / "config.toml").read_text(encoding="utf-8"))
        for group in groups
    ]


def written(value: Any) -> str:
    """A value as in TOML; a dash for one that is not there, or an empty text."""
    if value is None or value in ("", {}, []):
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def made_with(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each run how far it came, what measuring cost, and one line for every start under other versions."""
    return [_made(group, run) for group in groups for run in group.runs]


def _made(group: Group, run: Run) -> dict[str, Any]:
    done, wanted = len(run.metrics), run.config.training.iterations
    seconds = run.rates.get("wall_s")
    how = ", ".join(
        [
            f"seed {run.config.seed}",
            f"{run.settings['backend']} trainer on {run.config.device}",
            f"{done} of {wanted} iterations" + ("" if run.whole else ", not finished"),
            *([f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"] if seconds else []),
        ]
    )
    return {
        "name": run.name,
        "colour": group.colour,
        "how": how,
        "cost": cost_line(run.metrics) if all("seconds" in record for record in run.metrics) else "",
        "starts": [_start(noted) for noted in run.folder.read_versions()],
    }


def _start(noted: dict[str, Any]) -> dict[str, str]:
    git = noted.get("git")
    code = "not from a checkout"
    if git:
        changed = git["changed"]
        code = f"{git['commit'][:12]}{' on ' + git['branch'] if git['branch'] else ''}"
        if changed:
            code += f", with changes in {len(changed)} file{'s' * (len(changed) != 1)} (diff {git['diff_sha256']})"
    packages = ", ".join(f"{name} {version}" for name, version in noted["packages"].items())
    return {
        "started": noted["started"].replace("T", " ").replace("+00:00", " UTC"),
        "code": code,
        "packages": f"Python {noted['python']}, {packages}, {noted['platform']}",
    }
