"""A run in the terminal: how far it is, its rates, its figures as sparklines, its alarms, and its last episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ragen_agent.report.curves import MAIN
from ragen_agent.report.tail import FINISHED, WAITING, RunStatus
from ragen_agent.training.alarm import FOLLOWS, sign_label
from ragen_agent.training.metrics import format_metric, is_share, metric_label, smooth
from ragen_agent.training.run_folder import runs_below
from ragen_gym.core.text import without_controls

__all__ = ["bar", "dashboard", "sparkline"]

#: Figures that are shown, as far as the run has them.
FIGURES = (*MAIN, "tokens_per_s")
RATES = ("random", "before", "after", "more_imitation", "optimal")

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 110  # columns from which the episode is shown next to the figures
TIMEOUTS = {"reinforcement": 120.0}  # seconds without a write after which a run may have been stopped
TIMEOUT = 900.0  # the same for the other phases, which write nothing before their end
WINDOW = 5  # iterations whose mean success is called that of now


def dashboard(status: RunStatus, width: int = 100) -> RenderableType:
    """The state of the run, for a terminal of so many columns."""
    if status.config is None:
        below = runs_below(status.path)
        hint = f" But {below}." if below else ""
        return Panel(Text(f"There is no run in {status.path} yet.{hint}"), title=WAITING, title_align="left")
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
    over = status.phase == FINISHED
    state = Text(status.phase, "green" if over else "cyan")
    if not over and status.quiet > max(TIMEOUTS.get(status.phase, TIMEOUT), 10 * (status.seconds or 0.0)):
        state = Text(f"{status.phase}; no write for {_span(status.quiet)}: it may have been stopped", "yellow")
    if "stopped" in status.summary:
        state.append(f"\n{status.summary['stopped']}", "yellow")
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(justify="right")
    parts = [f"{done}/{training.iterations} iterations"]
    if status.seconds is not None and not over:
        parts.append(f"{status.seconds:.1f} s each")
    if status.left:
        parts.append(f"{_span(status.left)} left")
    if over and "wall_s" in status.summary:
        parts.append(f"took {_span(status.summary['wall_s'])}")
    line.add_row(title, state)
    line.add_row(ProgressBar(training.iterations, done, width=max(10, width - 56)), Text(" · ".join(parts)))
    return Panel(line)


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
        subtitle="yellow: random play, green: optimal play",
        subtitle_align="left",
    )


def _figures(status: RunStatus, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    have = [name for name in FIGURES if any(name in record for record in status.metrics)]
    have = [name for name in have if name != "reply_tokens" or "response_tokens" not in have]
    for name in have:
        series = [float(record[name]) for record in status.metrics if isinstance(record.get(name), int | float)]
        ends = (0.0, 1.0) if is_share(name) else (None, None)
        smoothed = smooth(series)
        table.add_row(
            Text(metric_label(name).partition(" (")[0]),
            Text(sparkline(smoothed, max(8, min(60, width - 50)), *ends), "cyan"),
            Text(format_metric(name, smoothed[-1]), "bold", justify="right"),
        )
    content: RenderableType = table if have else Text("no iteration yet", "bright_black")
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
    """The last turn of the last episode: what was asked, what was answered, and what came of it."""
    episode = status.episode
    if episode is None:
        return None
    messages: Sequence[Mapping[str, Any]] = episode["messages"]
    asked = [m["content"] for m in messages if m["role"] == "user"]
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    text = Text()
    if replies:
        text.append(without_controls(asked[min(len(replies), len(asked)) - 1]) + "\n", "bright_black")
        text.append(without_controls(replies[-1]) + "\n", "bold")
    outcome, style = (
        ("not counted", "yellow")
        if episode["failure"]
        else ("solved", "green")
        if episode["success"]
        else ("not solved", "red")
    )
    text.append(outcome, style)
    text.append(f", return {sum(episode['turn_rewards']):g}, turn {len(episode['turn_ends'])}")
    where = (
        f"iteration {episode['iteration'] + 1}" if "iteration" in episode else str(episode["phase"]).replace("_", " ")
    )
    return Panel(text, title=f"last episode, {where}", title_align="left")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
