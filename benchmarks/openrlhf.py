"""Both trainers from the same start: ``python -m benchmarks.openrlhf``, in the environment of ``make test-openrlhf``.

The local trainer warm-starts the small model on the default game and trains it; OpenRLHF trains the same warm-started
model with the same settings, levels and seed. Written are ``openrlhf.json``, ``openrlhf.svg`` and ``openrlhf.md``.
A run that exists already is not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.io import read_openrlhf
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.local.run import TrainingRun
from ragen_agent.openrlhf.launch import train_distributed
from ragen_agent.training.console import Display
from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import read_json_lines, write_atomic

__all__ = ["main"]

HERE = Path(__file__).parent
ROWS = (("local", "local"), ("openrlhf", "OpenRLHF"))
PAGE = """\
# The distributed trainer next to the local one

Written by `python -m benchmarks.openrlhf` in the environment that `make test-openrlhf` makes. Both trainers start from
the same warm-started small model, on the default game ({game}), with GRPO and StarPO-S, the same settings, seed and
training levels, for {iterations} iterations. Success is measured on {levels} held-out test levels at temperature
{temperature:g}, with 95 % Wilson intervals; random play succeeds on {random:.1f} % of them and optimal play on
{optimal:.1f} %.

Machine: {machine}; no GPU. The local trainer computes in float32; OpenRLHF runs Ray, vLLM and DeepSpeed in bfloat16.
The cores were shared with other work, so compare the orders of magnitude.

| trainer | before | after | seconds an iteration | sampled tokens/s of the rollout |
|---|---|---|---|---|
{rows}

![success by iteration](openrlhf.svg)

The log-probs of sampled tokens differ between vLLM and the trainer by {gap:.4f} nats in mean absolute value and by
{kl:.1e} in the mean (`vllm_gap`, `vllm_kl`). That is the rounding of bfloat16, and it shows that the weights arrive.
On a machine like this one most of a step's time is spent outside the small model, so these times measure the overhead
of the distributed stack, which is made for GPUs and models that fill them.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs both, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark-openrlhf"), help="folder for the two runs")
    parser.add_argument("--iterations", type=int, default=40)
    options = parser.parse_args(arguments)
    base = merged(default_settings("FrozenLake"), {"training": {"iterations": options.iterations}})
    local = _local(options.runs / "local", with_settings(Config(), base))
    start = {"model": str(local.warm.resolve()), "warm_start": {"epochs": 0}}
    other = _openrlhf(options.runs / "openrlhf", with_settings(Config(), merged(base, start)))
    results = {"machine": machine(), "iterations": options.iterations} | {
        name: _result(folder) for name, folder in (("local", local), ("openrlhf", other))
    }
    write_atomic(HERE / "openrlhf.json", json.dumps(results, indent=1) + "\n")
    _plot(results)
    _write_page(results, with_settings(Config(), base))


def _local(path: Path, config: Config) -> RunFolder:
    if (path / "config.toml").is_file():
        folder, config = RunFolder.reopen(path)
    else:
        folder = RunFolder.create(path, config)
    run = TrainingRun(config, folder, Display())
    run.warm_start()
    run.measure("before")
    run.baselines()
    if "after" not in folder.read_summary():
        run.reinforce()
        run.measure("after")
    return folder


def _openrlhf(path: Path, config: Config) -> RunFolder:
    settings = OpenRLHF()
    if (path / "config.toml").is_file():
        folder, config = RunFolder.reopen(path)
        settings = read_openrlhf(path) or settings
    else:
        folder = RunFolder.create(path, config)
    if not folder.checkpoint.is_dir():
        train_distributed(config, settings, folder, Display())
    return folder


def _result(folder: RunFolder) -> dict[str, Any]:
    records, summary = read_json_lines(folder.metrics), folder.read_summary()
    rates = {name: summary[name] for name in ("before", "after", "random", "optimal") if name in summary}
    seconds = [record["seconds"] for record in records]
    agreement = [(r["vllm_kl"], r["vllm_gap"]) for r in records if "vllm_kl" in r]
    kl, gap = np.mean(agreement, axis=0).tolist() if agreement else (0.0, 0.0)
    return rates | {
        "success": [record["success"] for record in records],
        "seconds": float(np.median(seconds)),
        "tokens_per_s": float(np.median([record["tokens_per_s"] for record in records])),
        "vllm_kl": kl,
        "vllm_gap": gap,
    }


def _plot(results: Mapping[str, Any]) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for (name, label), color in zip(ROWS, ("tab:blue", "tab:orange"), strict=True):
        success = results[name]["success"]
        axes.plot(np.arange(1, len(success) + 1), success, color=color, label=f"{label}: training levels")
        for row, place in (("before", 0), ("after", len(success))):
            rate = results[name][row]
            error = [[rate["rate"] - rate["low"]], [rate["high"] - rate["rate"]]]
            axes.errorbar([place + (0.4 if name == "openrlhf" else -0.4)], [rate["rate"]], error, fmt="o", color=color)
    for line, color in (("random", "tab:gray"), ("optimal", "tab:green")):
        axes.axhline(results["local"][line]["rate"], color=color, linestyle="--", label=line)
    axes.set(xlabel="iteration", ylabel="success", ylim=(-0.02, 1.04), title="The same start, both trainers")
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small", frameon=False)
    figure.savefig(HERE / "openrlhf.svg", metadata={"Date": None})


def _write_page(results: Mapping[str, Any], config: Config) -> None:
    rows = []
    for trainer, label in ROWS:
        one = results[trainer]
        figures = f"{one['seconds']:.2f} | {one['tokens_per_s']:,.0f}"
        before, after = (Rate.from_dict(one[name]) for name in ("before", "after"))
        rows.append(f"| {label} | {before} | {after} | {figures} |")
    page = PAGE.format(
        game=config.game,
        iterations=results["iterations"],
        levels=config.evaluation.levels,
        temperature=config.evaluation.temperature,
        random=100 * results["local"]["random"]["rate"],
        optimal=100 * results["local"]["optimal"]["rate"],
        machine=results["machine"],
        rows="\n".join(rows),
        gap=results["openrlhf"]["vllm_gap"],
        kl=abs(results["openrlhf"]["vllm_kl"]),
    )
    write_atomic(HERE / "openrlhf.md", page)


if __name__ == "__main__":
    main()
