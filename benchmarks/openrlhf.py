"""Both trainers from the same start: ``python -m benchmarks.openrlhf``, in the environment of ``make test-openrlhf``.

Two comparisons, each of the local trainer with OpenRLHF from the same warm-started model, with the same settings,
levels and seed: the small model on the default game, and a pretrained one by the recipe ``smollm2-135m-bandit``. The
small model is trained a third time, by OpenRLHF with engines that play ahead of training (``openrlhf.staleness=1``).
Written are ``openrlhf.json`` and ``openrlhf.md``. A run that exists already goes on where
it stopped and is not repeated, and ``--only`` leaves the other comparison's figures as they are.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, page_parser, write_results
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.io import read_openrlhf
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.local.run import TrainingRun
from ragen_agent.models.named_models import model_folder
from ragen_agent.openrlhf.launch import train_distributed
from ragen_agent.run.console import Display
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import read_json_lines

__all__ = ["main"]

RECIPE = "smollm2-135m-bandit"
ROWS = (("local", "local"), ("openrlhf", "OpenRLHF"), ("ahead", "OpenRLHF, playing ahead"))
PHASES = ("rollout", "score", "train", "synchronise", "own")
PAGE = """\
# The distributed trainer next to the local one

Written by `python -m benchmarks.openrlhf` in the environment that `make test-openrlhf` makes. In each comparison both
trainers start from the same warm-started model, with GRPO and StarPO-S, the same settings, seed and training levels.
Success is measured on fixed levels before and after, with 95 % Wilson intervals. Seconds are medians over the
iterations. There was no GPU, and the cores were shared with other work: compare figures of one table, and not to the
last digit.
"""
SMALL = """
## The small model from scratch

On the default game ({game}), {iterations} iterations, {levels} levels of the split {split} at temperature
{temperature:g}, on which random play succeeds on {random:.1f} % and optimal play on {optimal:.1f} %. The local trainer
computes in float32; OpenRLHF runs Ray, vLLM and DeepSpeed in bfloat16. Machine: {machine}.

| trainer | before | after | seconds an iteration | sampled tokens/s of the rollout |
|---|---|---|---|---|
{rows}

{agreement}
{ahead}On a machine like this one most of a step's time is spent outside the small model, so these times measure the
overhead of the distributed stack, which is made for GPUs and models that fill them.
"""
REAL = """
## A pretrained model

The recipe `{recipe}` ({game}), {iterations} iterations, {levels} levels of the split {split} at temperature
{temperature:g}, on which random play succeeds on {random:.1f} % and optimal play on {optimal:.1f} %. Both compute in
bfloat16 and keep float32 weights for the optimiser; SmolLM2's weights are dequantised from 4 bits. Machine:
{machine}.

| trainer | before | after | seconds an iteration | sampled tokens/s of the rollout |
|---|---|---|---|---|
{rows}

| trainer | rollout | log-probs of the rows | update | weights to vLLM | this project's own code |
|---|---|---|---|---|---|
{phases}

This project's own code takes {share:.1f} % of an iteration of the distributed trainer (`seconds_own`: the filter,
advantages and records, and what an episode takes besides vLLM's answers). {agreement}
"""
AGREEMENT = """\
The log-probs of sampled tokens differ between vLLM and the trainer by {gap:.4f} nats in mean absolute value and by
{kl:.1e} in the mean, {most:.1e} at most in an iteration \
(`vllm_gap`, `vllm_kl`). That is the rounding of bfloat16, and it shows that the weights
arrive."""


AHEAD = """
Playing ahead (`openrlhf.staleness={staleness}`) the rollout of the next iteration, {rollout:.2f} s, goes by while this
one is trained: an iteration takes {seconds:.2f} s in place of {plain:.2f}, of which training waits {wait:.2f} s for the
engines. Both work on the same cores here, so what is saved is the time in which one waited for the other.
`mismatch_kl`, of the weights that played and those that are trained, is
{kl:.1e} nats. At this learning rate an update can change more than the 0.1 nats at which a run ends, so
`openrlhf.max_vllm_kl` is {max_vllm_kl:g}.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is not there yet, writes the results."""
    parser = page_parser("openrlhf", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark-openrlhf"), help="folder for the runs")
    parser.add_argument("--only", choices=("small", "real"), help="one comparison alone")
    parser.add_argument("--iterations", type=int, default=40, help="of the small model (default 40)")
    parser.add_argument("--real-iterations", type=int, default=20, help="of the pretrained model (default 20)")
    parser.add_argument("--real-levels", type=int, default=128, help="of its evaluations (default 128)")
    options = parser.parse_args(arguments)
    file = options.out / "openrlhf.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if options.only in (None, "small"):
        base = merged(default_settings("FrozenLake"), {"training": {"iterations": options.iterations}})
        results["small"] = _pair(options.runs, base, {}, ahead={"staleness": 1, "colocate": False, "max_vllm_kl": 1.0})
    if options.only in (None, "real"):
        recipe = dict(read_recipe(RECIPE).settings)
        distributed = recipe.pop("openrlhf", {})
        recipe["model"] = str(model_folder(recipe["model"]))
        few = {"training": {"iterations": options.real_iterations}, "evaluation": {"levels": options.real_levels}}
        base = merged(merged(default_settings(recipe["game"], recipe["model"]), recipe), few)
        results["real"] = _pair(options.runs / "real", base, distributed)
    write_results(options.out, "openrlhf", results, _page(results))


def _pair(runs: Path, base: Settings, distributed: Settings, ahead: Settings | None = None) -> dict[str, Any]:
    """Both runs of a comparison, and what they gave; with ``ahead`` a third, of OpenRLHF with these settings."""
    config = with_settings(Config(), base)
    local = _local(runs / "local", config)
    gc.collect()  # the memory of the model and its optimiser, which the other trainer's processes need
    start = {"model": str(local.warm.resolve()), "warm_start": {"epochs": 0}}
    other = _openrlhf(runs / "openrlhf", with_settings(Config(), merged(base, start)), distributed)
    about = {
        "game": config.game,
        "split": config.evaluation.split,
        "levels": config.evaluation.levels,
        "temperature": config.evaluation.temperature,
        "iterations": config.training.iterations,
    }
    found = {"machine": machine(), **about, "local": _result(local), "openrlhf": _result(other)}
    if ahead is not None:
        third = _openrlhf(runs / "ahead", with_settings(Config(), merged(base, start)), merged(distributed, ahead))
        records = [record for record in read_json_lines(third.metrics) if record.get("staleness")]
        names = ("seconds_wait", "mismatch_kl")
        medians = {name: float(np.median([r[name] for r in records if name in r])) for name in names}
        found["ahead"] = _result(third) | medians | ahead
    return found


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


def _openrlhf(path: Path, config: Config, distributed: Settings) -> RunFolder:
    settings = with_settings(OpenRLHF(), distributed, "openrlhf.")
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
    agreement = [(r["vllm_kl"], r["vllm_gap"]) for r in records if "vllm_kl" in r]
    kl, gap = np.mean(agreement, axis=0).tolist() if agreement else (0.0, 0.0)

    def median(key: str) -> float:
        return float(np.median([record[key] for record in records if key in record] or [0.0]))

    phases = {phase: median(f"seconds_{phase}") for phase in PHASES}
    if not agreement:  # the local trainer has no other parts
        phases["train"] = float(np.median([r["seconds"] - r["seconds_rollout"] for r in records]))
    return rates | {
        "success": [record["success"] for record in records],
        "seconds": median("seconds"),
        "tokens_per_s": median("tokens_per_s"),
        "phases": phases,
        "vllm_kl": kl,
        "vllm_kl_most": max((abs(one) for one, _ in agreement), default=0.0),
        "vllm_gap": gap,
    }


def _page(results: Mapping[str, Any]) -> str:
    parts = [PAGE]
    for name, template in (("real", REAL), ("small", SMALL)):
        if name not in results:
            continue
        pair = results[name]
        ours = pair["openrlhf"]
        rows, phases = [], []
        for one, label in ((pair[trainer], label) for trainer, label in ROWS if trainer in pair):
            before, after = (Rate.from_dict(one[row]) for row in ("before", "after"))
            rows.append(f"| {label} | {before} | {after} | {one['seconds']:.2f} | {one['tokens_per_s']:,.0f} |")
            seconds = [one["phases"][phase] for phase in PHASES]
            phases.append(f"| {label} | {' | '.join(f'{value:.2f}' if value else '' for value in seconds)} |")
        agreement = AGREEMENT.format(gap=ours["vllm_gap"], kl=abs(ours["vllm_kl"]), most=ours["vllm_kl_most"])
        values = {key: value for key, value in pair.items() if not isinstance(value, Mapping)}
        parts.append(
            template.format(
                **values,
                recipe=RECIPE,
                rows="\n".join(rows),
                phases="\n".join(phases),
                random=100 * pair["local"]["random"]["rate"],
                optimal=100 * pair["local"]["optimal"]["rate"],
                share=100 * ours["phases"]["own"] / ours["seconds"],
                agreement=agreement,
                ahead=_ahead(pair) if "ahead" in pair else "",
            )
        )
    return "".join(parts)


def _ahead(pair: Mapping[str, Any]) -> str:
    ahead = pair["ahead"]
    return AHEAD.format(
        **{name: ahead[name] for name in ("staleness", "seconds", "max_vllm_kl")},
        rollout=ahead["phases"]["rollout"],
        plain=pair["openrlhf"]["seconds"],
        wait=ahead["seconds_wait"],
        kl=ahead["mismatch_kl"],
    )


if __name__ == "__main__":
    main()
