"""Runs of the paper's class of model, whole or as far as they came: ``python -m benchmarks.paper_model RUN ...``.

Each RUN is the folder of a ``ragen-agent train --recipe qwen2.5-coder-0.5b-...``. A run that was stopped is measured
after its last saved iteration by ``ragen-agent eval``. Written are ``paper_model.json`` and ``paper_model.md``, of
these runs and of those that the first already holds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from ragen_agent.cli import main as ragen_agent
from ragen_agent.config import Config
from ragen_agent.models.catalogue import NAMED_MODELS
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

#: Figures of an iteration: their columns, and digits after the point.
FIGURES = {
    "success": ("success, %", 1),
    "invalid_rate": ("malformed turns, %", 1),
    "reply_tokens": ("tokens a reply", 1),
    "entropy": ("entropy, nats", 2),
    "return_std": ("return std in groups", 2),
    "grad_norm": ("gradient norm", 2),
    "seconds": ("seconds", 0),
}
SHARES = ("success", "invalid_rate")
BLOCK = 5  # iterations in a line of a curve
RATES = ("random", "blind", "before", "now", "optimal")

PAGE = """\
# The paper's class of model, on a CPU

RAGEN's first paper trains Qwen2.5-0.5B-Instruct by reinforcement alone. Here it is Qwen2.5-Coder-0.5B-Instruct: the
same architecture, size and tokenizer, tuned for code. The messages and the start without imitation are the paper's;
the algorithm, the sizes, the rates and the training by LoRA are not (`ragen-agent train --list-recipes`).
{weights}
{verdict}

{overview}

*Before* and *now* are success on fixed levels at the temperature of evaluation (0.5 by default), with 95 % intervals;
runs without imitation share one start. Bandit's split `test` has 16 different levels, so 256 episodes repeat them: the
interval of *now* is over levels, that of *before* over episodes, which is too narrow. A run that was stopped before its
last iteration shows where it was then, not where it leads. Seconds are by the clock, on a machine that other programs
shared.

{curves}

```sh
ragen-agent train --recipe qwen2.5-coder-0.5b-bandit --out RUN   # Ctrl-C saves; --resume RUN goes on
python -m benchmarks.paper_model RUN                             # writes this page
```

Machines: {machines}.
"""

CURVE = """\
## {title}

{trained}; measured on the split {split}. An iteration plays {groups} levels, {group_size} episodes
each. Means of the rollouts, on the split train and at the temperature of training (1 by default):

{table}
"""
NOT_MEASURED = "No run has come to a measurement after training: nothing here says what reinforcement does."
VERDICT = """\
{start} ({runs}), {malformed} of the turns of the first {block} iterations were malformed, and {malformed_last} of the
turns of the last {block}. Of the well-formed turns {chosen} succeeded at first and {chosen_last} in the end."""
COLUMNS = (
    *("run", "iterations run", "random", "blind script", "before", "now", "optimal"),
    "s an iteration",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the runs as far as they came, and writes the page; returns the exit code."""
    parser = page_parser("paper_model", __doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a run")
    options = parser.parse_args(argv)
    results = read_results(options.out, "paper_model")
    for folder in options.runs:
        run, config = RunFolder.reopen(folder)
        results[_title(config)] = _measured(run, config)
    write_results(options.out, "paper_model", results, _page(results))
    return 0


def _title(config: Config) -> str:
    """A run's name in the tables: all in which two runs of a recipe may differ."""
    warm, steps = config.warm_start, ceil(config.demonstrations.episodes / config.warm_start.batch)
    start = f"{warm.epochs * steps} steps of imitation" if warm.epochs else "no imitation"
    return f"{config.game}, {start}, seed {config.seed}"


def _measured(run: RunFolder, config: Config) -> dict[str, Any]:
    """A run's record; raises SystemExit if its present model cannot be measured."""
    summary, metrics = run.read_summary(), read_json_lines(run.path / "metrics.jsonl")
    found = {key: summary[key] for key in RATES if key in summary}
    done = len(metrics)
    if "after" in summary:
        found["now"] = summary["after"]
    else:
        state = run.load_state()
        if state is not None:
            done = int(state["iteration"])
            found["now"] = _eval(run.path, config, done)
    return found | {
        "done": done,
        "iterations": config.training.iterations,
        "split": config.evaluation.split,
        "weights": Path(config.model).name,
        "trained": f"LoRA of rank {config.lora.rank}" if config.lora.rank else "all weights",
        "groups": config.training.groups,
        "group_size": config.training.group_size,
        "curve": [{name: each.get(name) for name in FIGURES} for each in metrics[:done]],
        "machine": machine("torch", "transformers"),
    }


def _eval(folder: Path, config: Config, done: int) -> dict[str, Any]:
    out = folder / f"eval-{done}"
    if not (out / "summary.json").is_file() and ragen_agent(["eval", str(folder), "--out", str(out)]):
        raise SystemExit(f"{out} is not whole; see above.")
    split = json.loads((out / "summary.json").read_text(encoding="utf-8"))["splits"][config.game]
    return {**split["clustered"], "levels": split["levels"]}


def _page(results: dict[str, Any]) -> str:
    rows = []
    for title, run in results.items():
        pace = f"{statistics.median(each['seconds'] for each in run['curve']):.0f}" if run["curve"] else ""
        done, rates = f"{run['done']} of {run['iterations']}", [_rate(run, name) for name in RATES]
        rows.append([title, done, *rates, pace])
    names = sorted({run["weights"] for run in results.values()} & NAMED_MODELS.keys())
    about = "; ".join(NAMED_MODELS[name].about for name in names)
    return PAGE.format(
        weights=f"\nThe weights are dequantised: {about}.\n" if about else "",
        verdict=_verdict(results),
        overview=markdown_table(COLUMNS, rows),
        curves="\n".join(_curve(title, run) for title, run in results.items()),
        machines="; ".join(dict.fromkeys(run["machine"] for run in results.values())),
    )


def _verdict(results: dict[str, Any]) -> str:
    """Malformed turns and success in training, without imitation and after it; measured runs only."""
    measured = {title: run for title, run in results.items() if "now" in run}
    if not measured:
        return NOT_MEASURED
    said = []
    for untaught, start in ((True, "Without imitation"), (False, "After imitation")):
        runs = [run for title, run in measured.items() if ("no imitation" in title) is untaught]
        if not runs:
            continue
        shares = []
        for part in (slice(BLOCK), slice(-BLOCK, None)):
            blocks = [run["curve"][part] for run in runs]
            malformed = [_mean(block, "invalid_rate") or 0.0 for block in blocks]
            won = [_mean(block, "success") or 0.0 for block in blocks]
            chosen = [share / (1 - bad) for share, bad in zip(won, malformed, strict=True) if bad < 1]
            shares += [_span(malformed), _span(chosen)]
        names = ("malformed", "chosen", "malformed_last", "chosen_last")
        number = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        said.append(VERDICT.format(start=start, runs=number, block=BLOCK, **dict(zip(names, shares, strict=True))))
    above = sum(run["now"]["low"] > run["random"]["rate"] for run in measured.values())
    widest = max((run["now"] for run in measured.values()), key=lambda now: now["high"] - now["low"])
    said.append(
        f"On the levels measured {above} of {len(measured)} runs are surely above random moves; the widest interval is "
        f"{100 * widest['low']:.0f} to {100 * widest['high']:.0f} %, so a gain could hardly be seen."
    )
    return "\n".join(said)


def _span(shares: list[float]) -> str:
    """The least and the largest of some shares, as percentages."""
    return " to ".join(map(str, sorted({round(100 * min(shares)), round(100 * max(shares))}))) + " %"


def _mean(block: list[dict[str, Any]], name: str) -> float | None:
    values = [each[name] for each in block if each[name] is not None]
    return statistics.mean(values) if values else None


def _rate(run: dict[str, Any], name: str) -> str:
    if name not in run:
        return "not yet"
    rate = run[name]
    levels = f", {rate['levels']} levels" if "levels" in rate else ""
    interval = f" ({100 * rate['low']:.1f} to {100 * rate['high']:.1f}) of {rate['n']}{levels}"
    return f"{100 * rate['rate']:.1f}{interval if name in ('before', 'now') else ''}"


def _curve(title: str, run: dict[str, Any]) -> str:
    """The table of a run's iterations, in blocks."""
    rows = []
    for first in range(0, len(run["curve"]), BLOCK):
        block = run["curve"][first : first + BLOCK]
        cells = [f"{first + 1} to {first + len(block)}"]
        for name, (_, digits) in FIGURES.items():
            mean = _mean(block, name)
            cells.append("" if mean is None else f"{mean * (100 if name in SHARES else 1):.{digits}f}")
        rows.append(cells)
    table = markdown_table(["iterations", *(column for column, _ in FIGURES.values())], rows)
    return CURVE.format(
        title=title, table=table, **{key: run[key] for key in ("trained", "split", "groups", "group_size")}
    )


if __name__ == "__main__":
    raise SystemExit(main())
