"""``ragen-agent doctor``: is this machine ready, and if not, what to do."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragen_gym.core.command_line import add_command, terminal_width

ABOUT = """\
Looks at what a run needs: versions against those that the tests pass with, torch and CUDA, vLLM, shared memory, locks
of killed workers, disk, whether the tokenizer gives texts back as they were, and whether the chat template keeps the
prefixes of a conversation. Nothing is changed. What a run's own settings need is checked by train --dry-run and at its
start. The exit code is 0, or 1 if a run would break.

examples:
  ragen-agent doctor
  ragen-agent doctor --backend openrlhf --model models/Qwen2.5-0.5B-Instruct"""

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = add_command(commands, "doctor", "check this machine and say what to do", _run, description=ABOUT)
    parser.add_argument(
        "--backend",
        choices=("local", "openrlhf"),
        help="whose needs (default: openrlhf where it is installed, local elsewhere)",
    )
    parser.add_argument("--model", metavar="MODEL", help="a model to look at: a folder, or a name of model --list")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default runs)")


def _run(options: argparse.Namespace) -> int:
    from rich.table import Table
    from rich.text import Text

    from ragen_agent.preflight.doctor import Look, examine
    from ragen_gym.core.console import rich_console

    backend = options.backend or ("openrlhf" if find_spec("openrlhf") else "local")
    look = Look(backend == "openrlhf", _model(options.model or ""), options.out)
    with rich_console(stderr=True).status("looking; imports take a while ..."):
        findings = [*examine(look)]
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, (state, found, advice) in findings:
        said = Text(f"{found}\ndo: {advice}" if advice else found)
        table.add_row(Text(state, STYLES[state]), Text(name), said)
    console = rich_console(width=terminal_width(10_000))
    console.print(table)
    count = {state: sum(finding.state == state for _, finding in findings) for state in STYLES}
    ready = "not ready" if count["fail"] else "ready"
    console.print(
        f"\nThis machine is {ready} for the {'distributed' if backend == 'openrlhf' else 'local'} trainer: "
        f"{count['ok']} fine, {count['warn']} to know, {count['fail']} to fix."
    )
    return 1 if count["fail"] else 0


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
