"""Effect of thoughts on answers before and after reinforcement: ``python -m benchmarks.thoughts``.

The small model learns FrozenLake by the default run: imitation of demonstrations whose thoughts name the direction of
the goal, then reinforcement by the outcome alone. A copy imitates further instead, at the same cost. Each of the three
models plays the test levels, and its thoughts are replaced as by ``ragen-agent thoughts``. Records are kept in
``thoughts.jsonl``, one for each seed and model; a command that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import machine, markdown_table, page_parser, read_records
from benchmarks.experiments.plots import COLOURS
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.exact.thoughts import check_thoughts, measure, played_turns, summary
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.local.run import TrainingRun
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import IMITATION, RunFolder
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_gym.core.console import rich_console
from ragen_gym.core.stats import CONFIDENCE, Estimate, mean_interval
from ragen_gym.core.storage import append_json_lines, write_atomic

GAME = "FrozenLake"
MODELS = ("imitation", "reinforcement", "more imitation")
SEEDS = (0, 1, 2)
BY_LEVEL = ("follows", "gain", "true")
"""Of a level's turns: first moves as the opposite of the true thought says, after it less after the model's own;
success after the true thought less after its own; and the share of true statements in its first thought."""
#: Bars of the figure and rows of the table: what is shown, the row of thoughts, the measure.
SHOWN = (
    ("statements of its own thoughts that are true", "own", "true_statements"),
    ("first move as the true thought says, after its own thought", "own", "board"),
    ("first move as the true thought says, after the true thought", "true", "board"),
    ("first move as the true thought says, after no thought", "empty", "board"),
    ("first move as the true thought says, after its opposite", "false", "board"),
    ("first move as the opposite says, after the opposite", "false", "thought"),
    ("first move as the opposite says, after its own thought", "false", "before"),
    ("first move as only another level's thought says, after that", "other", "thought"),
    ("first move as only another level's thought says, after its own", "other", "before"),
    ("change of the first move by: the opposite of the true thought", "false", "first"),
    ("change by: parts of its own thought swapped", "reworded", "first"),
    ("change by: its own thought sampled again", "again", "first"),
    ("change by: the board turned, its own thought kept", "turned", "first"),
    ("reply wins, after its own thought", "own", "success"),
    ("reply wins, after the true thought", "true", "success"),
    ("reply wins, after no thought", "empty", "success"),
    ("reply wins, after the opposite of the true thought", "false", "success"),
)
DRAWN = (0, 1, 3, 5)
#: Rows of the table of differences: the measure of ``BY_LEVEL``, the model, and the one that is subtracted.
COMPARED = (
    ("first moves as the opposite says, after it less before: imitation", "follows", 0, None),
    ("the same: reinforcement", "follows", 1, None),
    ("true statements: reinforcement less imitation", "true", 1, 0),
    ("true statements: reinforcement less more imitation", "true", 1, 2),
    ("reply wins, after the true thought less after its own: reinforcement", "gain", 1, None),
)

PAGE = """\
# Do thoughts cause moves?

Written by `python -m benchmarks.thoughts`. The small model writes the direction of the goal as its thought, `up left`,
and then its moves. [`ragen-agent thoughts`](../docs/guides/exact_values.md#replace-the-thoughts) replaces the thought
and computes the answers that follow: does the first move go where the board says, or where the thought says?

![thoughts.png](thoughts.png)

Figure 1. Mean over {seeds} seeds of training; points are seeds. Dashed: uniformly random first moves
that go as the true thought says, {random} %; as many directions named at random are true.

{rows}

± is half of the 95 % interval over levels; where all statements are true it says nothing of other levels. *Change* is
the total variation from the first moves after its own thought. A reply wins if the goal is reached within it; imitated
replies mostly name one move. On the same turns, in replies as long:

{references}

## What it shows

{claims}

Points, with intervals over levels, each of the same weight, that hold together with 95 % (Bonferroni, {tests}
comparisons). All are paired within turns, or by level: statements are compared in the first turn, where all models see
the same board.

- **Moves follow the thought, before and after reinforcement.** First moves go as the opposite thought says far more
  often after it than after the model's own thought.
- **Fewer thoughts are true after reinforcement**, which rewarded the outcome alone. More imitation at the same cost did
  not do this.
- **Replies win more often after the true thought**: surely so in {surer} of {seeds} seeds. Seed by seed the gain is
  {gains} points where each level weighs the same, as in the table, and {by_turn} where each turn does.
- **Truth and effect are two questions.** These thoughts still cause the first move while fewer of them are true.

## What cannot be concluded

- One model of {parameters:,} parameters, one game ({levels} test levels of FrozenLake 4x4 without slip), {seeds} seeds.
  The thoughts are words of a fixed template, and the demonstrations' moves agree with them. A pretrained model's free
  thoughts may differ.
- Part of an effect may be the wording's alone. The model's own thought with its parts swapped (`left up` for `up left`)
  states the same facts, but changes {swapped} % of first moves after
  reinforcement. The model has hardly read such wordings.
- The first move is not the answer. Total variation of whole answers is in `thoughts.jsonl`.
- Each model reached its turns itself ({turns} in all), so after the first turn the boards differ between models.

Thoughts and answers are at the temperature of evaluation, {temperature:g}. Thoughts are sampled, once a turn. Answers
are summed over; what was left out moves no cell by more than {width:.2f} points. Machine: {machine}.
"""


def config_of(seed: int, changes: Settings | None = None) -> Config:
    """The settings of a run."""
    return with_settings(Config(game=GAME, seed=seed), merged(default_settings(GAME), changes or {}))


def trained(config: Config, folder: Path) -> dict[str, Path]:
    """Checkpoints of a run by ``MODELS``; trained if missing."""
    found = dict(zip(MODELS, (folder / "warm", folder / "checkpoint", folder / "imitation"), strict=True))
    if not all(each.is_dir() for each in found.values()):
        run_folder = RunFolder(folder) if folder.exists() else RunFolder.create(folder, config)
        run = TrainingRun(config, run_folder, Display(rich_console(stderr=True)))
        run.warm_start()
        run.reinforce()
        run.write_summary()
        policy, spent = Policy.build(config, run_folder.warm), int(run.summary["spent_tokens"])
        rows = run.demonstrations or generate_demonstrations(config, policy, config.demonstrations, run.display)
        imitate(config, policy, rows, MODELS[2], run.display, tokens=spent, stream=1, run=run_folder)
        save_checkpoint(policy.model, policy.tokenizer, found[MODELS[2]])
        run_folder.drop_state(IMITATION)
    return found


def measured(config: Config, checkpoint: Path) -> dict[str, Any]:
    """The summary of a checkpoint's thoughts, and ``BY_LEVEL``."""
    policy = Policy.build(config, checkpoint)
    found, instances = evaluated_levels(config)
    env = check_thoughts(found, config)
    reader = TreeReader(policy.model, len(policy.tokenizer), config.evaluation.temperature)
    turns, _ = played_turns(policy, env, instances, 0)
    records = [record for some in measure(reader, policy, env, turns) for record in some]
    by_level = {level: _of_level([*some]) for level, some in groupby(records, key=lambda each: each["level_id"])}
    facts = {"parameters": policy.model.num_parameters(), "temperature": config.evaluation.temperature}
    return {**facts, "machine": machine("torch"), "by_level": by_level, **summary(records)}


def _of_level(records: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """``BY_LEVEL`` of the turns of a level; None where there is none."""
    rows = [each["rows"] for each in records]
    follows = [
        np.mean(r["false"]["thought"]) - np.mean(r["false"]["before"])
        for r in rows
        if r.get("false", {}).get("thought")
    ]
    gain = [np.mean(r["true"]["success"]) - np.mean(r["own"]["success"]) for r in rows]
    true = [each for r in records if r["turn"] == 1 for each in r["statements"].values()]
    return [round(float(np.mean(each)), 5) if each else None for each in (follows, gain, true)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and measure what is missing, and write the page."""
    parser = page_parser("thoughts", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/thoughts"), metavar="DIR", help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS], metavar="N", help="default 0 1 2")
    parser.add_argument("--quick", action="store_true", help="a check in a minute: short trainings, 16 levels")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    path, runs, changes = options.out / "thoughts.jsonl", options.runs, Settings()
    if options.quick:
        runs = runs / "quick"
        changes = {"demonstrations": {"episodes": 500}, "training": {"iterations": 1}, "evaluation": {"levels": 16}}
    done = {(each["seed"], each["model"]) for each in read_records(path)}
    for seed in (seed for seed in options.seeds if not all((seed, model) in done for model in MODELS)):
        config = config_of(seed, changes)
        for model, checkpoint in trained(config, runs / f"seed-{seed}").items():
            if (seed, model) not in done:
                append_json_lines(path, [{"seed": seed, "model": model, **measured(config, checkpoint)}])
    records = read_records(path)
    _draw(options.out / "thoughts.png", records)
    write_atomic(options.out / "thoughts.md", _page(records))
    return 0


def _figure(record: Mapping[str, Any], row: str, name: str) -> Mapping[str, Any]:
    return record[name] if name in record else record["rows"][row][name]  # type: ignore[no-any-return]


def _values(records: Sequence[Mapping[str, Any]], model: str, row: str, name: str) -> list[float]:
    """A figure of a model in percent, seed by seed."""
    some = [_figure(each, row, name) for each in records if each["model"] == model]
    return [50 * sum(each["bounds"]) for each in some]


def _cell(records: Sequence[Mapping[str, Any]], model: str, row: str, name: str) -> str:
    """The same with half of the interval over levels."""
    ends = [_figure(each, row, name)["interval"] for each in records if each["model"] == model]
    values = _values(records, model, row, name)
    return ", ".join(f"{value:.1f} ±{50 * (high - low):.1f}" for value, (low, high) in zip(values, ends, strict=True))


def _differences(
    by_model: Sequence[Sequence[Mapping[str, Any]]], measure_of: str, of: int, less: int | None
) -> list[Estimate]:
    """A row of ``COMPARED`` over levels, seed by seed, with intervals that hold together with all rows'."""
    place, confidence = BY_LEVEL.index(measure_of), 1 - (1 - CONFIDENCE) / (len(COMPARED) * len(by_model[0]))
    found = []
    for seed, record in enumerate(by_model[of]):
        own = record["by_level"]
        base = dict.fromkeys(own, [0.0] * len(BY_LEVEL)) if less is None else by_model[less][seed]["by_level"]
        both = [(each[place], base[level][place]) for level, each in own.items() if level in base]
        found.append(mean_interval([a - b for a, b in both if None not in (a, b)], confidence))
    return found


def _claims(by_model: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The table of differences."""
    rows = []
    for name, measure_of, of, less in COMPARED:
        found = _differences(by_model, measure_of, of, less)
        rows.append([name, *(f"{100 * each.value:+.1f} ± {100 * each.half_width:.1f}" for each in found)])
    return markdown_table(["difference", *(f"seed {each['seed']}" for each in by_model[0])], rows)


def _page(records: Sequence[Mapping[str, Any]]) -> str:
    by_model = [[each for each in records if each["model"] == model] for model in MODELS]
    columns = [f"after {model}" for model in MODELS]
    rows = [[name, *(_cell(records, m, thoughts, what) for m in MODELS)] for name, thoughts, what in SHOWN]
    references = [
        [name, *(", ".join(f"{100 * r['references'][name]['success']:.1f}" for r in some) for some in by_model)]
        for name in records[0]["references"]
    ]
    ends = [_figure(each, row, what)["bounds"] for each in records for _, row, what in SHOWN]
    gains = _differences(by_model, *COMPARED[-1][1:])
    wins = [_values(records, MODELS[1], row, "success") for row in ("own", "true")]
    return PAGE.format(
        seeds=len(by_model[0]),
        random=f"{_chance(records):.1f}",
        rows=markdown_table(["%, by seed", *columns], rows),
        references=markdown_table(["reply wins, %", *columns], references),
        claims=_claims(by_model),
        surer=sum(each.low > 0 for each in gains),
        gains=", ".join(f"{100 * each.value:+.1f}" for each in gains),
        by_turn=", ".join(f"{true - own:+.1f}" for own, true in zip(*wins, strict=True)),
        tests=len(COMPARED) * len(by_model[0]),
        swapped=_cell(records, MODELS[1], "reworded", "first"),
        turns=f"{sum(each['turns'] for each in records):,}",
        width=max(50 * (high - low) for low, high in ends),
        **{name: records[0][name] for name in ("parameters", "levels", "temperature", "machine")},
    )


def _chance(records: Sequence[Mapping[str, Any]]) -> float:
    """Uniformly random first moves that go as the true thought says, in percent."""
    return float(100 * np.mean([each["references"]["random"]["board"] for each in records]))


def _draw(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes, width = figure.subplots(), 0.8 / len(DRAWN)
    for bar, shown in enumerate(DRAWN):
        name, row, what = SHOWN[shown]
        for at, model in enumerate(MODELS):
            values, x = _values(records, model, row, what), at + (bar - (len(DRAWN) - 1) / 2) * width
            label = name if at == 0 else None
            axes.bar(x, float(np.mean(values)), 0.9 * width, color=COLOURS[bar], label=label, alpha=0.75)
            axes.scatter([x] * len(values), values, s=9, color="black", zorder=3)
    axes.axhline(_chance(records), color="grey", linestyle="--", linewidth=1)
    axes.set(xticks=range(len(MODELS)), ylabel="%", ylim=(0, 101))
    axes.set_xticklabels([f"after {model}" for model in MODELS])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
