"""Console output of a run: progress, then a table, two transcripts and a curve; plain lines without a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ragen_agent.config import Config, Evaluation
from ragen_agent.config.consent import effects
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import all_settings
from ragen_agent.update.metrics import METRICS
from ragen_gym.core.command_line import shell_word
from ragen_gym.core.console import SECONDS_A_LINE, ProgressBar, rich_console
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import atomic_path, read_json_lines
from ragen_gym.envs.messages import plain_text
from ragen_gym.games.registry import find, own_module, task_of

#: The rows of the final table by their key in ``summary.json``, and their meanings.
ROWS = {
    "model": "the model",
    "before": "the policy before reinforcement",
    "after": "the policy after reinforcement",
    "random": "random replies: moves drawn uniformly",
    "blind": "a script that goes for the goal and ignores what is in the way",
    "optimal": "the oracle",
    "demonstrator": "what the policy imitated before reinforcement",
    "more_imitation": "before + more imitation, at the cost of the reinforcement",
    "clean_warm_start": "imitation of a faultless demonstrator, at the cost of the warm start",
}

#: Units of phases that do not count "steps of" the phase.
COUNTED = {
    "reinforcement": "iterations of reinforcement",
    "demonstrations": "demonstrations",
    "conversations": "conversations",
    "evaluation": "levels of the evaluation",
}

#: Rates drawn as lines in the curve, and their colours.
LINES = {"optimal": "tab:green", "demonstrator": "tab:purple", "blind": "tab:orange", "random": "tab:gray"}

#: Seconds between two lines without a terminal, by phase: each iteration of reinforcement has one, a short phase none.
SECONDS = {"reinforcement": 0.0, "evaluation": 2.0}


class Display:
    """Progress of the current phase, lines of text and tables, on a rich console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console: Console = console or rich_console()
        self._bar: ProgressBar

    @contextmanager
    def progress(self, phase: str, total: int, done: int = 0) -> Iterator[None]:
        """Shows the progress of a phase of ``total`` steps."""
        what, seconds = COUNTED.get(phase, f"steps of {phase}"), SECONDS.get(phase, SECONDS_A_LINE)
        transient = phase == "evaluation"
        bar = ProgressBar(what, total, done=done, seconds=seconds, console=self.console, transient=transient)
        with bar as self._bar:
            yield

    def update(self, done: int) -> None:
        """So many steps are done."""
        self._bar.update(done)

    def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
        """Advances by ``steps`` steps; ``record`` holds their figures."""
        figures = [(metric, record[name]) for name, metric in METRICS.items() if name in record]
        shown = [(metric.progress, value) for metric, value in figures if value or not metric.rare]
        self._bar.advance(steps, "  ".join(form.format(value) for form, value in shown if form))

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows ``text`` during work without a count: beside a spinner on a terminal, else as a line."""
        if not self.console.is_terminal:
            self.say(f"{text} ...")
        with self.console.status(escape(text)):  # drawn on terminals only
            yield

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, emoji=False, soft_wrap=True)

    def rate(self, name: str, value: Any) -> None:
        """A rate was measured."""
        if name in ROWS:
            self.say(f"{_row_name(name)}: {Rate.from_dict(value)}")

    def rates(self, config: Config, summary: Mapping[str, Any]) -> None:
        """Prints a table of the measured rates for each game."""
        for game, rates in {config.game: summary, **summary.get("games", {})}.items():
            self.console.print(rates_table(game, config.evaluation, rates))

    def report(self, config: Config, summary: Mapping[str, Any], folder: RunFolder) -> None:
        """Prints the table, a success and a failure, and the places of the files."""
        self.rates(config, summary)
        episodes = [episode for episode in read_json_lines(folder.episodes) if episode["phase"] == "after"]
        means = "" if task_of(config.game) else find(config.game).game_class.success_means
        solved = f"A success: {means}" if means else "A success"
        for success, title in ((True, solved), (False, "A failure")):
            found = [episode for episode in episodes if episode["success"] is success and episode["failure"] is None]
            if found:
                self._transcript(title, max(found, key=lambda episode: len(episode["turn_ends"])))
        memory = f", {summary['memory_gib']:.1f} GiB of memory" if "memory_gib" in summary else ""
        if "gpu" in summary:
            memory += f", {summary['gpu_memory_gib']:.1f} GiB of the GPU's ({summary['gpu']})"
        self.say(
            f"\nIn {folder.path}: summary.json, curve.png, metrics.jsonl, episodes.jsonl, config.toml, checkpoint/"
            f"\nMeasure again: ragen-agent eval {shell_word(folder.path)} --split {config.evaluation.split}"
            f"{run_code_flag(config)}"
            f"\nTook {summary['wall_s']:.0f} s{memory}."
        )

    def _transcript(self, title: str, episode: Mapping[str, Any]) -> None:
        about = f" (level {episode['level_id']}, return {sum(episode['turn_rewards']):g})"
        self.console.print(Text.assemble("\n", (title, "bold"), about))
        for message in episode["messages"]:
            if message["role"] != "system":
                mark = "> " if message["role"] == "assistant" else "  "
                self.say("\n".join(mark + line for line in plain_text(message["content"]).split("\n")))


def rates_table(game: str, evaluation: Evaluation, rates: Mapping[str, Any]) -> Table:
    """The measured rates with their intervals."""
    levels = f"{evaluation.levels} fixed {evaluation.split} levels, temperature {evaluation.temperature:g}"
    table = Table(title=Text(f"{game}: success on {levels}"), title_justify="left", caption_justify="left")
    if evaluation.split == "train":
        table.caption = "Measured on the training split: training draws from the same levels."
    for name in ("policy", "success", "95 % interval", "what it is"):
        table.add_column(name, justify="right" if name == "success" else "left", no_wrap=name != "what it is")
    for row, meaning in ROWS.items():
        if row in rates:
            rate = Rate.from_dict(rates[row])
            table.add_row(
                _row_name(row),
                f"{100 * rate.rate:.1f} %",
                f"{100 * rate.low:.1f} to {100 * rate.high:.1f}",
                meaning + episode_counts(rate.failed, rate.overflowed),
                style="bold" if row == "after" else "",
            )
    return table


def episode_counts(failed: int, overflowed: int) -> str:
    """Suffix of a rate's meaning if episodes failed or were cut."""
    left_out = f" ({failed} failed episodes left out)" if failed else ""
    return left_out + (f" ({overflowed} episodes cut at turns.max_tokens_per_episode)" if overflowed else "")


def _row_name(row: str) -> str:
    return {"random": "random replies", "blind": "blind script"}.get(row, row.replace("_", " "))


def run_code_flag(config: Config, trainer: OpenRLHF | None = None) -> str:
    """The consent flag, after a space, that a command needs for this run; empty if none.

    ``trainer`` are the settings of the distributed trainer, if it trains the run.
    """
    games = any(own_module(each.game) for each in all_settings(config))
    distributed = () if trainer is None else effects(trainer, table="openrlhf")
    return " --run-code" if games or any(effects(config)) or any(distributed) else ""


def measured_on(split: str) -> str:
    """The levels behind the rates at the ends."""
    return "fixed levels of the training split" if split == "train" else f"held-out {split} levels"


def plot_curve(metrics: Sequence[Mapping[str, Any]], rates: Mapping[str, Any], path: Path, config: Config) -> None:
    """Success in training by iteration, the measured rates at its ends, and the baselines as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    successes = [record["success"] for record in metrics]
    iterations = np.arange(1, len(successes) + 1)
    axes.plot(iterations, successes, color="tab:blue", alpha=0.3, linewidth=1, label="training levels, each iteration")
    width = min(9, len(successes))
    if width > 1:
        smooth = np.convolve(successes, np.full(width, 1 / width), mode="valid")
        axes.plot(iterations[width - 1 :], smooth, color="tab:blue", label=f"mean of {width} iterations")
    for row, place in (("before", 0), ("after", len(successes))):
        if row in rates:
            rate = rates[row]
            error = [[rate["rate"] - rate["low"]], [rate["high"] - rate["rate"]]]
            label = (
                f"{measured_on(config.evaluation.split)}, 95 % interval (temperature {config.evaluation.temperature:g})"
                if row == "after"
                else None
            )
            axes.errorbar([place], [rate["rate"]], error, fmt="o", color="tab:red", capsize=4, label=label)
    for row, color in LINES.items():
        if row in rates:
            axes.axhline(
                rates[row]["rate"], color=color, linestyle="--", label=f"{row} {100 * rates[row]['rate']:.0f} %"
            )
    name = config.training.algo.upper().replace("_", " ")
    axes.set(
        xlabel="iteration",
        ylabel="success",
        ylim=(-0.02, 1.04),
        title=f"{config.game}, {'StarPO-S' if config.training.starpo_s else 'StarPO'} ({name}), seed {config.seed}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
