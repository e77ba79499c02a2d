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
  ragen-agent data --game Sokoban --set training.iterations=50 --out prompts.jsonl
  ragen-agent data --recipe qwen2.5-0.5b-sokoban --seed 1 --out prompts.jsonl
  ragen-agent data --config run/config.toml --out prompts.jsonl --json"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    from ragen_agent.cli.settings import add_settings

    parser = commands.add_parser("data", help="write the levels that a distributed run plays", description=ABOUT)
    parser.set_defaults(run=_run, model=None)
    parser.add_argument("--recipe", metavar="NAME", help="settings by name; see ragen-agent train --list-recipes")
    parser.add_argument("--seed", type=int, metavar="N", help="of the levels (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file of JSON lines")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    add_settings(parser)


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.cli.settings import check_not_distributed, configure, given
    from ragen_agent.openrlhf.prompt_dataset import check_rows, train_rows, write_rows
    from ragen_gym.core.storage import check_parent

    check_not_distributed(options)
    config = configure(options, given(options, "seed"))
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
