"""A run while it goes on: its state, drawn in the terminal or as a live page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ragen_agent.config import Config
from ragen_agent.report.charts import is_number
from ragen_agent.report.run_page import page
from ragen_agent.report.runs import RecordedRun, load_run, read_episode
from ragen_agent.run.alarm import FOLLOWS, Sign, sign_label
from ragen_agent.update.metrics import MAIN, format_metric, is_share, metric_label, smooth
from ragen_gym.bench.report.live import RECENT, waiting_page
from ragen_gym.core.console import span
from ragen_gym.envs.messages import plain_text

WAITING, FINISHED = "waiting for the run", "finished"
FILES = ("config.toml", "summary.json", "metrics.jsonl", "episodes.jsonl")

TAIL = 1 << 20  # bytes from the end of a file in which its last line is looked for
LAST = 10  # iterations whose mean says how long the next ones take
TIMEOUTS = {"reinforcement": 120.0}  # seconds without a write after which a run may have been stopped
TIMEOUT = 900.0  # the same for the other phases, which write nothing before their end

FIGURES = (*MAIN, "tokens_per_s")
RATES = ("random", "blind", "before", "after", "more_imitation", "optimal")

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 110  # columns from which the episode is shown next to the figures
WINDOW = 5  # iterations whose mean success is called that of now


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment of its life."""

    path: Path
    config: Config | None  # None as long as there is none
    summary: Mapping[str, Any]  # summary.json
    metrics: Sequence[Mapping[str, Any]]  # metrics.jsonl, without a torn last line
    signs: Sequence[Sign]  # of the Echo Trap, each where it was first seen
    episode: Mapping[str, Any] | None  # the last of episodes.jsonl
    phase: str  # what it is doing, in words
    quiet: float  # seconds since it last wrote anything

    @property
    def seconds(self) -> float | None:
        """Seconds of an iteration, by the last ones."""
        known = [float(record["seconds"]) for record in self.metrics[-LAST:] if "seconds" in record]
        return fmean(known) if known else None

    @property
    def left(self) -> float | None:
        """Seconds until the last iteration of reinforcement; None where that is not known, or it is over."""
        if self.config is None or self.seconds is None or "after" in self.summary:
            return None
        return self.seconds * max(0, self.config.training.iterations - len(self.metrics))

    @property
    def silent(self) -> bool:
        """True if it has not written for so long that it may have been stopped."""
        longest = max(TIMEOUTS.get(self.phase, TIMEOUT), 10 * (self.seconds or 0.0))
        return self.phase != FINISHED and self.quiet > longest

    @property
    def words(self) -> list[str]:
        """The phase; and of a run that has begun the iterations so far, and the time left or taken."""
        silent = f"; no write for {span(self.quiet)}: it may have been stopped" if self.silent else ""
        words = [f"{self.phase}{silent}"]
        if self.config is not None:
            words.append(f"{len(self.metrics)}/{self.config.training.iterations} iterations")
        if self.left:
            words += [f"{self.seconds:.1f} s each", f"{span(self.left)} left"]
        if self.phase == FINISHED and "wall_s" in self.summary:
            words.append(f"took {span(self.summary['wall_s'])}")
        return words


def read_status(path: Path) -> RunStatus:
    """The state of the run in a folder, which may not be there yet; raises a ValueError where a file is damaged."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give the folder of a run.")
    if not (path / "config.toml").is_file():
        return RunStatus(path, None, {}, [], [], None, WAITING, 0.0)
    run = load_run(path)
    written = max((path / name).stat().st_mtime for name in FILES if (path / name).exists())
    quiet = max(0.0, time.time() - written)
    episode = _last_episode(run.folder.episodes)
    return RunStatus(path, run.config, run.summary, run.metrics, run.signs, episode, _phase(run), quiet)


def _last_episode(path: Path) -> dict[str, Any] | None:
    """The last whole record, read from the end of the file; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - TAIL)
        file.seek(start)
        lines = file.read().split(b"\n")[bool(start) : -1]  # what follows the last line end is not whole
    try:
        return read_episode(lines[-1])[0] if lines else None
    except ValueError as error:
        raise ValueError(f"{path}, its last line, is not an episode: {error}; remove it.") from error


def _phase(run: RecordedRun) -> str:
    config, done = run.config, len(run.metrics)
    if run.finished:
        compares = config.evaluation.imitation and config.warm_start.epochs and run.settings["backend"] == "local"
        return "imitation, for comparison" if compares and "clean_warm_start" not in run.summary else FINISHED
    if done >= config.training.iterations:
        return "measuring"
    if done or "optimal" in run.summary:
        return "reinforcement"
    return "measuring the start" if run.folder.warm.is_dir() else "warm start"


class RunPage:
    """The page of a training run while it goes on.

    Args:
        path: folder of the run, which may not be there yet.
        check: raises a ``ValueError`` where the settings of the run name code that the user has not allowed.
    """

    def __init__(self, path: Path, check: Callable[[Config], None]) -> None:
        self._path, self._check = path, check
        self.files = [path / name for name in FILES]

    def render(self) -> str:
        """The page as it stands."""
        status = read_status(self._path)
        if status.config is None:
            return waiting_page("Training report", self._path)
        self._check(status.config)
        return page([load_run(self._path, self._path.resolve().name)], recent=RECENT, live=" · ".join(status.words))


def dashboard(status: RunStatus, width: int = 100) -> RenderableType:
    """The state of the run, for a terminal of so many columns."""
    if status.config is None:
        return Panel(Text(f"There is no run in {status.path} yet."), title=WAITING, title_align="left")
    inner = width // 2 if width >= WIDE else width
    left: list[RenderableType] = [_rates(status, inner), _figures(status, inner)]
    right = [part for part in (_signs(status), _episode(status)) if part is not None]
    if width < WIDE:
        return Group(_head(status, width), *left, *right)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(Group(*left), Group(*right))
    return Group(_head(status, width), grid)


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """The values as blocks, no more than ``width``: where there are more, each block is the mean of a stretch.

    The lowest block stands for ``low``, or the smallest value, the highest for ``high``, or the largest.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    ends = [round(place * len(values) / count) for place in range(count + 1)]
    means = [fmean(values[first:end]) for first, end in pairwise(ends)]
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    span = high - low
    places = [0.5 if span <= 0 else min(1.0, max(0.0, (mean - low) / span)) for mean in means]
    return "".join(BLOCKS[round(place * (len(BLOCKS) - 1))] for place in places)


def bar(rate: float, random: float | None, optimal: float | None, width: int) -> Text:
    """A rate from 0 to 1 as a bar, with the places of random and optimal play."""
    text = Text()
    marks = {
        round((width - 1) * place): style
        for place, style in ((random, "yellow"), (optimal, "green"))
        if place is not None
    }
    for column in range(width):
        filled = column < round(width * rate)
        if column in marks:
            text.append("┃", marks[column])
        else:
            text.append("━" if filled else "─", "bold cyan" if filled else "bright_black")
    return text


def _head(status: RunStatus, width: int) -> RenderableType:
    config = status.config
    assert config is not None
    training, done = config.training, len(status.metrics)
    preset = "StarPO-S" if training.starpo_s else "StarPO"
    title = Text.assemble(
        (status.path.name, "bold"), f"  {config.game}, {preset} ({training.algo.upper()}), seed {config.seed}"
    )
    phase, *pace = status.words
    state = Text(phase, "yellow" if status.silent else "green" if phase == FINISHED else "cyan")
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(justify="right")
    line.add_row(title, state)
    line.add_row(ProgressBar(training.iterations, done, width=max(10, width - 56)), Text(" · ".join(pace)))
    return Panel(Group(line, Text(status.summary["stopped"], "yellow")) if "stopped" in status.summary else line)


def _rates(status: RunStatus, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    random, optimal = (status.summary.get(row, {}).get("rate") for row in ("random", "optimal"))
    now = [float(record["success"]) for record in status.metrics[-WINDOW:] if "success" in record]
    rows = [(row.replace("_", " "), status.summary[row]) for row in RATES if row in status.summary]
    if now and "after" not in status.summary:
        at = next((place + 1 for place, (row, _) in enumerate(rows) if row == "before"), len(rows))
        rows.insert(at, ("training now", {"rate": fmean(now)}))
    for name, rate in rows:
        ends = f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f}" if "low" in rate else f"last {len(now)}"
        style = "bold" if name in ("after", "training now") else ""
        table.add_row(
            Text(name, style),
            bar(rate["rate"], random, optimal, max(12, min(40, width - 40))),
            Text(f"{100 * rate['rate']:5.1f} %", style),
            Text(ends, "bright_black"),
        )
    content: RenderableType = table if rows else Text("not measured yet", "bright_black")
    return Panel(
        content,
        title="success",
        title_align="left",
        subtitle="yellow: random replies, green: optimal play",
        subtitle_align="left",
    )


def _figures(status: RunStatus, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for name in FIGURES:
        series = [float(record[name]) for record in status.metrics if is_number(record.get(name))]
        if not series:
            continue
        ends = (0.0, 1.0) if is_share(name) else (None, None)
        smoothed = smooth(series)
        table.add_row(
            Text(metric_label(name).partition(" (")[0]),
            Text(sparkline(smoothed, max(8, min(60, width - 50)), *ends), "cyan"),
            Text(format_metric(name, smoothed[-1]), "bold", justify="right"),
        )
    content: RenderableType = table if table.row_count else Text("no iteration yet", "bright_black")
    return Panel(content, title="figures, smoothed", title_align="left")


def _signs(status: RunStatus) -> RenderableType:
    if not status.signs:
        return Panel(Text("none", "green"), title="alarms", title_align="left")
    text = Text()
    for number, sign in enumerate(status.signs):
        text.append("\n" * bool(number))
        text.append(f"iteration {sign.iteration + 1}: {sign_label(sign.name)}", "bold red")
        text.append(f" ({sign.value:.3g}, reference {sign.reference:.3g}). {FOLLOWS[sign.name]}")
    return Panel(text, title="alarms", title_align="left", border_style="red")


def _episode(status: RunStatus) -> RenderableType | None:
    episode = status.episode
    if episode is None:
        return None
    messages: Sequence[Mapping[str, Any]] = episode["messages"]
    asked = [plain_text(m["content"]) for m in messages if m["role"] == "user"]
    replies = [plain_text(m["content"]) for m in messages if m["role"] == "assistant"]
    text = Text()
    if replies:
        text.append(asked[min(len(replies), len(asked)) - 1] + "\n", "bright_black")
        text.append(replies[-1] + "\n", "bold")
    outcome, style = (
        ("not counted", "yellow")
        if episode["failure"]
        else ("solved", "green")
        if episode["success"]
        else ("not solved", "red")
    )
    text.append(outcome, style)
    text.append(f", return {sum(episode['turn_rewards']):zg}, turn {len(episode['turn_ends'])}")
    where = (
        f"iteration {episode['iteration'] + 1}" if "iteration" in episode else str(episode["phase"]).replace("_", " ")
    )
    return Panel(text, title=Text(f"last episode, {where}"), title_align="left")
