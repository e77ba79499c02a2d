"""``ragen-agent gradients``: the gradient norms of a policy's loss, by term and by the groups' return std."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ragen_agent.cli.eval import measured_policy
from ragen_agent.cli.settings import add_settings
from ragen_gym.core.command_line import add_command
from ragen_gym.core.storage import check_parent

ABOUT = """\
Plays a further batch of training levels, orders its groups by their return std, cuts them into six buckets, and prints
for each the gradient norm of the task, the entropy bonus and the KL term (RAGEN-2's diagnosis of collapse). A norm is
mostly noise, so in parentheses stands the estimated norm of the expected gradient; where it is negative, the batch does
not tell the gradient from 0. Nothing is trained. Written to gradients.json, which `ragen-agent report` shows.

examples:
  ragen-agent gradients runs/FrozenLake-grpo-seed0
  ragen-agent gradients runs/FrozenLake-grpo-seed0 --groups 384 --set training.entropy_bonus=0.01"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = add_command(commands, "gradients", "measure gradient norms by return std", _run, description=ABOUT)
    parser.set_defaults(split=None, levels=None)
    parser.add_argument(
        "model", type=Path, metavar="RUN|MODEL", help="a run's folder, or a model as train --model takes it"
    )
    parser.add_argument("--groups", type=int, default=96, metavar="N", help="levels in the batch (default 96)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the results (default: gradients.json in the run's folder)"
    )
    add_settings(parser)


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import json_text
    from ragen_gym.core.storage import write_atomic

    if options.out is None and not (options.model / "config.toml").is_file():
        raise ValueError(f"{options.model} is not a run's folder; give --out FILE for the results.")
    out = options.out or options.model / "gradients.json"
    check_parent(out)
    display = Display()
    policy, weights = measured_policy(options, display)

    from ragen_agent.local.gradients import gradient_buckets
    from ragen_agent.run.policy import Policy

    start, reference = options.model / "warm", None
    if policy.config.training.kl_estimate != "none":
        if start.is_dir():
            reference = Policy.build(policy.config, start)
        else:
            display.say(f"The KL term is left out: {start}, the model that a run starts from, is not there.")
    with display.waiting(f"playing {options.groups} groups and measuring their gradients"):
        buckets = gradient_buckets(policy, options.groups, reference)
    write_atomic(out, json_text({"model": str(options.model), "weights": weights, "buckets": buckets}) + "\n")
    _print(buckets, display)
    display.say(f"Written: {out}")
    return 0


def _print(buckets: list[dict[str, Any]], display: Any) -> None:
    from rich.table import Table

    from ragen_agent.report.gradients import gradient_table

    columns, rows = gradient_table(buckets)
    table = Table(title="Gradient norms (and of the expected gradient), by return std", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    display.console.print(table)
