"""One HTML page of one or more runs of a suite: scores, plots, and the viewer of their episodes.

The page is one file that needs no network: styles, scripts and episodes lie in it, and its content security policy
lets nothing else run, whatever a reply says.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ragen_gym import __version__
from ragen_gym.bench.baselines import OracleEpisode, oracle_episodes
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report import plots
from ragen_gym.bench.report import summary_tables as overview
from ragen_gym.bench.report.payload import Archive, Entry, pack, packed
from ragen_gym.bench.report.sprites import look
from ragen_gym.bench.report.viewer_data import details, heading
from ragen_gym.bench.run import Run

try:
    import jinja2
    from markupsafe import Markup as safe
except ImportError as error:
    raise ImportError("reports need jinja2: run `pip install 'ragen-gym[bench]'`.") from error

__all__ = ["TEMPLATES", "VIEWER_SCRIPTS", "VIEWER_STYLES", "page", "policy_hash", "source"]

TEMPLATES = Path(__file__).with_name("templates")

#: What the viewer is made of, in order; a page of another kind brings its own script, which calls `new Viewer`.
VIEWER_STYLES = ("base.css", "viewer.css")
VIEWER_SCRIPTS = ("board.js", "transcript.js", "panes.js", "viewer.js")

FILTERS = [
    {"label": "All"},
    {"label": "Solved", "tag": "solved"},
    {"label": "Failed", "tag": "failed"},
    {"label": "Malformed", "tag": "malformed"},
    {"label": "Longest over optimal", "tag": "detour", "order": "over"},
    {"label": "Errors", "tag": "error"},
]


def source(*names: str) -> str:
    """Files of ``templates/``, one after the other."""
    return "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def page(
    runs: Sequence[Run],
    summaries: Sequence[dict[str, Any]],
    comparisons: Sequence[dict[str, Any]],
    *,
    megabytes: float = 20.0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> str:
    """The page.

    Args:
        runs: of one suite, with different names; see `load_runs`.
        summaries: the score of each.
        comparisons: as `ragen_gym.bench.compare.compare` makes them.
        megabytes: the most that the episodes may take in the page. If they take more, it holds those of the first
            instances of every split, of all agents alike, and says so.
        progress: is told how many of the episodes are drawn.
    """
    suite = runs[0].suite
    archive = _archive(runs, megabytes, progress)
    total = sum(len(run.records) for run in runs)
    style, script = source(*VIEWER_STYLES, "page.css"), source(*VIEWER_SCRIPTS, "report.js")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("report.html").render(
        suite=suite,
        style=safe(style),
        style_hash=policy_hash(style),
        script=safe(script),
        script_hash=policy_hash(script),
        sprites=safe(source("tiles.svg")),
        index=safe(packed(_index(runs, archive))),
        blocks=[safe(block) for block in archive.blocks],
        shown=_shown(len(archive.headings), total, megabytes),
        strips=plots.strips(summaries, overview.split_names(suite, summaries)),
        published=any(split.published for split in suite.splits),
        ladders=plots.ladders(summaries),
        colophon=[
            f"ragen-gym {__version__}. Suite {suite.name}, content hash {suite.hash}.",
            *(f"{run.agent}: {run.path.name}, {len(run.records):,} episodes." for run in runs),
        ],
        **overview.context(suite, summaries, comparisons),
    )


def _archive(runs: Sequence[Run], megabytes: float, progress: Callable[[int, int], None]) -> Archive:
    """Instance by instance, so that a page that holds only some shows the same ones of all agents and splits."""
    suite = runs[0].suite
    order = {split.name: place for place, split in enumerate(suite.splits)}
    replayers = {split.name: Replayer(split) for split in suite.splits}
    groups: dict[tuple[int, int], list[tuple[int, int, EpisodeRecord, str]]] = {}
    for place, run in enumerate(runs):
        for record in run.records:
            if record.split in order and 0 <= record.index < len(replayers[record.split].split.levels):
                member = (order[record.split], place, record, run.agent)
                groups.setdefault((record.index, record.rollout), []).append(member)
    total, done, taken = sum(map(len, groups.values())), 0, set[str]()
    # Asked for once: every call of `oracle_episodes` makes an environment.
    asked = {(record.split, record.rollout) for members in groups.values() for *_, record, _ in members}
    oracles = {(name, rollout): oracle_episodes(suite, replayers[name].split, rollout) for name, rollout in asked}

    def entries() -> Iterator[list[Entry]]:
        nonlocal done
        for key in sorted(groups):
            members = sorted(groups[key], key=lambda member: member[:2])
            yield [
                _entry(
                    replayers[record.split], record, agent, oracles[record.split, record.rollout][record.index], taken
                )
                for *_, record, agent in members
            ]
            done += len(members)
            progress(done, total)

    return pack(entries(), megabytes)


def _entry(replayer: Replayer, record: EpisodeRecord, agent: str, oracle: OracleEpisode, taken: set[str]) -> Entry:
    moves = f"{oracle.moves} move{'s' * (oracle.moves != 1)}"
    optimal = f"the oracle solves it in {moves}" if oracle.success else "the oracle does not solve it"
    # With the same luck; what a solved episode took beyond the oracle's moves.
    over = sum(len(turn.actions) for turn in record.turns) - oracle.moves if record.success and oracle.success else None
    length = 10
    while record.key[:length] in taken and length < len(record.key):
        length += 1
    name = record.key[:length] if record.key[:length] not in taken else f"{record.key}-{len(taken)}"
    taken.add(name)
    return Entry(heading(record, agent, over, name), lambda: details(replayer, record, optimal))


def _index(runs: Sequence[Run], archive: Archive) -> dict[str, Any]:
    """All that the viewer needs at once."""
    suite = runs[0].suite
    kinds = {tag for heading in archive.headings for tag in heading["tags"]}
    return {
        "looks": {split.name: look(split.make_env().env) for split in suite.splits},
        "systems": {split.name: split.make_env().instructions for split in suite.splits},
        "fields": [{"field": "agent", "label": "agent"}, {"field": "split", "label": "split"}],
        "filters": [kind for kind in FILTERS if kind.get("tag") != "error" or "error" in kinds],
        "beside": "agent",
        "episodes": archive.headings,
    }


def _shown(shown: int, total: int, megabytes: float) -> str:
    if shown == total:
        return f"All {total:,} episodes, replayed from their records."
    return (
        f"{shown:,} of {total:,} episodes, replayed from their records: those of the first instances of every split, "
        f"so that they take less than {megabytes:g} MB (--megabytes). The numbers above are of all episodes."
    )


def policy_hash(text: str) -> str:
    """The hash by which a content security policy lets an inline script or style pass."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
