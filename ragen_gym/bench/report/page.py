"""One HTML page of one or more runs of a suite: scores, plots, and the viewer of their episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ragen_gym import __version__
from ragen_gym.bench.baselines import oracle_episodes
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report import plots, summary_tables
from ragen_gym.bench.report.html_page import Archive, Entry, EpisodeViewer, pack, render_page
from ragen_gym.bench.report.viewer_data import board_style, details, heading
from ragen_gym.bench.results import BenchResults
from ragen_gym.envs.policies import PlayedEpisode

__all__ = ["page"]

_FILTERS = [
    {"label": "All"},
    {"label": "Solved", "tag": "solved"},
    {"label": "Failed", "tag": "failed"},
    {"label": "Malformed", "tag": "malformed"},
    {"label": "Most moves over optimal", "tag": "detour", "order": "over"},
    {"label": "Errors", "tag": "error"},
]


def page(
    runs: Sequence[BenchResults],
    summaries: Sequence[dict[str, Any]],
    comparisons: Sequence[dict[str, Any]],
    *,
    megabytes: float = 20.0,
    progress: Callable[[int], None] = lambda done: None,
) -> str:
    """The page.

    Args:
        runs: of one suite, with different names; see `load_several`.
        summaries: the score of each.
        comparisons: as `ragen_gym.bench.compare.compare` makes them.
        megabytes: the most that the episodes may take in the page. If they take more, it holds those of the first
            instances of every split, of all agents alike, and says so.
        progress: called with how many of the episodes are drawn.
    """
    suite = runs[0].suite
    archive = _archive(runs, megabytes, progress)
    total = sum(len(run.records) for run in runs)
    return render_page(
        "report.html",
        EpisodeViewer(_index(runs, archive), archive.blocks, _note(len(archive.headings), total, megabytes)),
        kind="Benchmark report",
        title=suite.name,
        lede=suite.about,
        strips=plots.strips(summaries, summary_tables.split_names(suite, summaries)),
        published=any(split.published for split in suite.splits),
        ladders=plots.ladders(summaries),
        colophon=[
            f"ragen-gym {__version__}. Suite {suite.name}, content hash {suite.hash}.",
            *(f"{run.agent}: {run.path.name}, {len(run.records):,} episodes." for run in runs),
        ],
        **summary_tables.context(suite, summaries, comparisons),
    )


def _archive(runs: Sequence[BenchResults], megabytes: float, progress: Callable[[int], None]) -> Archive:
    """Instance by instance, so that a page that holds only some shows the same ones of all agents and splits."""
    suite = runs[0].suite
    order = {split.name: place for place, split in enumerate(suite.splits)}
    replayers = {split.name: Replayer(split) for split in suite.splits}
    groups: dict[tuple[int, int], list[tuple[int, int, EpisodeRecord, str]]] = {}
    for place, run in enumerate(runs):
        for record in run.records:
            if record.split in order and 0 <= record.index < len(replayers[record.split].split.levels):
                episode = (order[record.split], place, record, run.agent)
                groups.setdefault((record.index, record.rollout), []).append(episode)
    done, taken = 0, set[str]()
    # Looked up once: every call of `oracle_episodes` makes an environment.
    wanted = {(record.split, record.rollout) for group in groups.values() for *_, record, _ in group}
    oracles = {(name, rollout): oracle_episodes(suite, replayers[name].split, rollout) for name, rollout in wanted}

    def entries() -> Iterator[list[Entry]]:
        nonlocal done
        for key in sorted(groups):
            group = sorted(groups[key], key=lambda episode: episode[:2])
            yield [
                _entry(
                    replayers[record.split], record, agent, oracles[record.split, record.rollout][record.index], taken
                )
                for *_, record, agent in group
            ]
            done += len(group)
            progress(done)

    return pack(entries(), megabytes)


def _entry(replayer: Replayer, record: EpisodeRecord, agent: str, oracle: PlayedEpisode, taken: set[str]) -> Entry:
    best = len(oracle.actions)
    moves = f"{best} move{'s' * (best != 1)}"
    optimal = f"the oracle solves it in {moves}" if oracle.success else "the oracle does not solve it"
    # With the same noise: the moves of a solved episode beyond the oracle's.
    over = record.moves - best if record.success and oracle.success else None
    length = 10
    while record.key[:length] in taken and length < len(record.key):
        length += 1
    name = record.key[:length] if record.key[:length] not in taken else f"{record.key}-{len(taken)}"
    taken.add(name)
    return Entry(heading(record, agent, over, name), lambda: details(replayer, record, optimal))


def _index(runs: Sequence[BenchResults], archive: Archive) -> dict[str, Any]:
    """What the viewer needs before an episode is opened."""
    envs = {split.name: split.make_env() for split in runs[0].suite.splits}
    kinds = {tag for heading in archive.headings for tag in heading["tags"]}
    return {
        "board_styles": {name: board_style(env.env) for name, env in envs.items()},
        "systems": {name: env.instructions for name, env in envs.items()},
        "fields": [{"field": "agent", "label": "agent"}, {"field": "split", "label": "split"}],
        "filters": [kind for kind in _FILTERS if kind.get("tag") != "error" or "error" in kinds],
        "compare_by": "agent",
        "episodes": archive.headings,
    }


def _note(shown: int, total: int, megabytes: float) -> str:
    if shown == total:
        return f"All {total:,} episodes, replayed from their records."
    return (
        f"{shown:,} of {total:,} episodes, replayed from their records: those of the first instances of every split, "
        f"so that they take less than {megabytes:g} MB (--megabytes). The numbers above are of all episodes."
    )
