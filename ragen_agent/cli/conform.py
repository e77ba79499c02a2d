"""``ragen-agent conform``: formulas that a trainer computes, beside the published ones."""

from __future__ import annotations

import argparse
from typing import Any

from ragen_gym.core.command_line import add_command, print_json

ABOUT = """\
Calls the functions of a trainer's advantages and losses on small batches made to tell variants apart, and names the
formula that each computes: the published one, or a known variant of it. Looks at the libraries that are installed in
this environment.

examples:
  ragen-agent conform
  ragen-agent conform trl --json
  ragen-agent conform my_trainer:LIBRARY    a ragen_agent.conform.libraries.Library of your own"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    what = "what a trainer computes, beside the formulas"
    parser = add_command(commands, "conform", what, _run, description=ABOUT)
    parser.add_argument(
        "libraries",
        nargs="*",
        metavar="LIBRARY",
        help="trl, verl, openrlhf, skyrl, molt, ragen_agent, or module:attribute (default: those installed)",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def _run(options: argparse.Namespace) -> int:
    import sys
    from contextlib import redirect_stdout

    from rich.table import Table

    from ragen_agent.conform.compare import Finding, findings
    from ragen_agent.conform.libraries import LIBRARIES, load
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import rich_console

    found: list[Finding] = []
    missing: dict[str, str] = {}
    # Some libraries greet on standard output when they are imported.
    with Display(rich_console(stderr=True)).waiting("loading the libraries"), redirect_stdout(sys.stderr):
        for name in options.libraries or LIBRARIES:
            try:
                found += findings(load(name))
            except Exception as error:  # not installed, or of a version whose functions are called otherwise
                if name not in LIBRARIES:  # the user's own
                    raise
                missing[name] = f"{type(error).__name__}: {error}"
                if options.libraries:
                    raise ValueError(f"{name} cannot be looked at here: {missing[name]}") from error
    if options.json:
        print_json([each.as_dict() for each in found])
        return 0
    console = rich_console(soft_wrap=True)
    for library in dict.fromkeys((each.library, each.version) for each in found):
        table = Table(
            "rule", "computes", "largest error", title=" ".join(library), title_justify="left", show_edge=False
        )
        for each in found:
            if (each.library, each.version) == library:
                words = "; ".join(each.differences) or each.verdict
                if (size := max(each.equal.values(), default=0)) > 1e-3:
                    words += f"; equal returns in float32 get advantages of {size:.1g}"
                largest, batch = max((largest, batch) for batch, largest in each.errors.items())
                table.add_row(each.rule, words, f"{largest:.0e}, {batch}" if each.verdict != "same" else "")
        console.print(table, "")
    for name, why in missing.items():
        console.print(f"{name} is not looked at: {why}", style="dim", markup=False)
    return 0
