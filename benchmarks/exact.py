"""Exact evaluation next to sampled evaluation, at the same precision: ``python -m benchmarks.exact``.

A small model is warm-started and trained by reinforcement for a while, with replies without thoughts and prompts of the
current turn alone. Its success on the test levels is computed by ``ragen_agent.exact`` and estimated from episodes.
Costs are tokens that the model reads or samples, and seconds of CPU time on one thread, without loading the model. The
number of episodes that would reach the precision of the exact interval follows from the variance of an episode on each
level. Written are ``exact.json`` and ``exact.md``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine, markdown_table, page_parser, write_results
from ragen_agent.cli import main as ragen_agent
from ragen_agent.config import Config
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import solve
from ragen_agent.exact.reply_tree import ReplyTexts
from ragen_agent.exact.results import REFERENCES, references
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance
from ragen_gym.envs.turn import TurnEnv

TRAINED = {
    "turns.think": "false",
    "turns.history": "0",
    "turns.max_tokens_per_turn": "12",
    "demonstrations.thought": "none",
    "demonstrations.episodes": "6000",
    "training.iterations": "40",
    "evaluation.levels": "64",
}
MASSES = (1e-1, 1e-2, 1e-3, 1e-4)
COARSE, COMPARED = 1e-2, 1e-3
TOGETHER = 16
Z = 1.96

PAGE = """\
# Exact evaluation

Written by `python -m benchmarks.exact`. The success of one policy on {levels} test levels, computed by
[`ragen-agent exact`](../docs/guides/exact_values.md) and estimated from episodes, at temperature {temperature:g}.
Tokens of exact evaluation are all that the model reads, prompts included; tokens of episodes are the sampled ones
alone. Seconds are CPU time on one thread, without loading the model.

Machine: {machine}.
The small model of {parameters:,} parameters after a short training by reinforcement; FrozenLake 4x4 without slip, two
turns, replies of at most {room} tokens. On these levels random moves solve {random:.1f} %, the blind script
{blind:.1f} % and optimal play {optimal:.1f} %, all computed.

{table}

{episodes} episodes a level: {sampled:.2f} %, {sampled_tokens:,.0f} tokens and {sampled_seconds:.3f} s a level. This
leaves a 95 % interval of ± {sampled_half:.2f} points for the mean over these levels, and of up to ± {level_half:.1f}
points for a single level.

**The same precision by sampling.** At mass {mass:g} the exact interval of the mean is {width:.3f} points wide. By the
variance p (1 - p) of an episode on each level, a 95 % interval of that width needs {needed:,.0f} episodes a level:
{ratio_tokens:,.0f} times the tokens and {ratio_seconds:,.0f} times the seconds, extrapolated from the episodes above.
An interval of that width for the single level with the highest variance needs {needed_level:,.0f} episodes.

The factor depends on the precision. At mass {coarse_mass:g} the exact interval is {coarse_width:.2f} points wide, and
episodes need {coarse_tokens:.1f} times the tokens and {coarse_seconds:.1f} times the seconds for the same width.

[Level by level](exact_episodes.md) the computed success is compared with many more episodes.

**For the success of a split exact values save little.** All above is of these levels. As a sample of their split they
leave ± {split_half:.1f} points (95 %), however exact each of them is. A single episode on each of
{split_levels:,.0f} levels leaves as much. Exact values pay where the levels are fixed: to compare policies, and for
single levels and tokens.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    parser = page_parser("exact", __doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/exact"), metavar="DIR", help="trained where missing")
    parser.add_argument("--levels", type=int, default=256, metavar="N", help="levels (default 256)")
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="episodes of a level (default 64)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = _measure(trained(options.run), options.levels, options.episodes)
    write_results(options.out, "exact", results, _page(results))
    return 0


def trained(run: Path) -> Path:
    """The folder of the run, trained to its end if it is not."""
    if not (run / "checkpoint").is_dir():
        settings = [part for name, value in TRAINED.items() for part in ("--set", f"{name}={value}")]
        where = ["--resume", str(run)] if run.exists() else ["--out", str(run), *settings]
        if code := ragen_agent(["train", *where]):
            raise SystemExit(code)
    return run


def _measure(run: Path, count: int, episodes: int) -> dict[str, Any]:
    folder, config = RunFolder.reopen(run)
    policy = Policy.build(config, folder.checkpoint)
    env, instances = evaluated_levels(replace(config, evaluation=replace(config.evaluation, levels=count)))
    assert isinstance(env, TurnEnv)
    results: dict[str, Any] = {
        "machine": machine("torch", "transformers"),
        "parameters": policy.model.num_parameters(),
        "temperature": config.evaluation.temperature,
        "room": config.turns.max_tokens_per_turn,
        "levels": count,
        "episodes": episodes,
        "references": _references(env, instances, policy.chat, config),
        "exact": [],
    }
    middle = np.zeros(count)
    for mass in MASSES:
        begun = time.process_time()
        reader = TreeReader(policy.model, len(policy.tokenizer), config.evaluation.temperature)
        texts = ReplyTexts(policy.chat, think=False, known_form=True)
        found = []
        for first in range(0, count, TOGETHER):
            levels = [ExactLevel(env, policy.chat, config.turns, each) for each in instances[first : first + TOGETHER]]
            found += solve(reader, levels, mass=mass, texts=texts)
        values = np.array([each.of("success") for each in found])
        results["exact"].append(
            {
                "mass": mass,
                "success": values.mean(0).tolist(),
                "tokens": reader.tokens / count,
                "seconds": (time.process_time() - begun) / count,
                "states": float(np.mean([len(each.states) for each in found])),
            }
        )
        middle = values.mean(1)
        print(results["exact"][-1], flush=True)
    results["variance"] = (middle * (1 - middle)).tolist()
    begun = time.process_time()
    processes = policy.processes(config.evaluation.split, config.evaluation.batch)
    many = [Instance(each.seed, noise * count + at) for at, each in enumerate(instances) for noise in range(episodes)]
    played = policy.play(processes, many, config.evaluation.temperature, 0)
    results["sampled"] = {
        "success": float(np.mean([t.success for t in played])),
        "tokens": sum(int(t.sampled.sum()) for t in played) / count,
        "seconds": (time.process_time() - begun) / count,
    }
    print(results["sampled"], flush=True)
    return results


def _references(env: TurnEnv, instances: Sequence[Instance], chat: ChatFormat, config: Config) -> dict[str, float]:
    """Exact success of random moves, the blind script and optimal play, averaged over the levels."""
    found = [references(ExactLevel(env, chat, config.turns, each)) for each in instances]
    return {name: float(np.mean([each[name] for each in found])) for name in REFERENCES}


def _same_width(results: dict[str, Any], mass: float) -> dict[str, float]:
    """Sampling to the width of the exact interval at this mass: episodes, and the ratios of tokens and seconds."""
    episodes, sampled, variance = results["episodes"], results["sampled"], np.array(results["variance"])
    exact = next(each for each in results["exact"] if each["mass"] == mass)
    half = (exact["success"][1] - exact["success"][0]) / 2
    needed = Z**2 * variance.mean() / (len(variance) * half**2)
    return {
        "width": 200 * half,
        "needed": needed,
        "needed_level": Z**2 * variance.max() / half**2,
        "tokens": sampled["tokens"] / episodes * needed / exact["tokens"],
        "seconds": sampled["seconds"] / episodes * needed / exact["seconds"],
    }


def _page(results: dict[str, Any]) -> str:
    variance, episodes, sampled = np.array(results["variance"]), results["episodes"], results["sampled"]
    compared = next(each for each in results["exact"] if each["mass"] == COMPARED)
    fine, coarse = _same_width(results, COMPARED), _same_width(results, COARSE)
    middle = sum(compared["success"]) / 2
    whole = middle * (1 - middle)  # the variance of one episode on a level drawn anew
    between = whole - variance.mean()
    rows = []
    for each in results["exact"]:
        low, high = (f"{100 * end:.3f}" for end in each["success"])
        costs = f"{each['tokens']:,.0f}", f"{each['seconds']:.3f}", f"{each['states']:.1f}"
        rows.append([f"{each['mass']:g}", f"{low} to {high}", *costs])
    head = ("mass left out", "success, %", "tokens a level", "seconds a level", "states a level")
    return PAGE.format(
        **{name: results[name] for name in ("machine", "parameters", "temperature", "room", "levels", "episodes")},
        **{name: 100 * rate for name, rate in results["references"].items()},
        table=markdown_table(head, rows),
        sampled=100 * sampled["success"],
        sampled_tokens=sampled["tokens"],
        sampled_seconds=sampled["seconds"],
        sampled_half=100 * Z * (variance.mean() / (len(variance) * episodes)) ** 0.5,
        level_half=100 * Z * (variance.max() / episodes) ** 0.5,
        mass=COMPARED,
        width=fine["width"],
        needed=fine["needed"],
        needed_level=fine["needed_level"],
        ratio_tokens=fine["tokens"],
        ratio_seconds=fine["seconds"],
        coarse_mass=COARSE,
        coarse_width=coarse["width"],
        coarse_tokens=coarse["tokens"],
        coarse_seconds=coarse["seconds"],
        split_half=100 * Z * (between / len(variance)) ** 0.5,
        split_levels=len(variance) * whole / between,
    )


if __name__ == "__main__":
    raise SystemExit(main())
