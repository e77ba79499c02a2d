"""``ragen-agent doctor``: is this machine ready, and if not, what to do."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.config import with_settings

if TYPE_CHECKING:
    from ragen_agent.preflight.doctor import Finding

__all__ = ["add"]

ABOUT = """\
Looks at what a run needs: versions against those that the tests pass with, torch and CUDA, the CPU, vLLM, flash-attn,
memory, ports, disk, whether the tokenizer gives texts back as they were, whether the chat template keeps the prefixes
of a conversation, and a lock that a killed run left where DeepSpeed compiles.
The exit code is 0, or 1 if a run would break.

examples:
  ragen-agent doctor
  ragen-agent doctor --backend openrlhf --model models/Qwen2.5-0.5B-Instruct
  ragen-agent doctor --model smollm2-135m
  ragen-agent doctor --config runs/lake/config.toml
  ragen-agent doctor --json"""

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    from ragen_agent.cli.settings import add_run_code

    parser = commands.add_parser("doctor", help="check this machine and say what to do", description=ABOUT)
    parser.set_defaults(run=_run, game=None, set=[])  # which ``configure`` reads
    parser.add_argument(
        "--backend",
        choices=("local", "openrlhf"),
        help="whose needs (default: openrlhf where it is installed, local elsewhere)",
    )
    parser.add_argument("--model", metavar="MODEL", help="a model to look at: a folder, or a name of model --list")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings of a run: its model, if none is given, and its GPUs"
    )
    add_run_code(parser)
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default runs)")
    parser.add_argument(
        "--fix", action="store_true", help="repair torchvision; remove locks that no process here holds"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.cli.settings import configure, distributed
    from ragen_agent.config.trainers import OpenRLHF
    from ragen_agent.preflight.doctor import Look, examine
    from ragen_gym.core.command_line import terminal_width
    from ragen_gym.core.console import rich_console

    backend = options.backend or ("openrlhf" if find_spec("openrlhf") else "local")
    config = configure(options, {}) if options.config is not None else None
    settings = with_settings(OpenRLHF(), distributed(options), "openrlhf.")
    model = _model(options.model or (config.model if config else ""))
    with rich_console(stderr=True).status("looking; imports take a while ..."):
        found = [*examine(Look(backend == "openrlhf", model, options.out, options.fix, config, settings))]
    broken = any(finding.state == "fail" for finding in found)
    if options.json:
        print(json.dumps({"ready": not broken, "backend": backend, "checks": [*map(asdict, found)]}, indent=2))
    else:
        _print(rich_console(width=terminal_width(10_000)), found, backend)
    return 1 if broken else 0


def _model(model: str) -> Path | None:
    """The folder of a model, without fetching it; None for the small model.

    Raises:
        ValueError: a named model that is not there yet.
    """
    from ragen_agent.models.catalogue import NAMED_MODELS
    from ragen_agent.models.named_models import cached_folder

    folder = cached_folder(model) if model else None
    if folder and model in NAMED_MODELS and not folder.exists():
        raise ValueError(f"model {model}: it is not there yet; fetch it with ragen-agent model {model}.")
    return folder


def _print(console: Any, checks: list[Finding], backend: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        found = Text(f"{check.found}\ndo: {check.advice}" if check.advice else check.found)
        table.add_row(Text(check.state, STYLES[check.state]), Text(check.name), found)
    console.print(table)
    count = {state: sum(check.state == state for check in checks) for state in STYLES}
    ready = "not ready" if count["fail"] else "ready"
    console.print(
        f"\nThis machine is {ready} for the {'distributed' if backend == 'openrlhf' else 'local'} trainer: "
        f"{count['ok']} fine, {count['warn']} to know, {count['fail']} to fix."
    )
