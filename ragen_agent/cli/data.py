"""``ragen-agent data``: write the prompt dataset that a run plays, to look at it or to give it to several runs."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["add"]

ABOUT = """\
Writes the prompt dataset of a run as lines of {"prompt", "label"}: the label says which level of which game is played,
with which options, and all samples of a prompt share it. Levels are fresh in every iteration and of the split train
alone. It is what ragen-agent train --backend openrlhf writes by itself; the same settings give the same lines. A run
takes a file instead with --set openrlhf.prompts=FILE.

examples:
  ragen-agent data --game Sokoban --out prompts.jsonl
  ragen-agent data --game Sokoban --mix Sokoban=2,FrozenLake=1 --iterations 50 --out prompts.jsonl
  ragen-agent data --recipe qwen2.5-0.5b-sokoban --seed 1 --out prompts.jsonl
  ragen-agent data --config run/config.toml --out prompts.jsonl --json"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    from ragen_agent.cli.settings import add_settings

    parser = commands.add_parser("data", help="write the levels that a distributed run plays", description=ABOUT)
    parser.set_defaults(run=_run, model=None)
    parser.add_argument("--recipe", metavar="NAME", help="settings by name; see ragen-agent train --list-recipes")
    parser.add_argument(
        "--mix", metavar="GAME=WEIGHT,...", help="several games, drawn by weight; options in [[games]] of --config"
    )
    parser.add_argument("--iterations", type=int, metavar="N", help="iterations of the run (default: the settings')")
    parser.add_argument("--groups", type=int, metavar="N", help="prompts of an iteration (default: the settings')")
    parser.add_argument("--seed", type=int, metavar="N", help="of the levels (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file of JSON lines")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    add_settings(parser)


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.cli.settings import check_not_distributed, configure, given
    from ragen_agent.openrlhf.prompt_dataset import check_rows, train_rows, write_rows
    from ragen_gym.core.storage import check_parent

    check_not_distributed(options)
    flags = {**given(options, "seed"), "training": given(options, "iterations", "groups")}
    if options.mix:
        flags["games"] = _games(options.mix)
    config = configure(options, flags)
    check_parent(options.out)
    if options.out.exists():
        raise ValueError(f"--out {options.out} exists; choose another name, or remove it.")
    rows = list(train_rows(config))
    check_rows(rows, config)
    write_rows(options.out, rows)
    games = dict(sorted(Counter(row.game for row in rows).items()))
    if options.json:
        training = config.training
        content = {"file": str(options.out), "rows": len(rows), "iterations": training.iterations, "games": games}
        print(json.dumps(content | {"groups": training.groups, "seed": config.seed, "split": "train"}))
    else:
        shares = ", ".join(f"{game} {count}" for game, count in games.items())
        print(
            f"{options.out}: {len(rows)} levels of the split train, {config.training.groups} for each of "
            f"{config.training.iterations} iterations ({shares}); seed {config.seed}."
        )
    return 0


def _games(mix: str) -> list[dict[str, Any]]:
    """Tables for ``Config.games``; raises a ValueError for what is no GAME=WEIGHT."""
    from ragen_gym.games.registry import full_name

    games: list[dict[str, Any]] = []
    for part in mix.split(","):
        name, equals, weight = part.partition("=")
        try:
            number = float(weight)
        except ValueError:
            number = 0.0
        if not equals or not number > 0:
            raise ValueError(f"--mix {part!r} is no game and weight; give them such as Sokoban=2,FrozenLake=1.")
        games.append({"game": full_name(name.strip()), "weight": number})
    return games
