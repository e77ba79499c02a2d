"""One HTML page of one or more runs: success rates, curves, alarms, settings and episodes.

The frame and the viewer are those of the benchmark's report; see ``ragen_gym.bench.report.html_page``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen_agent.config.settings import model_name
from ragen_agent.report.charts import panels
from ragen_agent.report.episodes import FILTERS, EpisodeViews, sort_headings
from ragen_agent.report.gradients import gradients_of
from ragen_agent.report.rates import rates_table, sentences
from ragen_agent.report.runs import (
    RecordedRun,
    SeedGroup,
    changed_settings,
    differing_settings,
    group_by_settings,
)
from ragen_agent.run.alarm import FOLLOWS, sign_label
from ragen_agent.update.metrics import SMOOTHING, cost_line
from ragen_gym import __version__
from ragen_gym.bench.report.html_page import Archive, Entry, EpisodeViewer, pack, plural, render_page
from ragen_gym.bench.report.plots import COLOURS
from ragen_gym.bench.report.tables import number

TEMPLATES = Path(__file__).with_name("templates")

_TERMS = (
    ("smoothed", "Exponential moving average: each value enters with the weight {weight:g}. Raw values are faint."),
    ("band", "From the lowest to the highest seed of a configuration, smoothed; the line is their mean."),
    ("95 % interval", "Wilson's over the levels for one run; Student's t over the seeds for several. Few seeds: wide."),
    ("random, optimal", "Replies of random moves, and the exact oracle, on the same fixed levels and budgets."),
    (
        "more imitation",
        "Further training on the demonstrations at the cost of the reinforcement, without rewards.",
    ),
    (
        "clean warm start",
        "Training on a faultless demonstrator at the cost of the warm start, without rewards.",
    ),
    ("advantage", "Return relative to its group, or to the critic: the weight of a token in the policy gradient."),
    ("log-prob", "Log-probability of the sampled token: 0 is certain, minus 5 is below 1 %."),
)


def page(
    runs: Sequence[RecordedRun],
    *,
    megabytes: float = 20.0,
    progress: Callable[[int, int], None] = lambda done, of: None,
    recent: int | None = None,
    live: str | None = None,
) -> str:
    """The page.

    Args:
        runs: at least one; see ``load_runs``.
        megabytes: the most that the episodes may take in the page. If they take more, it holds some of every phase and
            of all parts of the training, and says so.
        progress: called with how many of the episodes are drawn, and of how many.
        recent: only the last so many episodes of each run are replayed; None for all.
        live: see ``render_page``.
    """
    groups = group_by_settings(runs)
    drawn = panels(groups, SMOOTHING)
    index, archive, total = _viewer(runs, megabytes, progress, recent)
    opening, why = _opening(archive.headings)
    said = f"The last {len(archive.headings)} of {total:,} recorded episodes."
    left_out = recent and len(archive.headings) < total
    note = f"{said if left_out else _note(len(archive.headings), total, megabytes)} {why}"
    return render_page(
        "run.html",
        EpisodeViewer(index | {"opening": opening}, archive.blocks, note),
        folder=TEMPLATES,
        styles=["curves.css"],
        scripts=["curves.js"],
        data={"curves-data": {panel["name"]: panel["readout"] for panel in drawn}},
        live=live,
        kind="Training report",
        title=_title(groups, runs),
        lede=_lede(groups, runs),
        counts=_counts(groups, runs, total),
        groups=[{"name": group.name, "colour": group.colour % COLOURS, "seeds": len(group.runs)} for group in groups],
        findings=sentences(groups),
        numbers=rates_table(groups),
        panels=drawn,
        signs=_signs(groups),
        gradients=[table for run in runs if (table := gradients_of(run))],
        differing=differing_settings(groups),
        changed=changed_settings(groups),
        files=[
            (group.name, (group.runs[0].folder.path / "config.toml").read_text(encoding="utf-8")) for group in groups
        ],
        made=[_made_with(group, run) for group in groups for run in group.runs],
        terms=[(term, meaning.format(weight=SMOOTHING)) for term, meaning in _TERMS],
        colophon=[
            f"ragen-gym {__version__}.",
            *(f"{run.name}: {' '.join(plural(len(run.metrics), 'iteration'))}." for run in runs),
        ],
    )


def _viewer(
    runs: Sequence[RecordedRun], megabytes: float, progress: Callable[[int, int], None], recent: int | None
) -> tuple[dict[str, Any], Archive, int]:
    several = len(runs) > 1
    each = [EpisodeViews(run, several, recent) for run in runs]
    total, done = sum(episodes.recorded for episodes in each), 0

    groups = [group for episodes in each for group in episodes.groups()]
    order = np.random.default_rng(0).permutation(len(groups))  # a page without room for all holds some of everything

    def entries() -> Iterator[list[Entry]]:
        nonlocal done
        for at in order:
            yield groups[at]
            done += len(groups[at])
            progress(done, total)

    archive = pack(entries(), megabytes)
    headings = sort_headings(archive.headings, runs)
    tags = {tag for heading in headings for tag in heading["tags"]}
    always = ("solved", "failed", "malformed", None)
    index = {
        "board_styles": {name: style for episodes in each for name, style in episodes.board_styles.items()},
        "systems": {name: text for episodes in each for name, text in episodes.systems.items()},
        "fields": [*([{"field": "run", "label": "run"}] if several else []), {"field": "phase", "label": "phase"}],
        "filters": [kind for kind in FILTERS if kind.get("tag") in always or kind.get("tag") in tags],
        "compare_by": "player",
        "episodes": headings,
    }
    return index, archive, total


def _title(groups: Sequence[SeedGroup], runs: Sequence[RecordedRun]) -> str:
    games = list(dict.fromkeys(run.config.game for run in runs))
    return runs[0].name if len(runs) == 1 else ", ".join(games) + (": comparison of runs" if len(groups) > 1 else "")


def _lede(groups: Sequence[SeedGroup], runs: Sequence[RecordedRun]) -> str:
    if len(groups) > 1:
        return f"{len(groups)} configurations, which differ in their settings: {', '.join(g.name for g in groups)}."
    config = runs[0].config
    training = config.training
    preset = "StarPO-S" if training.starpo_s else "StarPO"
    chosen = f" and the filter {training.filter}" if training.filter else ""
    model = model_name(config.model) if config.model else "a small model from scratch"
    games = [str(table["game"]) for table in config.games] or [config.game]
    return (
        f"{preset} with {training.algo.upper().replace('_', ' ')}{chosen} on {', '.join(games)}: {model}, "
        f"{training.groups} levels of {training.group_size} episodes an iteration."
    )


def _counts(groups: Sequence[SeedGroup], runs: Sequence[RecordedRun], total: int) -> list[tuple[str, str]]:
    counts = [plural(len(groups), "configuration")] * (len(groups) > 1)
    counts += [plural(len(runs), "run"), plural(sum(len(run.metrics) for run in runs), "iteration")]
    counts += [plural(total, "recorded episode"), plural(sum(len(run.signs) for run in runs), "alarm")]
    return counts


def _signs(groups: Sequence[SeedGroup]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.name,
            "colour": group.colour % COLOURS,
            "iteration": sign.iteration + 1,
            "sign": sign_label(sign.name),
            "value": f"{sign.value:.3g}",
            "reference": f"{sign.reference:.3g}",
            "follows": FOLLOWS[sign.name],
        }
        for group in groups
        for run in group.runs
        for sign in run.signs
    ]


def _made_with(group: SeedGroup, run: RecordedRun) -> dict[str, Any]:
    done, wanted = len(run.metrics), run.config.training.iterations
    seconds = run.summary.get("wall_s")
    how = [
        f"seed {run.config.seed}",
        f"{run.settings['backend']} trainer{_device(run)}",
        f"{done} of {wanted} iterations" + ("" if run.finished else ", not finished"),
    ]
    if seconds:
        how.append(f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds")
    return {
        "name": run.name,
        "colour": group.colour % COLOURS,
        "how": ", ".join(how),
        "cost": cost_line(run.metrics) if all("seconds" in record for record in run.metrics) else "",
        "starts": [_start(noted) for noted in run.folder.read_versions()],
    }


def _device(run: RecordedRun) -> str:
    """`` on`` the GPU, or the CPU where the run has measured something and used none; else empty."""
    if "gpu" in run.summary:
        return f" on {run.summary['gpu']}"
    return " on a CPU" if run.settings["backend"] == "local" and "memory_gib" in run.summary else ""


def _start(noted: dict[str, Any]) -> dict[str, str]:
    packages = ", ".join(f"{name} {version}" for name, version in noted["packages"].items())
    return {
        "started": noted["started"].replace("T", " ").replace("+00:00", " UTC"),
        "code": noted.get("git") or "not from a checkout",
        "packages": f"Python {noted['python']}, {packages}, {noted['platform']}",
    }


def _opening(headings: Sequence[dict[str, Any]]) -> tuple[dict[str, str], str]:
    """The episode that the viewer opens on, as ``viewer.js`` takes it, and a sentence on it.

    Among the episodes with the largest advantage, one whose pivot is known, or else the longest.
    """
    if not headings:
        return {}, ""
    chosen = max(headings, key=lambda each: (round(each["order"]["advantage"], 3), each["pivot"], each["length"]))
    largest = chosen["order"]["advantage"]
    if largest:
        why = f"It opens on {chosen['title']}, which has the largest advantage in size, {number(largest)}."
    else:
        why = f"It opens on {chosen['title']}, {chosen['fields']['phase']}."
    return {"episode": chosen["id"]}, why


def _note(shown: int, total: int, megabytes: float) -> str:
    colours = "Tokens are coloured by their advantage or their log-prob."
    if shown == total:
        return f"All {total:,} recorded episodes. {colours}"
    return (
        f"{shown:,} of {total:,} recorded episodes, of every phase and of all parts of the training, "
        f"so that they take less than {megabytes:g} MB. The report's numbers are of all episodes. "
        f"{colours}"
    )
