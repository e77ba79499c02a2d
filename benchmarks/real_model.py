"""A pretrained model on this machine's CPU, compared with other programs: ``python -m benchmarks.real_model``.

Decoding is compared with vLLM, a whole iteration of training with TRL's ``GRPOTrainer``, with the same weights, dtype
and cores, by turns in the same run; medians count. Neither is a dependency: ``make test-openrlhf`` and ``make
test-integrations ARGS=trl`` install them in environments of their own. Use a machine with nothing else to do, and leave
OMP_WAIT_POLICY unset: threads that spin while the other program measures would take its cores.
"""

from __future__ import annotations

import json
import statistics
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

Written by `python -m benchmarks.real_model`. {model}, after a short imitation; its weights are dequantised from 4 bits.
What is compared does the same work with the same weights, dtype and cores, by turns in the same run.

## Decoding

{decoding_on}

Sampled tokens a second, with the log-prob of each. *Groups*: {groups}, prompts included, as in a rollout of Bandit;
vLLM shares a group's prompt in its cache of prefixes, which is emptied before each run as an update of the weights
empties it. *Rows*: {prompt} random tokens each and {new} new ones, none of which ends a row.

{decoding}

With the games, chat and bookkeeping of a rollout the engine samples {play:,.0f} tokens/s.{skipped}

## An iteration, compared with TRL's `GRPOTrainer`

{iteration_on}

Episodes in groups of 8, all kept, at most {limit} tokens a reply; the same levels, messages and rewards. TRL
{trl_version}'s weights and AdamW are {dtype} throughout, its gradient checkpointing is off; the local trainer keeps its
sums in float32. TRL computes all episodes at once, or half of them: the faster one counts.{ended}

{iterations}

The ratios are of these machines, these tasks and short replies. The local trainer computes each distinct prefix once;
how much of a ratio that explains is not measured. Not measured either: GPUs.
"""

BANDIT: Settings = {
    "game": "Bandit",
    "turns": {"max_tokens_per_turn": 48, "example": False},
    "demonstrations": {"episodes": 320, "mistakes": 1.0, "thought": "choose"},
    "warm_start": {"epochs": 1, "batch": 8, "learning_rate": 1e-4},
    "training": {"groups": 8, "group_size": 8, "minibatch": 64, "filter": "none"},
}
"""The decoded task: 40 steps of imitation on 8 episodes each, then groups as in a training run; all groups are kept."""

LAKE: Settings = {
    "game": "FrozenLake",
    "env_options": {"size": 4, "success_rate": 1.0, "text_format": "coord"},
    "turns": {"max_turns": 5, "max_actions_per_turn": 2, "max_tokens_per_turn": 48, "example": False},
    "demonstrations": {"episodes": 96, "moves": [1.0], "thought": "relative"},
    "warm_start": {"epochs": 1, "batch": 8, "learning_rate": 1e-4},
    "training": {"groups": 1, "group_size": 8, "minibatch": 64, "filter": "none"},
}
"""Lakes without slip on which a reply plays one move, mostly, so that episodes have up to five turns."""

TASKS = {"Bandit, one turn": merged(BANDIT, {"training": {"groups": 4}}), "FrozenLake, five turns": LAKE}
"""The tasks of an iteration; small, as TRL takes half a minute for each on two cores."""

DECODED = (16, 64)
PROMPT, NEW = 16, 64
"""Tokens of the random prompts of plain decoding, and how many are decoded after each."""

Results = dict[str, Any]


def config_of(model: Path, task: Settings) -> Config:
    """The run, from a folder of weights."""
    settings = merged(default_settings(task["game"], str(model)), task)
    return with_settings(Config(), merged(settings, {"model": str(model)}))


def warm(model: Path, task: Settings, work: Path) -> Config:
    """The run from the model after a short imitation of demonstrations, made once."""
    folder = work / f"warm-{task['game']}"
    if not folder.is_dir():
        config = config_of(model, task)
        print(f"imitating {config.demonstrations.episodes} demonstrations of {config.game}", flush=True)
        warm_start(config, Policy.build(config), folder, Display(Console(quiet=True)))
    return config_of(folder, task)


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


def iteration(config: Config, runs: int, trl: Path, work: Path) -> Results:
    """Iterations of the local trainer in turns with steps of TRL's on the same levels.

    TRL computes all episodes at once, or half of them, each in turns with iterations of ours. A size whose process
    ends, say for its memory, is left out, with what it said.
    """
    played: Settings = {"warm_start": {"epochs": 0}, "training": {"iterations": runs + 1, "save_every": runs + 1}}
    config = with_settings(config, played | {"stops": {"sampled_tokens": 10**9}})  # never reached, but counted
    episodes = config.training.groups * config.training.group_size
    found: Results = {"episodes": episodes, "trl": {}, "ended": {}}
    ours = list[Results]()
    for size in (episodes // 2, episodes):
        try:
            found["version"], pairs = _in_turns(config, size, trl, work)
        except PeerError as error:
            found["ended"][str(size)] = str(error)
        else:
            ours += [mine for mine, _ in pairs]
            found["trl"][str(size)] = _medians([theirs for _, theirs in pairs])
        print(f"an iteration of {config.game}, micro-batches up to {size}: {found}", flush=True)
    if not found["trl"]:
        raise PeerError(f"TRL measured nothing on {config.game}: {found['ended']}")
    return found | {"ragen-agent": _medians(ours)}


def _in_turns(config: Config, size: int, trl: Path, work: Path) -> tuple[str, list[tuple[Results, Results]]]:
    """TRL's version, and pairs of our iterations and its steps without the first, in which both prepare themselves."""
    pairs = list[tuple[Results, Results]]()
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = RunFolder.create(Path(temporary) / "run", config)
        start = {"model": config.model, "run": str(folder.path), "out": f"{temporary}/trl", "micro_batch": size}
        start |= {"dtype": dtype_of(config), "steps": config.training.iterations}
        with Peer(trl, "trl", start, work / f"trl-{size}.log", cpu_threads(config)) as peer:

            def show(record: Mapping[str, Any]) -> None:
                pairs.append(({"seconds": record["seconds"], "tokens": record["sampled_tokens"]}, peer.ask({})))

            LocalBackend(config, Policy.build(config), folder).loop().run(show=show)
            return peer.version, pairs[1:]


def _medians(steps: Sequence[Results]) -> Results:
    return {key: statistics.median(step[key] for step in steps) for key in ("seconds", "tokens")}


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
    vllm, trl = ROOT / ".venv-openrlhf/bin/python", ROOT / "build/integrations/trl/bin/python"
    parser.add_argument("--vllm", type=Path, default=vllm, metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--trl", type=Path, default=trl, metavar="PYTHON", help="of an environment with TRL")
    work = Path("runs/benchmark-real-model")
    how = "measure only this one, and keep the other of the page in --out"
    parser.add_argument("--only", choices=("decode", "iteration"), help=how)
    parser.add_argument("--work", type=Path, default=work, metavar="DIR", help="folder of models and logs")
    options = parser.parse_args(argv)
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.only != "decode" and not options.trl.is_file():
        raise ValueError(f"--trl is {options.trl}, which does not exist: `make test-integrations ARGS=trl` makes it.")
    model = model_folder(options.model)
    config, results = warm(model, BANDIT, work), dict[str, Any](model=options.model)
    about = {
        "machine": machine("torch", "transformers") + (f"; {units}" if (units := bfloat16_units()) else ""),
        "dtype": dtype_of(config),
        "threads": cpu_threads(config),
        "runs": options.runs,
    }
    if options.only:
        results = json.loads((options.out / "real_model.json").read_text(encoding="utf-8"))
        if results["model"] != options.model:
            raise ValueError(f"--only keeps the other part, of {results['model']}: give --model {results['model']}.")
    if options.only != "iteration":
        results["decode"] = about | decode(config, options.runs, options.vllm, work)
    if options.only != "decode":
        configs = {name: warm(model, task, work) for name, task in TASKS.items()}
        tasks = {name: iteration(each, options.runs, options.trl, work) for name, each in configs.items()}
        results["iteration"] = about | {"tasks": tasks}
    write_results(options.out, "real_model", results, _page(results))
    return 0


def _page(results: Results) -> str:
    found, compared = results["decode"], results["iteration"]["tasks"]
    training, limit = BANDIT["training"], BANDIT["turns"]["max_tokens_per_turn"]
    rows = []
    for name in ("groups", *map(str, DECODED)):
        ours, theirs = found[name]["engine"], found[name].get("vllm")
        cells = [f"{theirs:,.0f}", f"{ours / theirs:.2f}"] if theirs else ["-", "-"]
        rows.append([name if name == "groups" else f"{name} rows", f"{ours:,.0f}", *cells])
    steps, ended = [], list[str]()
    for name, one in compared.items():
        ended += [
            f" On {name} a micro-batch of {size} was not measured: {why.partition(':')[0]}."
            for size, why in one["ended"].items()
        ]
        own, (size, fastest) = one["ragen-agent"], min(one["trl"].items(), key=lambda item: item[1]["seconds"])
        ratio = f"{fastest['seconds'] / own['seconds']:.1f}"
        shown = [f"{each['seconds']:.2f} s, {each['tokens']:,.0f} tokens" for each in (own, fastest)]
        others = [each for each in one["trl"] if each != size]
        batch = f"{size}, faster than {', '.join(others)}" if others else f"{size}, the only one measured"
        steps.append([name, str(one["episodes"]), *shown, batch, ratio])
    return PAGE.format(
        model=results["model"],
        dtype=results["iteration"]["dtype"],
        decoding_on=_measured_on(found),
        iteration_on=_measured_on(results["iteration"]),
        groups=f"{training['groups']} prompts of {found['prompt_tokens']:.0f} tokens, {training['group_size']} replies "
        f"to each of at most {limit}",
        prompt=PROMPT,
        new=NEW,
        decoding=markdown_table(["", "engine", "vLLM (eager)", "ratio"], rows),
        play=found["play"],
        skipped=f" vLLM was left out: {found['skipped']}." if found["skipped"] else "",
        limit=limit,
        ended="".join(ended),
        trl_version=next(iter(compared.values()))["version"],
        iterations=markdown_table(["task", "episodes", "ragen-agent", "TRL", "its micro-batch", "ratio"], steps),
    )


def _measured_on(part: Mapping[str, Any]) -> str:
    runs = f"medians of {part['runs']}" if part["runs"] > 1 else "one measurement of each, by micro-batch"
    return f"In {part['dtype']} on {part['threads']} threads; {runs}. Machine: {part['machine']}."


if __name__ == "__main__":
    raise SystemExit(main())
