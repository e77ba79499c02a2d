"""A pretrained model on this machine's CPU, next to other programs: ``python -m benchmarks.real_model``.

Measured are the update, with each distinct prefix computed once and with padded rows; decoding, next to vLLM; and a
whole iteration of training, next to TRL's ``GRPOTrainer`` (no dependency: ``pip install trl==1.16.0``). What is
compared does the same work in the same run, with the same weights, dtype and cores, and takes turns; medians count.
Each part is written down when it is there, and not repeated. At the end ``real_model.json`` and ``real_model.md`` are
written. It wants a machine with nothing else to do, and OMP_WAIT_POLICY unset: threads that spin while the other
program measures would take its cores.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks import machine, page_parser, write_results
from benchmarks.peers import Peer, PeerError
from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.io import Settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference import Engine
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.local.policy_update import Learner, cut, policy_terms, targets_of, update
from ragen_agent.local.trainer import RolloutWorker, Trainer
from ragen_agent.models.named_models import model_folder
from ragen_agent.models.parameters import adamw
from ragen_agent.models.resources import cpu_threads
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy, device_and_dtype
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.trainer import warm_start
from ragen_agent.tokens.rollout import sample
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update import scoring
from ragen_agent.update.batches import Batch
from ragen_agent.update.prefix_tree import PrefixTree
from ragen_gym.core.cpu import bfloat16_units
from ragen_gym.core.storage import write_atomic

__all__ = ["GAMES", "PARTS", "main"]

ROOT = Path(__file__).parents[1]
TITLES = {"Bandit": "Bandit, one turn", "FrozenLake": "FrozenLake, five turns"}

PAGE = """\
# A pretrained model on a CPU

Written by `python -m benchmarks.real_model`. {model}, after 40 steps of imitation, in {dtype} on {threads} threads.
What is compared does the same work with the same weights, dtype and cores, by turns in the same run; medians of {runs}.

Machine: {machine}.

## The update

An optimiser step on 8 groups of 8 episodes (FrozenLake: 2), all kept. *Counted* are the tokens of all rows, *distinct*
those that are left when each prefix is counted once. Padded rows have like length, up to {padded_tokens:,} positions at
a time.

| game | tokens counted / distinct / sampled | | seconds | counted tokens/s | distinct tokens/s |
|---|---|---|---|---|---|
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
"""

GAMES: dict[str, Settings] = {
    "Bandit": {
        "game": "Bandit",
        "turns": {"max_tokens_per_turn": 48},
        "demonstrations": {"episodes": 320, "mistakes": 1.0, "thought": "choose"},
    },
    "FrozenLake": {
        "game": "FrozenLake",
        "env_options": {"size": 4, "success_rate": 1.0, "min_path": 3, "text_format": "coord"},
        "turns": {"max_turns": 5, "max_actions_per_turn": 1, "max_actions": 5, "max_tokens_per_turn": 96},
        "demonstrations": {"episodes": 320, "moves": [1.0], "thought": "relative"},
        "training": {"groups": 2, "minibatch": 16},
    },
}
"""What is played: 40 steps of imitation on 8 episodes each, then groups as in a training run; all groups are kept.

On FrozenLake two groups: padded rows of 64 episodes of five turns would take minutes and most of the memory.
"""

SHARED: Settings = {
    "turns": {"example": False},
    "warm_start": {"epochs": 1, "batch": 8, "learning_rate": 1e-4},
    "training": {"groups": 8, "group_size": 8, "minibatch": 64, "filter": "none"},
}
QUICK: Settings = {
    "demonstrations": {"episodes": 16},
    "training": {"groups": 2, "group_size": 2, "minibatch": 4},
}
"""With ``--quick`` everything runs once and is small, to see whether it works."""

PADDED_TOKENS = 4096
"""Positions of padded rows that go forward and backward at a time: more need more memory, and are no faster."""

DECODED = (16, 64)
PROMPT, NEW = 16, 64
"""Tokens of the random prompts of plain decoding, and how many are decoded after each."""

Results = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Shared input of all parts.

    Attributes:
        model: folder of the pretrained model.
        work: folder of the warm-started models, the logs and the finished parts.
        runs: measurements of each, after one that warms up.
        quick: everything small.
        vllm: the interpreter that has vLLM.
    """

    model: Path
    work: Path
    runs: int
    quick: bool
    vllm: Path

    def config(self, game: str, model: Path | None = None) -> Config:
        """The run on a game, from a folder of weights."""
        model = model or self.model
        settings = merged(merged(default_settings(game, str(model)), SHARED), {**GAMES[game], "model": str(model)})
        settings = merged(settings, QUICK if self.quick else {})
        return with_settings(Config(), settings)

    def policy(self, game: str) -> Policy:
        """The warm-started policy of a game."""
        return Policy.build(self.config(game, self.warm(game)))

    def warm(self, game: str) -> Path:
        """The folder of the model after a short imitation of a game's demonstrations; made once."""
        folder = self.work / f"warm-{game}"
        if not folder.is_dir():
            config = self.config(game)
            print(f"{game}: imitating {config.demonstrations.episodes} demonstrations", flush=True)
            warm_start(config, Policy.build(config), folder, Display(Console(quiet=True)))
        return folder

    @property
    def threads(self) -> int:
        """Of the CPU."""
        return cpu_threads(self.config("Bandit"))

    @property
    def dtype(self) -> str:
        """In which the model plays."""
        return str(device_and_dtype(self.config("Bandit"))[1]).removeprefix("torch.")


def updates(bench: Bench) -> Results:
    """One update on all episodes of an iteration: each distinct prefix once, and padded rows."""
    return {game: _update(bench, game) for game in GAMES}


def decode(bench: Bench) -> Results:
    """Sampled tokens a second of the engine and of vLLM: groups on real prompts, and plain decoding."""
    policy = bench.policy("Bandit")
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
        played = rollouts.play(run, rollouts.instances(run))[0]
        play.append(_count_sampled(played) / (time.perf_counter() - started))
    found["play"] = statistics.median(play[1:])
    return found | {"prompt_tokens": statistics.mean(map(len, prompts)), "skipped": skipped}


def iteration(bench: Bench) -> Results:
    """Iterations of the local trainer in turns with steps of TRL's on the same levels."""
    config = with_settings(
        bench.config("Bandit", bench.warm("Bandit")),
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
            Trainer(config, Policy.build(config), folder, turns, None).run()
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


PARTS: dict[str, Callable[[Bench], Results]] = {"update": updates, "decode": decode, "iteration": iteration}


class _Work:
    """An update on some trajectories, done in two ways; the learning rate is 0, so that every run does the same."""

    def __init__(self, policy: Policy, trajectories: list[Trajectory]) -> None:
        self.settings, self.trajectories = policy.config.training, trajectories
        self.learner = Learner(
            policy.model,
            adamw(policy.model, 0.0, weight_decay=0.0),
            policy.engine.bias,
            longest=policy.config.turns.max_tokens_per_episode,
        )
        self.advantages = torch.randn(len(trajectories), generator=torch.Generator().manual_seed(0))
        self.batch = Batch.of(trajectories)

    def shared(self) -> None:
        """As the local trainer does it."""
        update(self.learner, self.trajectories, self.advantages, self.settings, 0)

    def padded(self) -> None:
        """As rows of like length, padded to the longest; their gradients are summed up."""
        learner, rows = self.learner, self.padded_rows()
        targets = targets_of(learner, self.batch, self.trajectories, self.advantages, self.settings)
        learner.optimiser.zero_grad(set_to_none=True)
        with patch.object(scoring, "shares_prefixes", lambda model: False):
            for some in rows:
                part = self.batch.rows(some)
                terms, _ = policy_terms(learner, part, cut(targets, some, part), self.settings)
                (torch.stack(list(terms.values())).sum() * len(some) / len(self.trajectories)).backward()
        torch.nn.utils.clip_grad_norm_(learner.model.parameters(), self.settings.max_grad_norm)
        learner.optimiser.step()

    def padded_rows(self) -> list[Tensor]:
        """The rows that go forward together."""
        lengths = self.batch.attention.sum(1)
        parts: list[list[int]] = [[]]
        for row in lengths.argsort().tolist():
            if parts[-1] and (len(parts[-1]) + 1) * int(lengths[row]) > PADDED_TOKENS:
                parts.append([])
            parts[-1].append(row)
        return [torch.tensor(part) for part in parts]


class _TakesTurns(Display):
    """After each iteration of the trainer, the peer takes a step."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(Console(quiet=True))
        self.peer, self.ours, self.theirs = peer, list[Mapping[str, Any]](), list[Results]()

    def advance(self, record: Mapping[str, Any], steps: int = 1) -> None:
        super().advance(record, steps)
        self.ours.append(record)
        self.theirs.append(self.peer.ask({}))


def _update(bench: Bench, game: str) -> Results:
    policy = bench.policy(game)
    rollouts = RolloutWorker(policy.config, policy)
    trajectories = rollouts.play(0, rollouts.instances(0))[0]
    work = _Work(policy, trajectories)
    seconds = _interleaved(bench.runs, {"shared": work.shared, "padded": work.padded})
    found: Results = _medians(seconds)
    found["ratio"] = found["padded"] / found["shared"]
    found |= {
        "tokens": int(work.batch.attention.sum()),
        "distinct": len(PrefixTree.of(work.batch.ids, work.batch.attention).ids),
        "sampled": _count_sampled(trajectories),
    }
    _say(f"update, {game}", {name: found[name] for name in ("shared", "padded")}, "s")
    return found


def _vllm(bench: Bench, length: int) -> tuple[Peer | None, str]:
    """The peer, or why there is none."""
    if not bench.vllm.is_file():
        return None, f"there is no {bench.vllm}: `make test-openrlhf` installs vLLM for the CPU"
    settings = {
        "model": str(bench.warm("Bandit")),
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


def _interleaved(runs: int, work: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each by turns; the first of each only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for run in range(runs + 1):
        for name, do in work.items():
            started = time.perf_counter()
            do()
            seconds[name] += [time.perf_counter() - started] if run else []
    return seconds


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
    """Measures what is not there yet, prints and writes; returns the exit code."""
    parser = page_parser("real_model", __doc__)
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
    write_results(arguments.out, "real_model", results, _page(results))
    return 0


def _page(results: Results) -> str:
    """The page of these results."""
    found, compared = results["decode"], results["iteration"]
    training, limit = SHARED["training"], GAMES["Bandit"]["turns"]["max_tokens_per_turn"]
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
        padded_tokens=PADDED_TOKENS,
        updates="\n".join(_update_rows(results)),
        update_ratios=" ".join(
            f"On {TITLES[game]}, sharing prefixes is {one['ratio']:.1f} times as fast, of at most "
            f"{one['tokens'] / one['distinct']:.1f} where all time goes by tokens."
            for game, one in results["update"].items()
        ),
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


def _update_rows(results: Results) -> list[str]:
    """The table of updates."""
    rows = []
    for game, one in results["update"].items():
        tokens = f"{one['tokens']:,} / {one['distinct']:,} / {one['sampled']:,}"
        for way, title in (("shared", "shared prefixes"), ("padded", "padded rows")):
            seconds = one[way]
            distinct = f"{one['distinct'] / seconds:,.0f}" if way == "shared" else "-"
            rows.append(
                f"| {TITLES[game]} | {tokens} | {title} | {seconds:.2f} | {one['tokens'] / seconds:,.0f} | {distinct} |"
            )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
