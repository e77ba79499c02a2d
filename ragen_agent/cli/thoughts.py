"""``ragen-agent thoughts``: effect of a model's thoughts on its answers, by replacing them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.eval import add_measured
from ragen_agent.cli.exact import lone_policy
from ragen_gym.core.command_line import add_command, print_json

if TYPE_CHECKING:
    from ragen_agent.run.console import Display

ABOUT = """\
Replaces each thought of a model and computes its answers after that: after the true thought of the board, its opposite,
one of another level, and none; and as controls after the same facts in another order, the thought sampled again, and
the same thought on the turned board. Prints how far the first move and the whole answer move from those after the
model's own thought (TV, total variation), how often the first move goes where only the replaced thought says (and how
often it did so before), how often where the true thought says, and how often the reply wins. Answers are not sampled.
Results are kept as they come: the same command goes on where it was stopped.

It needs thoughts that state facts by a template of the demonstrations, demonstrations.thought=direction or relative.

examples:
  ragen-agent thoughts runs/FrozenLake-grpo-seed0
  ragen-agent thoughts runs/FrozenLake-grpo-seed0/warm --game FrozenLake"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    what = "replace a model's thoughts and see its answers"
    parser = add_command(commands, "thoughts", what, _run, description=ABOUT)
    add_measured(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled thoughts (default 0)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder of the results (default: runs/thoughts-NAME-GAME-SPLIT)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import ProgressBar
    from ragen_gym.core.storage import locked_folder

    if options.seed < 0:
        raise ValueError(f"--seed is {options.seed}; it must be 0 or more.")
    display = Display()
    policy, asked, out = lone_policy("thoughts", options, display)

    from ragen_agent.exact.results import RecordFolder
    from ragen_agent.exact.thoughts import check_thoughts, measure, played_turns, summary
    from ragen_agent.exact.tree_reader import TreeReader
    from ragen_agent.run.evaluation import evaluated_levels

    config = policy.config
    found, instances = evaluated_levels(config)
    env = check_thoughts(found, config)
    more = {"template": config.demonstrations.thought, "levels": config.evaluation.levels, "seed": options.seed}
    about: dict[str, Any] = asked | more
    with display.waiting("playing the levels"):
        turns, without = played_turns(policy, env, instances, options.seed)
    with locked_folder(out):
        folder = RecordFolder(out, "thoughts", "turns.jsonl", about)
        records = folder.records()
        if [(each["level_id"], each["turn"]) for each in records] != [
            (each.level_id, each.number) for each in turns[: len(records)]
        ]:
            raise ValueError(f"{out} holds other episodes, perhaps of another machine; choose another --out.")
        reader = TreeReader(policy.model, len(policy.tokenizer), config.evaluation.temperature)
        with ProgressBar("turns", len(turns), done=len(records), console=display.console, transient=True) as bar:
            for some in measure(reader, policy, env, turns, start=len(records)):
                folder.add(some)
                records += some
                bar.update(len(records))
        result = about | {"turns_without_thought": without, **summary(records)}
        folder.finish(result)
    if options.json:
        print_json(result)
    else:
        _print(result, display, out)
    return 0


def _print(result: dict[str, Any], display: Display, out: Path) -> None:
    from rich.table import Table

    from ragen_agent.exact.thoughts import MEASURES, ROWS

    about = f"{result['levels']} {result['split']} levels, temperature {result['temperature']:g}"
    table = Table(title=f"{result['game']}: answers after a thought, %; {about}", title_justify="left")
    for column in ("thought", "turns", *MEASURES.values()):
        table.add_column(column, justify="left" if column == "thought" else "right")
    for row, name in ROWS.items():
        figures = result["rows"][row]
        if figures["turns"]:
            table.add_row(name, str(figures["turns"]), *(_shown(figures[each]) for each in MEASURES))
    table.add_section()
    for name, rates in result["references"].items():
        table.add_row(name, "", *(f"{100 * rates[each]:.1f}" if each in rates else "" for each in MEASURES))
    display.console.print(table)
    display.say(
        f"{_shown(result['true_statements'])} % of the statements are true. {100 * result['speaking']:.1f} % of the "
        f"{result['turns']} thoughts speak for a move; {result['turns_without_thought']} further turns have no thought."
    )
    display.say(f"± is half of the 95 % interval over levels. Every turn: {out / 'turns.jsonl'}")


def _shown(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    low, high = figure["interval"]
    return f"{50 * sum(figure['bounds']):.1f} ±{50 * (high - low):.1f}"
