"""What a run shows: its progress; at its end a table and two transcripts. Plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ragen_agent.config import Config
from ragen_agent.training.metrics import METRICS
from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import read_json_lines

__all__ = ["ROWS", "Display", "rates_table"]

#: The rows of the final table, and what each is.
ROWS = {
    "model": "the model",
    "before": "the agent before reinforcement",
    "after": "the agent after reinforcement",
    "random": "uniformly random actions",
    "optimal": "the oracle",
    "demonstrator": "whom the agent imitated before reinforcement",
    "more_imitation": "before + more imitation, at the cost of the reinforcement",
    "clean_warm_start": "imitation of a faultless demonstrator, at the cost of the warm start",
}


class Display:
    """Progress of the current phase on `console`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._progress: Progress | None = None
        self._task: TaskID = TaskID(0)
        self._phase, self._total, self._done, self._every = "", 0, 0, 1

    def begin(self, phase: str, total: int, done: int = 0) -> None:
        """Starts a phase of `total` steps."""
        self._phase, self._total, self._done = phase, total, done
        # Without a terminal: a line for each iteration of reinforcement, four for any other phase.
        self._every = 1 if phase == "reinforcement" else max(1, total // 4)
        if self.console.is_terminal:
            columns = (
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[info]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(TextColumn("{task.description}"), *columns, console=self.console)
            self._task = self._progress.add_task(phase, total=total, completed=done, info="")
            self._progress.start()

    def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
        """Some steps were done; `record` holds their figures."""
        info = "  ".join(
            metric.progress.format(record[name])
            for name, metric in METRICS.items()
            if metric.progress and name in record
        )
        before, self._done = self._done, self._done + steps
        if self._progress is not None:
            self._progress.update(self._task, advance=steps, info=info)
        elif self._done // self._every > before // self._every:
            self.console.print(f"{self._phase} {self._done}/{self._total}  {info}".rstrip(), soft_wrap=True)

    def end(self) -> None:
        """Ends the phase."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def rate(self, name: str, value: Any) -> None:
        """A rate was measured."""
        if name in ROWS:
            self.say(f"{name}: {Rate.from_dict(value)}")

    def report(self, config: Config, summary: Mapping[str, Any], folder: RunFolder) -> None:
        """The table, a success and a failure, and where the files are."""
        evaluation = config.evaluation
        self.console.print(rates_table(config, summary))
        if config.warm_start.epochs:
            self.say(_limits(config))
        episodes = [episode for episode in read_json_lines(folder.episodes) if episode["phase"] == "after"]
        for success, title in ((True, "A success"), (False, "A failure")):
            found = [episode for episode in episodes if episode["success"] is success and episode["failure"] is None]
            if found:
                self._transcript(title, max(found, key=lambda episode: len(episode["turn_ends"])))
        self.say(
            f"\nIn {folder.path}: summary.json, curve.png, metrics.jsonl, episodes.jsonl, config.toml, checkpoint/"
            f"\nMeasure again: ragen-agent eval {folder.path} --split {evaluation.split}"
            f"\nTook {summary['wall_s']:.0f} s."
        )

    def _transcript(self, title: str, episode: Mapping[str, Any]) -> None:
        self.console.print(
            f"\n[bold]{title}[/bold] (level {episode['level_id']}, return {sum(episode['turn_rewards']):g})"
        )
        for message in episode["messages"]:
            if message["role"] != "system":
                mark = "> " if message["role"] == "assistant" else "  "
                self.say("\n".join(mark + line for line in message["content"].split("\n")))


def rates_table(config: Config, rates: Mapping[str, Any]) -> Table:
    """The measured rates with their intervals."""
    evaluation = config.evaluation
    levels = f"{evaluation.levels} fixed {evaluation.split} levels, temperature {evaluation.temperature:g}"
    table = Table(title=f"{config.game}: success on {levels}", title_justify="left", caption_justify="left")
    if evaluation.split == "train":
        table.caption = "Measured on the training split: training draws from the same levels."
    for name in ("player", "success", "95 % interval", "what it is"):
        table.add_column(name, justify="right" if name == "success" else "left", no_wrap=name != "what it is")
    for row, meaning in ROWS.items():
        if row in rates:
            rate = Rate.from_dict(rates[row])
            interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
            table.add_row(
                row.replace("_", " "),
                f"{100 * rate.rate:.1f} %",
                interval,
                meaning + (f" ({rate.failed} failed episodes left out)" if rate.failed else ""),
                style="bold" if row == "after" else "",
            )
    return table


def _limits(config: Config) -> str:
    how = config.demonstrations
    total = sum(how.moves)
    shares = [f"{100 * chance / total:.0f} % hold {moves}" for moves, chance in enumerate(how.moves, 1) if chance]
    faults = [f"{100 * how.mistakes:.0f} % of its moves are drawn at random"] if how.mistakes else []
    if config.turns.max_actions_per_turn > 1:
        faults.append(f"of its answers {', '.join(shares)} moves, of {config.turns.max_actions_per_turn} allowed")
    return (
        f"What the demonstrator lacks: {'; '.join(faults) or 'nothing'}. "
        "Where the agent does better than its demonstrator, it learned that from reward alone."
    )
