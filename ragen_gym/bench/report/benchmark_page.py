"""One HTML page of one or more runs of a suite: scores, plots, and the viewer of their episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from ragen_gym import __version__
from ragen_gym.bench.baselines import oracle_episodes
from ragen_gym.bench.losses import Losses, kind_name, losses_by_split
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report import plots
from ragen_gym.bench.report.html_page import Archive, Entry, EpisodeViewer, pack, plural, render_page
from ragen_gym.bench.report.plots import COLOURS, bound_rate, bounding_split
from ragen_gym.bench.report.tables import bounds, number, seen, sentences, success
from ragen_gym.bench.report.viewer_data import board_style, details, heading
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.suites import Suite
from ragen_gym.core.stats import percent
from ragen_gym.envs.policies import PlayedEpisode
from ragen_gym.envs.turn import TurnEnv

_FILTERS = [
    {"label": "All"},
    {"label": "Solved", "tag": "solved"},
    {"label": "Failed", "tag": "failed"},
    {"label": "Malformed", "tag": "malformed"},
    {"label": "Errors", "tag": "error"},
]


def page(
    runs: Sequence[BenchResults],
    summaries: Sequence[dict[str, Any]],
    comparisons: Sequence[dict[str, Any]],
    *,
    megabytes: float = 20.0,
    progress: Callable[[int], None] = lambda done: None,
    recent: int | None = None,
    live: str | None = None,
) -> str:
    """The page.

    Args:
        runs: of one suite, with different names; see ``load_several``.
        summaries: the score of each.
        comparisons: as ``ragen_gym.bench.compare.compare`` makes them.
        megabytes: the most that the episodes may take in the page. If they take more, it holds those of the first
            instances of every split, of all agents alike, and says so.
        progress: called with how many of the episodes are drawn.
        recent: only the last so many episodes of each run are replayed, and no table says where games are lost, which
            takes a replay of all; None for all.
        live: see ``render_page``.
    """
    suite = runs[0].suite
    replayers = {split.name: Replayer(split, valued=True) for split in suite.splits}
    played = [replace(run, records=run.records[-recent:]) for run in runs] if recent else runs
    archive = _archive(played, replayers, megabytes, progress)
    total = sum(len(run.records) for run in runs)
    said = f"The last {len(archive.headings)} of {total:,} episodes, replayed from their records."
    note = said if recent and len(archive.headings) < total else _note(len(archive.headings), total, megabytes)
    return render_page(
        "report.html",
        EpisodeViewer(_index(runs, archive) | {"opening": _opening(archive.headings)}, archive.blocks, note),
        kind="Benchmark report",
        title=suite.name,
        lede=suite.about,
        strips=plots.strips(summaries, split_names(suite, summaries)),
        published=any(split.published for split in suite.splits),
        losses=[] if recent else _losses(runs, replayers),
        live=live,
        colophon=[
            f"ragen-gym {__version__}. Suite {suite.name}, content hash {suite.hash}.",
            *(f"{run.agent}: {run.path.name}, {len(run.records):,} episodes." for run in runs),
        ],
        **context(suite, summaries, comparisons),
    )


def _losses(runs: Sequence[BenchResults], replayers: Mapping[str, Replayer]) -> list[dict[str, Any]]:
    """Where each agent's games of each split were lost: the rows of a table, split by split."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for name, place, found in losses_by_split(runs, replayers):
        row = {"name": runs[place].agent, "colour": place % COLOURS, "cells": _loss_cells(replayers[name], found)}
        shown.setdefault(name, []).append(row)
    return [{"name": name, "rows": rows} for name, rows in shown.items()]


def _loss_cells(replayer: Replayer, losses: Losses) -> list[str]:
    """Lost, share of chance, moves before the pivot, kinds of mistakes."""
    game = replayer.env.game
    kinds = [f"{kind_name(game, kind)}: {percent(n / losses.placed)}" for kind, n in losses.kinds.items()]
    return [
        f"{losses.placed} of {losses.lost}" if losses.placed < losses.lost else str(losses.lost),
        percent(losses.chance if game.stochastic else None),
        number(losses.moves, 1),
        " · ".join(kinds).replace(" %", "\u00a0%"),
    ]


def _archive(
    runs: Sequence[BenchResults],
    replayers: Mapping[str, Replayer],
    megabytes: float,
    progress: Callable[[int], None],
) -> Archive:
    """Instance by instance, so that a page that holds only some shows the same ones of all agents and splits."""
    suite = runs[0].suite
    order = {split.name: place for place, split in enumerate(suite.splits)}
    groups: dict[tuple[int, int], list[tuple[int, int, EpisodeRecord, str]]] = {}
    for place, run in enumerate(runs):
        for record in run.records:
            if record.split in order and 0 <= record.index < len(replayers[record.split].split.levels):
                episode = (order[record.split], place, record, run.agent)
                groups.setdefault((record.index, record.rollout), []).append(episode)
    done = 0
    # Looked up once: every call of ``oracle_episodes`` makes an environment.
    wanted = {(record.split, record.rollout) for group in groups.values() for *_, record, _ in group}
    oracles = {(name, rollout): oracle_episodes(suite, replayers[name].split, rollout) for name, rollout in wanted}

    def entries() -> Iterator[list[Entry]]:
        nonlocal done
        for key in sorted(groups):
            group = sorted(groups[key], key=lambda episode: episode[:2])
            yield [
                _entry(replayers[record.split], record, agent, oracles[record.split, record.rollout], place)
                for _, place, record, agent in group
            ]
            done += len(group)
            progress(done)

    return pack(entries(), megabytes)


def _entry(
    replayer: Replayer, record: EpisodeRecord, agent: str, oracles: Sequence[PlayedEpisode] | None, place: int
) -> Entry:
    optimal = ""
    if oracles is not None:
        best = len(oracles[record.index].actions)
        moves = f" in {best} move{'s' * (best != 1)}" * bool(best)  # a text task has none
        optimal = f"the oracle solves it{moves}" if oracles[record.index].success else "the oracle does not solve it"
    name = f"{record.key}-{place}"  # two runs of one agent have the same keys
    return Entry(heading(record, agent, name), lambda: details(replayer, record, optimal))


def _index(runs: Sequence[BenchResults], archive: Archive) -> dict[str, Any]:
    """What the viewer needs before an episode is opened."""
    envs = {split.name: split.make_env() for split in runs[0].suite.splits}
    kinds = {tag for heading in archive.headings for tag in heading["tags"]}
    return {
        "board_styles": {
            name: board_style(env.env) if isinstance(env, TurnEnv) else {"kind": "text"} for name, env in envs.items()
        },
        "systems": {name: env.instructions for name, env in envs.items()},
        "fields": [{"field": "agent", "label": "agent"}, {"field": "split", "label": "split"}],
        "filters": [kind for kind in _FILTERS if kind.get("tag") in (None, "solved", "failed", *kinds)],
        "compare_by": "agent",
        "episodes": archive.headings,
    }


def _opening(headings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The episode that the viewer opens on, as ``templates/viewer.js`` takes it.

    A lost game whose pivot is known, beside another agent's success on the same level where there is one; the longest
    of these.
    """
    solvers = {each["pair"]: each["fields"]["agent"] for each in reversed(headings) if each["tags"][0] == "solved"}

    def key(heading: dict[str, Any]) -> tuple[bool, bool, bool, int]:
        lost = heading["tags"][0] == "failed"
        return lost, lost and heading["pair"] in solvers, heading["pivot"], heading["length"]

    if not headings:
        return {}
    chosen = max(headings, key=key)
    return {"episode": chosen["id"], "compare": solvers[chosen["pair"]] if key(chosen)[1] else ""}


def _note(shown: int, total: int, megabytes: float) -> str:
    if shown == total:
        return f"All {total:,} episodes, replayed from their records."
    return (
        f"{shown:,} of {total:,} episodes, replayed from their records: those of the first instances of every split, "
        f"so that they take less than {megabytes:g} MB. The report's numbers are of all episodes."
    )


Summary = Mapping[str, Any]

_COLUMNS = (
    "agent",
    "success",
    "of asked",
    "bounds",
    "normalised",
    "above blind",
    "return",
    "regret",
    "malformed",
    "turns",
    "tokens",
    "seconds",
)

_TERMS = {
    "success": "Share of the episodes that reached the goal within the budgets, with its 95 % interval: Wilson's where "
    "each level was played once and is of a family of its own, else clustered by family.",
    "of asked, bounds": "Episodes in the score, and success of all that were asked for if those missing or excluded "
    "(such as by a server that broke) had all failed, or all succeeded.",
    "random, blind, optimal": "Uniformly random moves, a script that goes for the goal and ignores what is in the way, "
    "and the exact oracle, on the same levels within the same budgets.",
    "normalised, above blind": "Success on the scale from random play, or from the blind script (0), to optimal play "
    "(1). A score that the script reaches shows no planning.",
    "regret": "The highest expected return of each level less the return of the agent, on average. Below 0 where "
    "chance paid more than optimal play expects.",
    "where games are lost": "By the exact value of every state. The pivot of a lost game is the first move with which "
    "the highest probability of success drops, or after which it is 0. Chance explains of the losses what the moves' "
    "regret does not.",
    "verified": "ragen-gym bench verify replays every episode. It cannot show that the replies are a model's.",
}


def split_names(suite: Suite, summaries: Sequence[Summary]) -> list[str]:
    """The splits that any run played, in the order of the suite."""
    return [split.name for split in suite.splits if any(split.name in summary["splits"] for summary in summaries)]


def context(suite: Suite, summaries: Sequence[Summary], comparisons: Sequence[Summary]) -> dict[str, Any]:
    """The variables of ``templates/report.html`` that are words and tables."""
    names = split_names(suite, summaries)
    columns, splits = _known(_COLUMNS, [_numbers(name, summaries) for name in names])
    return {
        "counts": _counts(names, summaries),
        "findings": _findings(summaries, comparisons),
        "overview": {"splits": names, "rows": _standing(names, summaries)},
        "numbers": {"columns": columns, "splits": splits},
        "comparisons": [_pair(comparison) for comparison in comparisons],
        "terms": [(term, said) for term, said in _TERMS.items() if term in columns or term not in _COLUMNS],
    }


def _counts(names: Sequence[str], summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    overall = [summary["overall"] for summary in summaries]
    counts = [plural(len(summaries), "agent"), plural(len(names), "split")]
    counts.append(plural(sum(each["episodes"] for each in overall), "episode"))
    if excluded := sum(each["excluded"] for each in overall):
        counts.append((f"{excluded:,}", "excluded"))
    return counts


def _findings(summaries: Sequence[Summary], comparisons: Sequence[Summary]) -> list[str]:
    """Sentences on each agent beside random play, then on which agents differ."""
    said = []
    for summary in summaries:
        agent, sides = summary["agent"], dict[str, list[str]]()
        for name, split in summary["splits"].items():
            if "differs_from_random" in split:
                above = split["clustered"]["rate"] > split["random"]["rate"]
                side = ("significantly above" if above else "significantly below") * split["differs_from_random"]
                sides.setdefault(side or "not significantly different from", []).append(name)
        said += [f"{agent} is {side} random play on {', '.join(names)}." for side, names in sides.items()]
        said += [f"{agent}: {sentence}" for sentence in sentences(summary)]
    for pair in comparisons:
        if not pair["splits"]:
            said.append(f"No instance has a scored episode of both {pair['first']} and {pair['second']}.")
            continue
        differing = [name for name, split in pair["splits"].items() if split["verdict"] != "unclear"]
        said.append(f"All levels: {pair['all']['sentence']}")
        if differing:
            said.append(f"{pair['first']} and {pair['second']} differ significantly on {', '.join(differing)}.")
    return said


def _standing(names: Sequence[str], summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Agents from the best down, between the rows of optimal and of random play."""
    scores = [summary["overall"]["normalised"] for summary in summaries]
    places = sorted(range(len(summaries)), key=lambda place: float("inf") if scores[place] is None else -scores[place])
    rows = [_bound_row("optimal", "1.00", names, summaries)]
    for place in places:
        summary = summaries[place]
        cells = []
        for name in names:
            split = summary["splits"].get(name)
            if split is None:
                cells.append((percent(None), ""))
            else:
                of = [f"{split['success']['n']} of {split['asked']}"] * bool(bounds(split))
                cells.append((percent(split["success"]["rate"]), ", ".join([_interval(success(split)), *of])))
        score = number(summary["overall"]["normalised"])
        rows.append({"name": summary["agent"], "colour": place % COLOURS, "score": score, "cells": cells})
    blind = any(bounding_split("blind", name, summaries) for name in names)
    rows += [_bound_row("blind", number(None), names, summaries)] * blind
    return [*rows, _bound_row("random", "0.00", names, summaries)]


def _bound_row(kind: str, score: str, names: Sequence[str], summaries: Sequence[Summary]) -> dict[str, Any]:
    cells = [(percent(bound_rate(kind, name, summaries)), "") for name in names]
    return {"name": f"{kind} play", "colour": None, "score": score, "cells": cells}


def _numbers(name: str, summaries: Sequence[Summary]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for place, summary in enumerate(summaries):
        if name in summary["splits"]:
            split = summary["splits"][name]
            said = split["sentence"] if split.get("differs_from_random") is False else ""
            rows.append({"name": summary["agent"], "colour": place % COLOURS, "cells": _cells(split), "said": said})
    about = next(summary["splits"][name]["about"] for summary in summaries if name in summary["splits"])
    return {"name": name, "about": about, "rows": rows}


def _known(columns: Sequence[str], splits: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and the tables of the splits, without columns in which no row has a value."""
    rows = [row for split in splits for row in split["rows"]]
    nothing = {("", ""), (number(None), "")}
    known = [not nothing.issuperset(cells) for cells in zip(*(row["cells"] for row in rows), strict=True)]
    for row in rows:
        row["cells"] = [*compress(row["cells"], known)]
    return [*compress(columns, [True, *known])], [*splits]


def _cells(split: Summary) -> list[tuple[str, str]]:
    """(value, what stands below it) for each of ``_COLUMNS`` but the first."""
    solved, tokens, seconds = success(split), split["tokens"], split["seconds"]["median"]

    def mean(key: str) -> tuple[str, str]:
        return number(split[key]["mean"] if split.get(key) else None), ""

    scales, malformed = (split.get("normalised"), split.get("above_blind")), split.get("malformed")
    left = [f"{split['excluded']:,} excluded", *[f"{split['missing']:,} missing"] * bool(split["missing"])]
    met = [f"{seen(split)} levels seen in training"] * bool(split.get("seen"))
    return [
        (percent(solved["rate"]), ", ".join([*filter(None, [_interval(solved)]), *met])),
        (f"{solved['n']} of {split['asked']}", ", ".join(left)),
        (bounds(split), ""),
        *((number(scale["value"] if scale else None), "") for scale in scales),
        mean("return"),
        mean("regret"),
        (percent(malformed["rate"] if malformed else None), ""),
        (number(split["turns"], 1), ""),
        (f"{tokens['prompt']:,} + {tokens['completion']:,}" if tokens else number(None), ""),
        (number(seconds, 2) if seconds is None or seconds >= 0.005 else "0", ""),
    ]


def _interval(estimate: Summary | None) -> str:
    return "" if estimate is None else f"{100 * estimate['low']:.1f} to {100 * estimate['high']:.1f}"


def _pair(comparison: Summary) -> dict[str, Any]:
    rows = []
    together = {"all": comparison["all"]} if comparison["splits"] else {}
    for name, split in {**comparison["splits"], **together}.items():
        difference = split["difference"]
        known = difference["low"] is not None
        ends = f"{100 * difference['low']:+z.1f} to {100 * difference['high']:+z.1f}" if known else ""
        rows.append(
            {
                "split": name,
                "first": percent(split["first"]),
                "second": percent(split["second"]),
                "value": f"{100 * difference['value']:+z.1f}".replace("-", "\N{MINUS SIGN}"),
                "interval": ends.replace("-", "\N{MINUS SIGN}"),
                "sentence": split["sentence"],
            }
        )
    return {"first": comparison["first"], "second": comparison["second"], "rows": rows}
