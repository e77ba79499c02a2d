"""Gradients of advantage estimators, compared with the exact policy gradient: ``python -m benchmarks.credit``.

A small model is trained on a game by GRPO, with replies without thoughts and prompts of the current turn alone, so that
``ragen_agent.exact`` gives its exact policy gradient and the true advantage of each token. At three moments of training
it plays batches of episodes on eight fixed levels, and ``benchmarks.credit_bench`` compares the estimators on them.

Records are kept in ``credit.jsonl``, one for each game, moment and batch size; a command that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import page_parser, read_records
from benchmarks.credit_bench import CRITICS, GROUP_SIZE, LEAST, ROWS, Bench
from benchmarks.credit_page import write_page
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local.run import TrainingRun
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.parameters import adamw
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.update.batches import Batch
from ragen_gym.core.console import ProgressBar, rich_console
from ragen_gym.core.storage import append_json_lines

_LAKE: Settings = {
    "env_options": {"size": 3, "min_path": 2},
    "turns": {"max_turns": 2, "max_actions_per_turn": 2, "max_actions": 4},
    "demonstrations": {"episodes": 6000, "moves": [0.6, 0.4]},
    "training": {"iterations": 20},
}
GAMES: dict[str, tuple[str, Settings, float]] = {
    "lake": ("FrozenLake", _LAKE, 1e-2),
    "slippery lake": ("FrozenLake", merged(_LAKE, {"env_options": {"success_rate": 0.8}}), 1e-2),
    "sokoban": (
        "Sokoban",
        {
            "env_options": {"size": 5, "max_moves": 4},
            "turns": {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6},
            "demonstrations": {"episodes": 16000, "moves": [0.6, 0.4]},
            "training": {"iterations": 60},
        },
        1e-2,
    ),
    "bandit": ("Bandit", {"env_options": {"names": "ragen-v1"}, "demonstrations": {"episodes": 3000}}, 1e-4),
}
"""Game, settings, and the mass that its reply trees may leave out. A bandit's policy soon does one thing: the little
that is left of its gradient comes from unlikely replies."""
IDEAL_MASS = 1e-2
#: Short replies at a low temperature have small trees.
_SHORT: Settings = {
    "turns": {"think": False, "history": 0, "max_tokens_per_turn": 6},
    "demonstrations": {"thought": "none"},
    "training": {"temperature": 0.7},
    "evaluation": {"levels": 32},
}

EXACT = "exact gradient"
MOMENTS = ("start", "middle", "end")

LEVELS = 8
BATCHES = {1: 20, 4: 20, 16: 20, 64: 6}
"""Groups of a batch, and batches."""
CRITIC_GROUPS = 64


def config_of(game: str, changes: Settings | None = None) -> Config:
    """The settings of a game's run."""
    name, settings, _ = GAMES[game]
    found = merged(default_settings(name), _SHORT)
    return with_settings(Config(game=name), merged(merged(found, settings), changes or {}))


def trained(game: str, folder: Path, changes: Settings | None = None) -> dict[str, Path]:
    """Checkpoints of a run after the warm start, at half of its iterations and at its end; trained if missing."""
    found = dict(zip(MOMENTS, (folder / "warm", folder / "middle", folder / "checkpoint"), strict=True))
    if not all(each.is_dir() for each in found.values()):
        config = config_of(game, changes)
        run_folder = RunFolder(folder) if folder.exists() else RunFolder.create(folder, config)
        run = TrainingRun(config, run_folder, Display(rich_console(stderr=True)))
        run.warm_start()

        def keep(done: int) -> None:
            if done == config.training.iterations // 2:
                save_checkpoint(run.policy.model, run.policy.tokenizer, found["middle"])

        run.reinforce(keep)
    return found


def records_of(
    game: str,
    moment: str,
    checkpoints: Callable[[], Mapping[str, Path]],
    options: argparse.Namespace,
    done: Mapping[tuple[Any, ...], set[str]],
    bar: ProgressBar,
) -> None:
    """Measure one policy by the estimators that are not ``done`` with batches of a size, and keep the records.

    ``checkpoints`` trains them where they are missing; nothing is trained where every record is there.
    """
    missing = {
        size: [name for name in ROWS if name not in done.get((game, moment, size), ())] for size in options.batches
    }
    if not any(missing.values()):
        return
    bench = Bench(Policy.build(config_of(game), checkpoints()[moment]), range(options.levels), GAMES[game][2])
    if (game, moment, None) not in done:
        where = {"game": game, "moment": moment}
        append_json_lines(options.records, [_short(where | _facts(bench) | {"critic": options.critic * GROUP_SIZE})])
    if any(CRITICS.intersection(names) for names in missing.values()):
        bench.fit_critics(bench.play(options.critic, 0))
    played = bench.play(max(size * number for size, number in options.batches.items()), 1)
    for size, names in missing.items():
        step = size * GROUP_SIZE
        batches = [played[step * place : step * (place + 1)] for place in range(options.batches[size])]
        if names:
            found = bench.measure(batches, names, bar.advance)
            append_json_lines(options.records, [_short({"game": game, "moment": moment, "groups": size, **found})])


def _short(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose numbers have six digits, in half of the space."""
    found: dict[str, Any] = json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.6g}"))
    return found


def _facts(bench: Bench) -> dict[str, Any]:
    values = {name: np.mean([each.of(name) for each in bench.found], 0).tolist() for name in ("success", "return")}
    states = [state for each in bench.found for state in each.states]
    weights = np.array([state.weight for state in states])
    return values | {
        "parameters": len(bench.truth),
        "levels": len(bench.seeds),
        "mass": bench.mass,
        "size": GROUP_SIZE,
        "least": LEAST,
        "left_out": float(weights @ [state.tree.left_out for state in states] / weights.sum()),
        "gradient": float(bench.truth.norm()),
    }


def ideal(
    game: str,
    checkpoints: Callable[[], Mapping[str, Path]],
    options: argparse.Namespace,
    done: set[tuple[Any, ...]],
    bar: ProgressBar,
) -> None:
    """Steps of AdamW along the exact gradient, and along those of GRPO and Dr. GRPO, from one start."""
    for method in (EXACT, "grpo", "dr_grpo"):
        if (method, options.steps) in done:
            continue
        policy, records = Policy.build(config_of(game), checkpoints()["start"]), []
        settings = policy.config.training
        optimiser = adamw(policy.model, settings.learning_rate, weight_decay=0.0)
        for step in range(options.steps + 1):
            bench = Bench(policy, range(options.levels), IDEAL_MASS)
            total = np.mean([each.of("return") for each in bench.found], 0).tolist()
            records.append({"method": method, "step": step, "return": total, "game": game})
            records[-1] |= {"levels": options.levels, "batch": options.ideal_groups}
            gradient = bench.truth
            if method != EXACT:
                played = bench.play(options.ideal_groups, 2 + step)
                batch = Batch.of(played)
                gradient = bench.gradients(batch, {method: bench.advantages(method, played, batch)[1]})[method]
            _climb(policy, optimiser, gradient, settings.max_grad_norm)
            bar.advance()
        append_json_lines(options.records, records)


def _climb(policy: Policy, optimiser: torch.optim.Optimizer, gradient: Tensor, longest: float) -> None:
    parameters = [each for each in policy.model.parameters() if each.requires_grad]
    for each, part in zip(parameters, (-gradient).split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view_as(each).clone()
    torch.nn.utils.clip_grad_norm_(parameters, longest)
    optimiser.step()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write the page."""
    parser = page_parser("credit", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/credit"), metavar="DIR", help="folder of the trainings")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES), metavar="NAME", help=", ".join(GAMES))
    parser.add_argument("--levels", type=int, default=LEVELS, help=f"levels of a game (default {LEVELS})")
    parser.add_argument(
        "--steps", type=int, default=0, help="steps of the ideal run, on the first of --games (default 0)"
    )
    parser.add_argument("--quick", action="store_true", help="a check in minutes: small batches after a short training")
    options = parser.parse_args(arguments)
    if options.levels < 1 or options.steps < 0:
        parser.error(f"--levels is {options.levels} and --steps {options.steps}; give at least 1 level and 0 steps.")
    torch.set_num_threads(1)
    options.batches, options.critic, options.ideal_groups = BATCHES, CRITIC_GROUPS, 32
    if options.quick:
        options.batches, options.critic, options.ideal_groups = {1: 4, 4: 4}, 4, 4
    options.records = options.out / "credit.jsonl"
    _measure(options)
    write_page(options.out, read_records(options.records))
    return 0


def _measure(options: argparse.Namespace) -> None:
    records = read_records(options.records)
    asked = {"levels": options.levels, "critic": options.critic * GROUP_SIZE}
    for each in records:
        if other := [f"{name} {each[name]}" for name, value in asked.items() if each.get(name, value) != value]:
            raise SystemExit(f"{options.records} has records with {', '.join(other)}: give these, or another --out.")
    done: dict[tuple[Any, ...], set[str]] = {}
    for each in records:
        if "moment" in each:
            done.setdefault((each["game"], each["moment"], each.get("groups")), set()).update(
                each.get("estimators", ())
            )
    curves = {(each["method"], each["step"]) for each in records if "method" in each}
    quick = {"demonstrations": {"episodes": 1000}, "training": {"iterations": 2, "groups": 4}} if options.quick else {}
    folder = options.runs / "quick" if options.quick else options.runs
    runs = {game: partial(trained, game, folder / game.replace(" ", "-"), quick) for game in options.games}
    total = len(runs) * len(MOMENTS) * sum(options.batches.values())
    before = [key[2] for key, names in done.items() if key[0] in runs and names.issuperset(ROWS)]
    with ProgressBar("batches", total, done=sum(options.batches.get(size, 0) for size in before)) as bar:
        for game, checkpoints in runs.items():
            for moment in MOMENTS:
                records_of(game, moment, checkpoints, options, done, bar)
    if options.steps:
        with ProgressBar("steps", 3 * (options.steps + 1)) as bar:
            game = options.games[0]
            ideal(game, runs[game], options, curves, bar)


if __name__ == "__main__":
    raise SystemExit(main())
