"""A pretrained model on this machine's CPU, compared with other programs: ``python -m benchmarks.real_model``.

Decoding is compared with vLLM, a whole iteration of training with TRL's ``GRPOTrainer`` (not a dependency: ``pip
install trl==1.16.0``), with the same weights, dtype and cores, by turns in the same run; medians count. Use a machine
with nothing else to do, and leave OMP_WAIT_POLICY unset: threads that spin while the other program measures would take
its cores.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, page_parser, write_results
from benchmarks.peers import Peer, PeerError
from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.io import Settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference import Engine
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.local.backend import LocalBackend, RolloutWorker
from ragen_agent.models.named_models import model_folder
from ragen_agent.models.resources import cpu_threads
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy, device_and_dtype
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.trainer import warm_start
from ragen_agent.tokens.rollout import sample
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.threads import bfloat16_units

__all__ = ["BANDIT", "main"]

ROOT = Path(__file__).parents[1]

PAGE = """\
# A pretrained model on a CPU

Written by `python -m benchmarks.real_model`. {model}, after 40 steps of imitation, in {dtype} on {threads} threads; its
weights are dequantised from 4 bits. What is compared does the same work with the same weights, dtype and cores, by
turns in the same run; medians of {runs}.

Machine: {machine}.

## Decoding

Sampled tokens a second, with the log-prob of each. *Groups*: {groups}, prompts included, as in a rollout of Bandit;
vLLM shares a group's prompt in its cache of prefixes, which is emptied before each run as an update of the weights
empties it. *Rows*: {prompt} random tokens each and {new} new ones, none of which ends a row.

| | engine | vLLM (eager) | ratio |
|---|---|---|---|
{decoding}

With the games, chat and bookkeeping of a rollout the engine samples {play:,.0f} tokens/s.{skipped}

## An iteration, compared with TRL's `GRPOTrainer`

Bandit of one turn, 64 episodes in groups of 8, all kept, at most {limit} tokens a reply; the same levels, messages and
rewards. TRL {trl_version}'s weights and AdamW are {dtype} throughout, its gradient checkpointing is off; the local
trainer keeps its sums in float32.

| | seconds | sampled tokens | where |
|---|---|---|---|
{iterations}

The local trainer's iteration is {iteration_ratio:.1f} times as fast on this task and machine. It computes each
distinct prefix once; how much of the ratio that explains is not measured, nor are games of several turns or GPUs.
"""

BANDIT: Settings = {
    "game": "Bandit",
    "turns": {"max_tokens_per_turn": 48, "example": False},
    "demonstrations": {"episodes": 320, "mistakes": 1.0, "thought": "choose"},
    "warm_start": {"epochs": 1, "batch": 8, "learning_rate": 1e-4},
    "training": {"groups": 8, "group_size": 8, "minibatch": 64, "filter": "none"},
}
"""What is played: 40 steps of imitation on 8 episodes each, then groups as in a training run; all groups are kept."""

QUICK: Settings = {
    "demonstrations": {"episodes": 16},
    "training": {"groups": 2, "group_size": 2, "minibatch": 4},
}
"""With ``--quick`` everything runs once and is small, to see whether it works."""

DECODED = (16, 64)
PROMPT, NEW = 16, 64
"""Tokens of the random prompts of plain decoding, and how many are decoded after each."""

Results = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Shared input of both measurements."""

    model: Path  # folder of the pretrained model
    work: Path  # folder of the warm-started model and the logs
    runs: int  # measurements of each, after one that warms up
    quick: bool  # everything small
    vllm: Path  # the interpreter that has vLLM

    def config(self, model: Path | None = None) -> Config:
        """The run, from a folder of weights."""
        model = model or self.model
        settings = merged(merged(default_settings("Bandit", str(model)), BANDIT), {"model": str(model)})
        return with_settings(Config(), merged(settings, QUICK if self.quick else {}))

    def policy(self) -> Policy:
        """The warm-started policy."""
        return Policy.build(self.config(self.warm))

    @property
    def warm(self) -> Path:
        """The folder of the model after a short imitation of demonstrations; made once."""
        folder = self.work / "warm"
        if not folder.is_dir():
            config = self.config()
            print(f"imitating {config.demonstrations.episodes} demonstrations", flush=True)
            warm_start(config, Policy.build(config), folder, Display(Console(quiet=True)))
        return folder

    @property
    def threads(self) -> int:
        """Of the CPU."""
        return cpu_threads(self.config())

    @property
    def dtype(self) -> str:
        """In which the model plays."""
        return str(device_and_dtype(self.config())[1]).removeprefix("torch.")


def decode(bench: Bench) -> Results:
    """Sampled tokens a second of the engine and of vLLM: groups on real prompts, and plain decoding."""
    policy = bench.policy()
    model, settings = policy.model, policy.config.training
    rollouts = RolloutWorker(policy.config, policy)
    processes = policy.processes("train", settings.groups)
    prompts = []
    for process, level in zip(processes, rollouts.instances(0)[:: settings.group_size], strict=True):
        process.begin(seed=level.seed, options={"noise_seed": level.noise_seed})
        prompts.append(list(process.ids))
    tokens = policy.config.turns.max_tokens_per_turn
    endless = TorchEngine(model, (), len(policy.tokenizer))
    rng, words = np.random.default_rng(0), min(len(policy.tokenizer), int(model.config.vocab_size))
    work: dict[str, tuple[TorchEngine, Results]] = {
        "groups": (
            policy.engine,
            {"prompts": prompts, "samples": settings.group_size, "tokens": tokens, "stop": list(policy.chat.stop_ids)},
        )
    }
    for rows in (4,) if bench.quick else DECODED:
        random = rng.integers(words, size=(rows, PROMPT)).tolist()
        work[str(rows)] = endless, {"prompts": random, "samples": 1, "tokens": NEW, "stop": []}
    found: Results = {}
    peer, skipped = _vllm(bench, max(map(len, prompts)) + tokens)
    try:
        for name, (engine, request) in work.items():
            rates: dict[str, list[float]] = {each: [] for each in (["engine"] if peer is None else ["engine", "vllm"])}
            for run in range(bench.runs + 1):
                rate = _sample(engine, request, run)
                rates["engine"] += [rate] if run else []
                if peer is not None:
                    answer = peer.ask(request)
                    rates["vllm"] += [answer["tokens"] / answer["seconds"]] if run else []
            found[name] = _medians(rates)
            _say(f"decoding, {name}", found[name], "tokens/s")
    finally:
        if peer is not None:
            peer.close()
    play = []
    for run in range(bench.runs + 1):
        started = time.perf_counter()
        played = rollouts.play(run, rollouts.instances(run)).trajectories
        play.append(_count_sampled(played) / (time.perf_counter() - started))
    found["play"] = statistics.median(play[1:])
    return found | {"prompt_tokens": statistics.mean(map(len, prompts)), "skipped": skipped}


def iteration(bench: Bench) -> Results:
    """Iterations of the local trainer in turns with steps of TRL's on the same levels."""
    config = with_settings(
        bench.config(bench.warm),
        {"warm_start": {"epochs": 0}, "training": {"iterations": bench.runs + 1, "save_every": bench.runs + 1}},
    )
    with tempfile.TemporaryDirectory(dir=bench.work) as temporary:
        folder = RunFolder.create(Path(temporary) / "run", config)
        settings = {
            "model": config.model,
            "run": str(folder.path),
            "out": str(Path(temporary) / "trl"),
            "dtype": bench.dtype,
            "steps": bench.runs + 1,
            "micro_batch": 4 if bench.quick else 16,
        }
        with Peer(Path(sys.executable), "trl", settings, bench.work / "trl.log", bench.threads) as peer:
            turns = _TakesTurns(peer)
            LocalBackend(config, Policy.build(config), folder).loop().run(show=turns.advance)
            version = peer.facts["version"]
    ours = [
        {
            "seconds": record["seconds"],
            "tokens": record["response_tokens"] * config.training.groups * config.training.group_size,
            "phases": {
                "rollout": record["seconds_rollout"],
                "update": record["seconds"] - record["seconds_rollout"] - sum(record["diagnostics_s"].values()),
                "diagnostics": sum(record["diagnostics_s"].values()),
            },
        }
        for record in turns.ours
    ]
    found = {"ragen-agent": _typical(ours[1:]), "trl": _typical(turns.theirs[1:]), "version": version}
    found["ratio"] = found["trl"]["seconds"] / found["ragen-agent"]["seconds"]
    found["kept"] = statistics.mean(record["kept"] for record in turns.ours)
    _say("an iteration", {name: found[name]["seconds"] for name in ("ragen-agent", "trl")}, "s")
    return found


class _TakesTurns(Display):
    """After each iteration of the trainer, the peer takes a step."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(Console(quiet=True))
        self.peer, self.ours, self.theirs = peer, list[Mapping[str, Any]](), list[Results]()

    def advance(self, record: Mapping[str, Any], steps: int = 1) -> None:
        super().advance(record, steps)
        self.ours.append(record)
        self.theirs.append(self.peer.ask({}))


def _vllm(bench: Bench, length: int) -> tuple[Peer | None, str]:
    """The peer, or why there is none."""
    if not bench.vllm.is_file():
        return None, f"there is no {bench.vllm}: `make test-openrlhf` installs vLLM for the CPU"
    settings = {
        "model": str(bench.warm),
        "dtype": bench.dtype,
        "rows": max(DECODED),
        "length": max(length, PROMPT + NEW),
    }
    try:
        return Peer(bench.vllm, "vllm", settings, bench.work / "vllm.log", bench.threads), ""
    except PeerError as error:
        return None, str(error)


def _sample(engine: Engine, request: Mapping[str, Any], seed: int) -> float:
    """Sampled tokens a second of a request as ``benchmarks.peers.vllm`` takes it."""
    prompts = [ids for ids in request["prompts"] for _ in range(request["samples"])]
    started = time.perf_counter()
    replies = sample(engine, prompts, [request["tokens"]] * len(prompts), temperature=1.0, seed=seed)
    return sum(len(reply.ids) for reply in replies) / (time.perf_counter() - started)


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(some) for name, some in values.items()}


def _typical(steps: Sequence[Mapping[str, Any]]) -> Results:
    """Medians of steps, each with ``seconds``, ``tokens`` and ``phases``; what no phase has is ``other``."""
    found: Results = {name: statistics.median(step[name] for step in steps) for name in ("seconds", "tokens")}
    phases = {name: statistics.median(step["phases"].get(name, 0.0) for step in steps) for name in steps[0]["phases"]}
    return found | {"phases": phases | {"other": max(0.0, found["seconds"] - sum(phases.values()))}}


def _count_sampled(trajectories: Sequence[Trajectory]) -> int:
    return sum(int(t.sampled.sum()) for t in trajectories)


def _say(what: str, figures: Mapping[str, float], unit: str) -> None:
    print(f"{what}: " + ", ".join(f"{name} {value:,.2f}" for name, value in figures.items()) + f" {unit}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit code."""
    parser = page_parser("real_model", __doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name or folder of the model (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="everything small and once, to see whether it works")
    parser.add_argument(
        "--vllm",
        type=Path,
        default=ROOT / ".venv-openrlhf/bin/python",
        metavar="PYTHON",
        help="of an environment with vLLM",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/benchmark-real-model"), metavar="DIR", help="folder of models and logs"
    )
    arguments = parser.parse_args(argv)
    runs = 1 if arguments.quick else arguments.runs
    bench = Bench(model_folder(arguments.model), arguments.work.resolve(), runs, arguments.quick, arguments.vllm)
    bench.work.mkdir(parents=True, exist_ok=True)
    results: Results = {
        "machine": machine("torch", "transformers") + (f"; {units}" if (units := bfloat16_units()) else ""),
        "model": arguments.model,
        "dtype": bench.dtype,
        "threads": bench.threads,
        "runs": runs,
        "decode": decode(bench),
        "iteration": iteration(bench),
    }
    write_results(arguments.out, "real_model", results, _page(results))
    return 0


def _page(results: Results) -> str:
    """The page of these results."""
    found, compared = results["decode"], results["iteration"]
    training, limit = BANDIT["training"], BANDIT["turns"]["max_tokens_per_turn"]
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
        groups=f"{training['groups']} prompts of {found['prompt_tokens']:.0f} tokens, {training['group_size']} replies "
        f"to each of at most {limit}",
        prompt=PROMPT,
        new=NEW,
        decoding="\n".join(rows),
        play=found["play"],
        skipped=f" vLLM was left out: {found['skipped']}." if found["skipped"] else "",
        limit=limit,
        trl_version=compared["version"],
        iterations="\n".join(steps),
        iteration_ratio=compared["ratio"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
