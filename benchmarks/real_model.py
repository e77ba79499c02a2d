"""A pretrained model on this machine's CPU, next to other programs: ``python -m benchmarks.real_model``.

Measured are the update, with each distinct prefix computed once and with padded rows; decoding, next to vLLM; and a
whole iteration of training, next to TRL's ``GRPOTrainer`` (no dependency: ``pip install trl==1.16.0``). What is
compared does the same work in the same run, with the same weights, dtype and cores, and takes turns; medians count.
Each part is written down when it is there, and not repeated. At the end ``real_model.json`` and ``real_model.md`` are
written. It wants a machine with nothing else to do, and OMP_WAIT_POLICY unset: threads that spin while the other
program measures would take its cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, made_folder
from benchmarks.peers import PeerError
from benchmarks.real_model_parts import CUBE, NEW, PADDED_TOKENS, PARTS, PROMPT, Bench, Results
from ragen_agent.models.named_models import model_folder
from ragen_gym.core.cpu import bfloat16_units
from ragen_gym.core.storage import write_atomic

__all__ = ["main"]

HERE = Path(__file__).parent
ROOT = HERE.parent
TITLES = {"Bandit": "Bandit, one turn", "FrozenLake": "FrozenLake, five turns"}

PAGE = """\
# A pretrained model on a CPU

Written by `python -m benchmarks.real_model`. {model}, after 40 steps of imitation, in {dtype} on {threads} threads.
What is compared does the same work with the same weights, dtype and cores, by turns in the same run; medians of {runs}.

Machine: {machine}. A product of square matrices of {cube:,} takes {bfloat16:,.0f} GFLOP/s in bfloat16 and
{float32:,.0f} in float32.

## The update

An optimiser step on 8 groups of 8 episodes (FrozenLake: 2), all kept. *Counted* are the tokens of all rows, *distinct*
those that are left when each prefix is counted once. Padded rows have like length, up to {padded_tokens:,} positions at
a time. The share of the peak is 6 FLOP for each parameter and computed token, those of the output layer only where
logits are made; attention is not counted.

| game | tokens counted / distinct / sampled | | seconds | counted tokens/s | distinct tokens/s | of the peak |
|---|---|---|---|---|---|---|
{updates}

{update_ratios}

## Decoding

Sampled tokens a second, with the log-prob of each. *Groups*: {groups}, prompts included, as in a rollout of Bandit;
vLLM shares a group's prompt in its cache of prefixes, which is emptied before each run as an update of the weights
empties it. *Rows*: {prompt} random tokens each and {new} new ones, none of which ends a row.

| | engine | vLLM (eager) | ratio |
|---|---|---|---|
{decoding}

With the games, chat and bookkeeping of a rollout the engine samples {play:,.0f} tokens/s.{skipped}

## An iteration, next to TRL's `GRPOTrainer`

Bandit, 64 episodes in groups of 8, all kept, at most {limit} tokens a reply, the same levels, messages and rewards.
TRL {trl_version}'s weights and AdamW are {dtype} throughout, its gradient checkpointing is off; the local trainer keeps
its sums in float32.

| | seconds | sampled tokens | where |
|---|---|---|---|
{iterations}

The local trainer's iteration is {iteration_ratio:.1f} times as fast.

## Where the time goes

Operators by the CPU's time in them, in {where}.

{operators}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what is not there yet, prints and writes; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_model", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m", help="name or folder of the model (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    parser.add_argument("--part", action="append", choices=PARTS, metavar="NAME", help="only this part; repeatable")
    parser.add_argument("--again", action="store_true", help="measure parts that are there once more")
    parser.add_argument("--quick", action="store_true", help="everything small and once, to see whether it works")
    parser.add_argument(
        "--vllm",
        type=Path,
        default=ROOT / ".venv-openrlhf/bin/python",
        metavar="PYTHON",
        help="of an environment with vLLM",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/benchmark-real-model"), metavar="DIR", help="folder of the parts"
    )
    parser.add_argument("--out", type=made_folder, default=HERE, metavar="DIR", help="folder of the two files")
    arguments = parser.parse_args(argv)
    runs = 1 if arguments.quick else arguments.runs
    bench = Bench(model_folder(arguments.model), arguments.work.resolve(), runs, arguments.quick, arguments.vllm)
    bench.work.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for name, measure in PARTS.items():
        file = bench.work / f"{name}.json"
        if (name in (arguments.part or PARTS)) and (arguments.again or not file.is_file()):
            try:
                write_atomic(file, json.dumps(measure(bench), indent=1) + "\n")
            except PeerError as error:
                print(f"{name}: {error}", file=sys.stderr)
        if file.is_file():
            results[name] = json.loads(file.read_text())
    if missing := [name for name in PARTS if name not in results]:
        print(f"Not measured yet: {', '.join(missing)}.")
        return 0
    results = {
        "machine": machine("torch", "transformers") + (f"; {units}" if (units := bfloat16_units()) else ""),
        "model": arguments.model,
        "dtype": bench.dtype,
        "threads": bench.threads,
        "runs": runs,
        **results,
    }
    write_atomic(arguments.out / "real_model.json", json.dumps(results, indent=1) + "\n")
    write_atomic(arguments.out / "real_model.md", _page(results, bench))
    return 0


def _page(results: Results, bench: Bench) -> str:
    """The page of these results."""
    found, compared = results["decode"], results["iteration"]
    training, limit = bench.config("Bandit").training, bench.config("Bandit").turns.max_tokens_per_turn
    titles = {"groups": "groups"} | {name: f"{name} rows" for name in found if name.isdigit()}
    rows = []
    for name, title in titles.items():
        ours, theirs = found[name]["engine"], found[name].get("vllm")
        ratio = f"{theirs:,.0f} | {ours / theirs:.2f}" if theirs else "- | -"
        rows.append(f"| {title} | {ours:,.0f} | {ratio} |")
    steps = [
        f"| {title} | {compared[name]['seconds']:.2f} | {compared[name]['tokens']:,.0f} | "
        + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in compared[name]["phases"].items())
        + " |"
        for name, title in (("ragen-agent", "ragen-agent"), ("trl", "TRL"))
    ]
    return PAGE.format(
        model=results["model"],
        dtype=results["dtype"],
        threads=results["threads"],
        runs=results["runs"],
        machine=results["machine"],
        cube=CUBE,
        bfloat16=results["peak"]["bfloat16"] / 1e9,
        float32=results["peak"]["float32"] / 1e9,
        padded_tokens=PADDED_TOKENS,
        updates="\n".join(_update_rows(results)),
        update_ratios=" ".join(
            f"On {TITLES[game]}, sharing prefixes is {one['ratio']:.1f} times as fast, of at most "
            f"{one['tokens'] / one['distinct']:.1f} where all time goes by tokens."
            for game, one in results["update"].items()
        ),
        groups=f"{training.groups} prompts of {found['prompt_tokens']:.0f} tokens, {training.group_size} replies to "
        f"each of at most {limit}",
        prompt=PROMPT,
        new=NEW,
        decoding="\n".join(rows),
        play=found["play"],
        skipped=f" vLLM was left out: {found['skipped']}." if found["skipped"] else "",
        limit=limit,
        trl_version=compared["version"],
        iterations="\n".join(steps),
        iteration_ratio=compared["ratio"],
        where="; ".join(results["profile"]),
        operators="\n".join(
            f"- {what}: " + ", ".join(f"`{name}` {100 * share:.0f} %" for name, share in most) + "."
            for what, most in results["profile"].items()
        ),
    )


def _update_rows(results: Results) -> list[str]:
    """The table of updates."""
    rows, fastest = [], results["peak"][results["dtype"]]
    for game, one in results["update"].items():
        tokens = f"{one['tokens']:,} / {one['distinct']:,} / {one['sampled']:,}"
        for way, title in (("shared", "shared prefixes"), ("padded", "padded rows")):
            seconds = one[way]
            distinct = f"{one['distinct'] / seconds:,.0f}" if way == "shared" else "-"
            rows.append(
                f"| {TITLES[game]} | {tokens} | {title} | {seconds:.2f} | {one['tokens'] / seconds:,.0f} | {distinct} "
                f"| {100 * one['flop'][way] / seconds / fastest:.0f} % |"
            )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
