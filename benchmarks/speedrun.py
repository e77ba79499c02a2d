"""The least CPU seconds, and the fewest tokens, until a model solves lakes: ``python -m benchmarks.speedrun FILE``.

Runs ``FILE --seed SEED --out DIR`` for each seed that it draws, loads what was saved, plays 256 held-out lakes with it
and replays the moves. ``--record WORDS`` adds the run to the page, or goes on with a run of these words that was
stopped between two seeds, by the same file and with the seeds that were drawn. A seed that is refused, or was begun
and did not end, ends it. ``--verify`` replays all runs of the page. Without FILE the page is written from its records.
What follows ``--`` goes to FILE.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks import machine, page_parser, read_results, write_results
from benchmarks.shortcuts import walked
from benchmarks.speedrun_checks import check_replies, check_spellings, check_tokenizer
from benchmarks.speedrun_page import GOAL, SEEDS, page, records
from ragen_agent import ChatFormat, TokenMDP, Trajectory
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.models.checkpoint import load_checkpoint
from ragen_agent.tokens.rollout import Instance, play
from ragen_gym import make_turn
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.storage import locked_folder
from ragen_gym.envs.policies import blind_value, random_value
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.frozen_lake import FrozenLake

LAKES = 256
TOKENS, TEMPERATURE = 24, 0.5  # of a reply at most; of sampling
FIXED = "LLUUULDDDR"  # a plan that no board changes; no other of ten moves that was searched solved more training lakes
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")
Plans = list[list[list[int]]]
"""Ids of the moves of each turn of each lake."""


def make_env(split: str) -> TurnEnv:
    """The task: 4 x 4 lakes without slip that the blind script loses, in two replies of at most five moves each."""
    lake: dict[str, Any] = {"size": 4, "success_rate": 1.0, "min_path": 3, "beyond_blind": True}
    return make_turn("FrozenLake", split=split, max_turns=2, max_actions_per_turn=5, max_actions=10, **lake)


def calibration() -> dict[str, float]:
    """User seconds of a fixed matrix product and of a fixed Python loop, on one core."""
    left = torch.linspace(0, 1, 2**20).view(1024, 1024)

    def product() -> None:
        for _ in range(24):
            left @ left

    def loop() -> None:
        total = 0
        for number in range(24_000_000):
            total += number & 7

    torch.set_num_threads(1)
    return {"product": _user_seconds(product), "loop": _user_seconds(loop)}


def _user_seconds(work: Callable[[], None]) -> float:
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun


def submitted(file: Path, seed: int, out: Path, arguments: Sequence[str] = ()) -> float:
    """User seconds of a submission, from the start of its process to its end, with those of its children.

    Raises:
        ValueError: it failed.
    """
    one_core = dict.fromkeys(THREADS, "1") | {"TOKENIZERS_PARALLELISM": "false"}
    command = child_python(str(file.resolve()), "--seed", str(seed), "--out", str(out), *arguments)
    with (out / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=out, env=child_environment() | one_core)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = "\n".join((out / "log.txt").read_text(errors="replace").splitlines()[-5:])
        raise ValueError(
            f"{file.name} --seed {seed} ended with exit code {process.returncode}, where 0 is needed:\n{end}"
        )
    return usage.ru_utime


def ledger(out: Path) -> dict[str, int]:
    """A submission's report of its training: ``sampled_tokens``, ``shown_tokens`` and ``lakes``.

    Raises:
        ValueError: a file is missing or not of its form, or a lake belongs to another split than ``train``.
    """
    try:
        tokens, lakes = json.loads((out / "ledger.json").read_text()), np.load(out / "lakes.npy", allow_pickle=False)
    except Exception as error:  # the readers' own, of whatever it wrote
        raise ValueError(f"{out}: a submission writes ledger.json and lakes.npy: {error!r}") from None
    game, counts = make_env("train").game, ("sampled_tokens", "shown_tokens")
    known = isinstance(tokens, dict) and set(tokens) == set(counts)
    if not known or not all(type(each) is int and each >= 0 for each in tokens.values()):
        raise ValueError(f"ledger.json holds {tokens}; give the counts sampled_tokens and shown_tokens, from 0 on.")
    width = len(game.generate(np.zeros(1, np.uint64), "train")[0])
    if not isinstance(lakes, np.ndarray):
        raise ValueError("lakes.npy holds several arrays; give one, written by np.save.")
    if lakes.dtype != np.uint8 or lakes.ndim != 2 or lakes.shape[1] != width:
        raise ValueError(f"lakes.npy holds {lakes.dtype} {lakes.shape}; give uint8 (lakes, {width}), as game.generate.")
    foreign = [lake for lake in lakes if game.split_of(lake.tobytes()) != "train"]
    if foreign:
        shown = game.level(foreign[0].tobytes()).text.replace("\n", "/")
        raise ValueError(
            f"{len(foreign)} of the {len(lakes)} lakes that it trained on are held out, the first is {shown}; "
            "train on lakes of the split train."
        )
    return {**tokens, "lakes": len(lakes)}


def held_out(seed: int, count: int = LAKES, split: str = "test") -> tuple[TurnEnv, list[Instance]]:
    """The environment of a split, and ``count`` different lakes of it, drawn by ``seed``."""
    env, rng = make_env(split), np.random.default_rng(seed)
    lakes: dict[str, Instance] = {}
    while len(lakes) < count:
        instance = Instance(int(rng.integers(2**40)), 0)
        lakes.setdefault(env.reset(seed=instance.seed)[1]["level_id"], instance)
    return env, list(lakes.values())


def played(folder: Path, env: TurnEnv, instances: Sequence[Instance], seed: int) -> tuple[Plans, float, float]:
    """The moves of a checkpoint on these lakes, its share of solved ones, and that of random weights in its shape.

    The checkpoint is read by transformers' own classes: no code of a submission runs. Its replies are played once more
    in another environment.

    Raises:
        ValueError: a checkpoint that cannot be read, a tokenizer that rewrites texts, an id that spells two moves, a
            reply with more moves than ids, or a replay with another result.
    """
    model, tokenizer = load_checkpoint(folder)
    check_tokenizer(tokenizer)
    chat, split = ChatFormat.from_tokenizer(tokenizer), str(env.env.split)

    def episodes(player: PreTrainedModel) -> list[Trajectory]:
        engine = TorchEngine(player, chat.stop_ids, len(tokenizer))
        processes = [TokenMDP(make_env(split), chat, max_tokens_per_turn=TOKENS) for _ in instances]
        return play(engine, processes, instances, temperature=TEMPERATURE, seed=seed)

    trajectories = episodes(model)
    written = {int(token) for trajectory in trajectories for token in trajectory.ids[trajectory.sampled]}
    check_spellings({token: str(tokenizer.decode([token])) for token in written}, env.action_names)
    for trajectory in trajectories:
        check_replies(trajectory, env.action_names)
    replies = [[m["content"] for m in each.messages if m["role"] == "assistant"] for each in trajectories]
    plans, solved = _replayed(env, instances, replies)
    for trajectory, again in zip(trajectories, solved, strict=True):
        if trajectory.success != again:
            raise ValueError(f"the replay of level {trajectory.level_id} has another result than its episode.")
    torch.manual_seed(seed)
    untrained = AutoModelForCausalLM.from_config(model.config, trust_remote_code=False).eval()
    untrained.generation_config = model.generation_config
    return plans, fmean(solved), fmean(each.success for each in episodes(untrained))


def _replayed(
    env: TurnEnv, instances: Sequence[Instance], replies: Sequence[Sequence[str]]
) -> tuple[Plans, list[bool]]:
    """The moves of replies as the environment played them, and the success of each episode."""
    plans, solved = Plans(), []
    for instance, texts in zip(instances, replies, strict=True):
        _, info = env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        plans.append([])
        for text in texts:
            *_, info = env.step(text)
            plans[-1].append(list(info["actions"]))
        solved.append(bool(texts) and info["success"])
    return plans, solved


def measured(source: bytes, seed: int, arguments: Sequence[str] = (), split: str = "test") -> dict[str, Any]:
    """One seed of a submission: trained, checked and played on lakes that are drawn after it ended; for JSON.

    ``source``, the content of its file, runs as a new copy that lies alone in a folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "submission.py", Path(folder) / "out"
        file.write_bytes(source)
        out.mkdir()
        before, seconds = calibration(), submitted(file, seed, out, arguments)
        after, counts, lakes = calibration(), ledger(out), secrets.randbelow(2**31)
        env, instances = held_out(lakes, split=split)
        plans, solved, start = played(out / "model", env, instances, lakes)
    calibrated = {name: round((before[name] + after[name]) / 2, 3) for name in before}
    moves = ["/".join("".join(env.action_names[move][0] for move in turn) for turn in plan) for plan in plans]
    figures = {"seed": seed, "seconds": round(seconds, 2), **calibrated, **counts, "solved": solved, "start": start}
    return {**figures, "references": _references(env, instances), "lakes_seed": lakes, "moves": moves}


def _references(env: TurnEnv, instances: Sequence[Instance]) -> dict[str, float]:
    """Shares of the lakes that scripts solve within the moves of an episode."""
    game, found = env.game, list[list[float]]()
    assert isinstance(game, FrozenLake)
    for instance in instances:
        env.reset(seed=instance.seed)
        board, most = bytes(env.env.state[0]), env.max_actions
        walkers = [walked(game, board, most, forward=forward) for forward in (False, True)]
        optimal = env.solution().success(*env.env.state, most)
        plans = random_value(env.env, most)[0], blind_value(env.env, most)[0], _fixed(env)
        found.append([*plans, *walkers, optimal])
    means = np.mean(found, 0).round(4).tolist()
    return dict(zip(("random", "blind", "fixed plan", "walker", "forward walker", "optimal"), means, strict=True))


def _fixed(env: TurnEnv) -> float:
    """1 if the fixed plan solves the lake that was reset, else 0."""
    info: dict[str, Any] = {}
    for move in FIXED:
        *_, ended, _, info = env.env.step([name[0] for name in env.action_names].index(move))
        if ended:
            break
    return float(info["success"])


def verify(run: dict[str, Any]) -> None:
    """Replays the moves of a recorded run.

    Raises:
        ValueError: they do not solve the share of lakes that the run claims.
    """
    for record in run["seeds"]:
        env, instances = held_out(record["lakes_seed"], len(record["moves"]))
        names = {name[0]: name for name in env.action_names}
        turns = [plan.split("/") for plan in record["moves"]]
        replies = [["<think></think>" + write_reply([names[move] for move in turn]) for turn in each] for each in turns]
        solved = fmean(_replayed(env, instances, replies)[1])
        if solved != record["solved"]:
            raise ValueError(
                f"{run['what']}, seed {record['seed']}: {record['solved']:.1%} claimed, {solved:.1%} solved."
            )


def continued(runs: Sequence[dict[str, Any]], run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run of these words that was stopped before its last seed, or None.

    Raises:
        ValueError: it was begun with another file, other options or on another machine.
    """
    for begun in runs:
        if begun["what"] == run["what"] and len(begun["seeds"]) < SEEDS and "refused" not in begun:
            if changed := [name for name, value in run.items() if begun.get(name) != value]:
                raise ValueError(
                    f"the run {run['what']!r} has {len(begun['seeds'])} of {SEEDS} seeds and was begun with another "
                    f"{' and '.join(changed)}; go on with the same, or begin a run with other words."
                )
            return begun
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 for a submission that is refused or solves too few lakes."""
    parser = page_parser("speedrun", __doc__)
    parser.add_argument("file", nargs="?", type=Path, help="the submission")
    parser.add_argument(
        "--number", type=int, choices=range(1, SEEDS + 1), help=f"seeds to train (default: those left of {SEEDS})"
    )
    parser.add_argument("--record", metavar="WORDS", help="add the run to the page, with what changed")
    parser.add_argument("--split", default="test", choices=("test", "validation"), help="of the lakes played")
    parser.add_argument("--verify", action="store_true", help="replay the runs of the page")
    words = [*(sys.argv[1:] if argv is None else argv), "--"]
    own, arguments = words[: words.index("--")], words[words.index("--") + 1 : -1]
    options = parser.parse_args(own)
    if options.record and options.split != "test":
        parser.error("a record is played on lakes of the split test: leave out --record or --split.")
    if options.file and not options.file.is_file():
        parser.error(f"there is no file {options.file}.")
    writing = options.record or not options.file
    try:
        with locked_folder(options.out) if writing else nullcontext():  # two recorders would lose a run
            return _run(options, arguments)
    except ValueError as error:
        parser.error(str(error))


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    results = read_results(options.out, "speedrun") or {"runs": []}
    for recorded in results["runs"] if options.verify else ():
        verify(recorded)
    if not options.file:
        if results["runs"]:
            write_results(options.out, "speedrun", results, page(results))
        return 0
    source = options.file.read_bytes()  # once: what is hashed is what each seed runs
    digest = hashlib.sha256(source).hexdigest()
    about = {"what": options.record, "arguments": arguments, "machine": machine("torch"), "file": digest}
    begun = continued(results["runs"], about) if options.record else None
    run = begun or about | {"drawn": [secrets.randbelow(2**31) for _ in range(SEEDS)], "seeds": []}
    if options.record and not begun:
        results["runs"].append(run)

    def keep() -> None:
        if options.record:
            write_results(options.out, "speedrun", results, page(results))

    keep()  # with the seeds that were drawn, which a runner that is killed would else draw anew
    # The game is compiled here, once, or the first submission's time would hold it.
    make_env("train").game.generate(np.arange(2**15, dtype=np.uint64), "train")
    for seed in run["drawn"][len(run["seeds"]) :][: options.number]:
        run["refused"] = f"seed {seed}: begun and not ended"
        keep()  # a submission could else kill its runner on a bad seed and try it again
        try:
            run["seeds"].append(measured(source, seed, arguments, options.split))
        except Exception as error:  # of any kind: what a submission wrote can break each reader in its own way
            shown = str(error) if isinstance(error, ValueError) else repr(error)
            run["refused"] = f"seed {seed}: {shown}"
            keep()
            print(f"refused: {shown}", file=sys.stderr)
            return 1
        del run["refused"]
        print({name: each for name, each in run["seeds"][-1].items() if name != "moves"}, flush=True)
        keep()
    solved, seconds = (fmean(each[name] for each in run["seeds"]) for name in ("solved", "seconds"))
    needed = f"{GOAL:.0%} needed at the lower end of {SEEDS} seeds"
    print(f"{solved:.1%} solved on average, {needed}; {seconds:.1f} s")
    return int(solved < GOAL or (len(run["seeds"]) >= SEEDS and not records([run])))


if __name__ == "__main__":
    sys.exit(main())
