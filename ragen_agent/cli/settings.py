"""``ragen-agent settings``: every setting with its default, range, unit and meaning."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

__all__ = ["add"]

ABOUT = """\
Lists every setting of a run: type, default, range, unit and meaning. A setting is given in a TOML file (--config), as
--set NAME=VALUE, or as a flag of its own name. --json-schema prints a schema of such files, for editors.

examples:
  ragen-agent settings
  ragen-agent settings training
  ragen-agent settings training.filter
  ragen-agent settings --json-schema > settings.schema.json
  ragen-agent train --training.groups 16 --training.filter top_p --training.keep 0.9"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "settings", help="list every setting with its default, range and meaning", description=ABOUT
    )
    parser.set_defaults(run=_run)
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only the settings that begin so")
    parser.add_argument("--json-schema", "--schema", action="store_true", help="print a JSON schema of TOML files")


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.config.catalog import check_name, file_schema, groups

    if options.json_schema:
        print(json.dumps(file_schema(), indent=2))
        return 0
    shown = [(group, [n for n in group.settings if n.startswith(options.prefix)]) for group in groups()]
    if not any(names for _, names in shown):
        check_name(options.prefix)
    width = 100 if not sys.stdout.isatty() else 118
    for group, names in shown:
        if names and len(names) == len(group.settings):
            print(f"[{group.name}] {group.about}\n" if group.name else f"{group.about}\n")
        for name in names:
            print("\n".join(_lines(name, group.settings[name], width)))
    return 0


def _lines(name: str, each: Any, width: int) -> list[str]:
    """A setting's name, type, default and range; its meaning; what its choices mean."""
    kind = "text" if each.type is str else getattr(each.type, "__name__", str(each.type))
    default = json.dumps(each.default)
    unit, limits = f" {each.unit}" * bool(each.unit), "" if each.meanings else each.range
    lines = [f"{name}  {kind}, default {default}{unit}{f'; {limits}' if limits else ''}"]
    doc = f"{each.doc}; empty: {each.empty}" if each.empty else each.doc
    lines += textwrap.wrap(doc, width, initial_indent="    ", subsequent_indent="    ")
    longest = max(map(len, each.meanings), default=0)
    for choice, meaning in each.meanings.items():
        start = f"      {choice:{longest}}  "
        lines += textwrap.wrap(meaning, width, initial_indent=start, subsequent_indent=" " * len(start))
    return [*lines, ""]
