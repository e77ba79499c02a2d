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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, markdown_table, page_parser, write_results
from benchmarks.peers import Peer, PeerError
from ragen_agent.config import Config, Settings, merged, with_settings
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
from ragen_gym.core.threads import bfloat16_units

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

{decoding}

With the games, chat and bookkeeping of a rollout the engine samples {play:,.0f} tokens/s.{skipped}

## An iteration, compared with TRL's `GRPOTrainer`

Bandit of one turn, 64 episodes in groups of 8, all kept, at most {limit} tokens a reply; the same levels, messages and
rewards. TRL {trl_version}'s weights and AdamW are {dtype} throughout, its gradient checkpointing is off; the local
trainer keeps its sums in float32.

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

DECODED = (16, 64)
PROMPT, NEW = 16, 64
"""Tokens of the random prompts of plain decoding, and how many are decoded after each."""

Results = dict[str, Any]


def config_of(model: Path) -> Config:
    """The run, from a folder of weights."""
    settings = merged(default_settings("Bandit", str(model)), BANDIT)
    return with_settings(Config(), merged(settings, {"model": str(model)}))


def warm(model: Path, work: Path) -> Config:
    """The run from the model after a short imitation of demonstrations, made once."""
    folder = work / "warm"
    if not folder.is_dir():
        config = config_of(model)
        print(f"imitating {config.demonstrations.episodes} demonstrations", flush=True)
        warm_start(config, Policy.build(config), folder, Display(Console(quiet=True)))
    return config_of(folder)


def decode(config: Config, runs: int, vllm: Path, work: Path) -> Results:
    """Sampled tokens a second of the engine and of vLLM: groups on real prompts, and plain decoding."""
    policy = Policy.build(config)
    rollouts, settings = RolloutWorker(config, policy), config.training
    processes, prompts = policy.processes("train", settings.groups), []
    for process, level in zip(processes, rollouts.instances(0)[:: settings.group_size], strict=True):
        process.begin(seed=level.seed, options={"noise_seed": level.noise_seed})
        prompts.append(list(process.ids))
    tokens, stop = config.turns.max_tokens_per_turn, list(policy.chat.stop_ids)
    request = {"prompts": prompts, "samples": settings.group_size, "tokens": tokens, "stop": stop}
    work_of: dict[str, tuple[Engine, Results]] = {"groups": (policy.engine, request)}
    endless = TorchEngine(policy.model, (), len(policy.tokenizer))
    rng, words = np.random.default_rng(0), min(len(policy.tokenizer), int(policy.model.config.vocab_size))
    for rows in DECODED:
        random = rng.integers(words, size=(rows, PROMPT)).tolist()
        work_of[str(rows)] = endless, {"prompts": random, "samples": 1, "tokens": NEW, "stop": []}
    found: Results = {"prompt_tokens": statistics.mean(map(len, prompts)), "skipped": ""}
    length = max(*map(len, prompts), PROMPT) + max(tokens, NEW)
    start = {"model": config.model, "dtype": dtype_of(config), "rows": max(DECODED), "length": length}
    with ExitStack() as stack:
        peer = None
        try:
            peer = stack.enter_context(Peer(vllm, "vllm", start, work / "vllm.log", cpu_threads(config)))
        except (PeerError, FileNotFoundError) as error:
            found["skipped"] = f"{error} (`make test-openrlhf` installs vLLM for the CPU)"
        for name, (engine, request) in work_of.items():
            ours, theirs = [], []
            for run in range(runs + 1):
                ours.append(_sample(engine, request, run))
                if peer is not None:
                    answer = peer.ask(request)
                    theirs.append(answer["tokens"] / answer["seconds"])
            found[name] = {"engine": statistics.median(ours[1:])}
            found[name] |= {"vllm": statistics.median(theirs[1:])} if theirs else {}
            print(f"decoding, {name}, tokens/s: {found[name]}", flush=True)
    play = []
    for run in range(runs + 1):
        started = time.perf_counter()
        played = rollouts.play(run, rollouts.instances(run)).trajectories
        play.append(sum(int(each.sampled.sum()) for each in played) / (time.perf_counter() - started))
    return found | {"play": statistics.median(play[1:])}


def iteration(config: Config, runs: int, work: Path) -> Results:
    """Iterations of the local trainer in turns with steps of TRL's on the same levels."""
    steps = runs + 1
    config = with_settings(
        config, {"warm_start": {"epochs": 0}, "training": {"iterations": steps, "save_every": steps}}
    )
    episodes, ours, theirs = config.training.groups * config.training.group_size, list[Results](), list[Results]()
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = RunFolder.create(Path(temporary) / "run", config)
        start = {"model": config.model, "run": str(folder.path), "out": f"{temporary}/trl", "steps": steps}
        start |= {"dtype": dtype_of(config), "micro_batch": min(16, episodes)}
        with Peer(Path(sys.executable), "trl", start, work / "trl.log", cpu_threads(config)) as peer:

            def show(record: Mapping[str, Any]) -> None:
                ours.append({"seconds": record["seconds"], "tokens": record["reply_tokens"] * episodes})
                theirs.append(peer.ask({}))

            LocalBackend(config, Policy.build(config), folder).loop().run(show=show)
    found: Results = {
        name: {key: statistics.median(step[key] for step in some[1:]) for key in ("seconds", "tokens")}
        for name, some in (("ragen-agent", ours), ("trl", theirs))
    }
    print(f"an iteration: {found}", flush=True)
    ratio = found["trl"]["seconds"] / found["ragen-agent"]["seconds"]
    return found | {"version": peer.version, "ratio": ratio}


def dtype_of(config: Config) -> str:
    """The dtype in which the model plays."""
    return str(device_and_dtype(config)[1]).removeprefix("torch.")


def _sample(engine: Engine, request: Mapping[str, Any], seed: int) -> float:
    """Sampled tokens a second of a request as ``benchmarks.peers.vllm`` takes it."""
    prompts = [ids for ids in request["prompts"] for _ in range(request["samples"])]
    started = time.perf_counter()
    replies = sample(engine, prompts, [request["tokens"]] * len(prompts), temperature=1.0, seed=seed)
    return sum(len(reply.ids) for reply in replies) / (time.perf_counter() - started)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = page_parser("real_model", __doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name or folder of the model (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    vllm, work = ROOT / ".venv-openrlhf/bin/python", Path("runs/benchmark-real-model")
    parser.add_argument("--vllm", type=Path, default=vllm, metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--work", type=Path, default=work, metavar="DIR", help="folder of models and logs")
    options = parser.parse_args(argv)
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    config = warm(model_folder(options.model), work)
    results: Results = {
        "machine": machine("torch", "transformers") + (f"; {units}" if (units := bfloat16_units()) else ""),
        "model": options.model,
        "dtype": dtype_of(config),
        "threads": cpu_threads(config),
        "runs": options.runs,
        "decode": decode(config, options.runs, options.vllm, work),
        "iteration": iteration(config, options.runs, work),
    }
    write_results(options.out, "real_model", results, _page(results))
    return 0


def _page(results: Results) -> str:
    found, compared = results["decode"], results["iteration"]
    training, limit = BANDIT["training"], BANDIT["turns"]["max_tokens_per_turn"]
    rows = []
    for name in ("groups", *map(str, DECODED)):
        ours, theirs = found[name]["engine"], found[name].get("vllm")
        cells = [f"{theirs:,.0f}", f"{ours / theirs:.2f}"] if theirs else ["-", "-"]
        rows.append([name if name == "groups" else f"{name} rows", f"{ours:,.0f}", *cells])
    steps = [
        [title, f"{compared[name]['seconds']:.2f}", f"{compared[name]['tokens']:,.0f}"]
        for name, title in (("ragen-agent", "ragen-agent"), ("trl", "TRL"))
    ]
    return PAGE.format(
        **{name: results[name] for name in ("model", "dtype", "threads", "runs", "machine")},
        groups=f"{training['groups']} prompts of {found['prompt_tokens']:.0f} tokens, {training['group_size']} replies "
        f"to each of at most {limit}",
        prompt=PROMPT,
        new=NEW,
        decoding=markdown_table(["", "engine", "vLLM (eager)", "ratio"], rows),
        play=found["play"],
        skipped=f" vLLM was left out: {found['skipped']}." if found["skipped"] else "",
        limit=limit,
        trl_version=compared["version"],
        iterations=markdown_table(["", "seconds", "sampled tokens"], steps),
        iteration_ratio=compared["ratio"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
