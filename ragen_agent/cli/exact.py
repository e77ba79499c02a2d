"""``ragen-agent exact``: a policy's exact success, by summing over its replies instead of sampling episodes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.eval import add_measured, measured_policy, results_name
from ragen_gym.core.command_line import add_command, print_json

if TYPE_CHECKING:
    from ragen_agent.exact.level import ExactLevel
    from ragen_agent.run.console import Display
    from ragen_agent.run.policy import Policy

ABOUT = """\
Computes the success of a run or a model on fixed levels, instead of estimating it from episodes: it sums over all
replies that the policy is likely to give in every state that it may reach, and over the game's transition noise. Every
figure is an interval that holds the true number. Prints success, malformed replies, regret and pass@k beside random
moves, the blind script and optimal play, and writes a page with the policy's distribution over replies in each state.

It needs replies without thoughts (turns.think=false) and prompts of the current turn alone (turns.history=0). The
cost, in tokens that the model reads and in seconds, is predicted from the first levels. Results are kept level by
level: the same command goes on where it was stopped.

examples:
  ragen-agent exact runs/FrozenLake-grpo-seed0 --levels 64
  ragen-agent exact models/mine --game FrozenLake --set turns.think=false --set turns.history=0 --mass 1e-2"""

_TRIED, _TOGETHER = 2, 16
"""Levels that the prediction is made from, and levels whose states are read together."""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = add_command(commands, "exact", "compute a policy's success without sampling", _run, description=ABOUT)
    add_measured(parser)
    parser.add_argument(
        "--mass",
        type=float,
        default=1e-3,
        metavar="P",
        help="probability of an episode's replies that may be left out: the width of a success interval (default 1e-3)",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=20_000,
        metavar="N",
        help="tokens that are read in a level's replies of one turn, at most; then intervals are wider (default 20000)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder of the results (default: runs/exact-NAME-GAME-SPLIT)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _run(options: argparse.Namespace) -> int:
    from ragen_agent.run.console import Display
    from ragen_gym.core.failures import memory_was_full
    from ragen_gym.core.storage import locked_folder, write_atomic

    if not 0 < options.mass < 1:
        raise ValueError(f"--mass is {options.mass:g}; it must be above 0 and below 1, such as 1e-3.")
    if options.nodes < 1:
        raise ValueError(f"--nodes is {options.nodes}; it must be 1 or more.")
    display = Display()
    policy, asked, out = lone_policy("exact", options, display)

    from ragen_agent.exact.level import ExactLevel, check_exact
    from ragen_agent.exact.results import RecordFolder, page, summary
    from ragen_agent.run.evaluation import evaluated_levels
    from ragen_gym.envs.turn import TurnEnv

    config = policy.config
    env, instances = evaluated_levels(config)
    check_exact(env, config.turns)
    assert isinstance(env, TurnEnv)
    instances = list({each.seed: each for each in instances}.values())
    about = asked | {"mass": options.mass, "nodes": options.nodes}
    with locked_folder(out):
        folder = RecordFolder(out, "exact", "levels.jsonl", about)
        done = {record["seed"] for record in folder.records()}
        waiting = [ExactLevel(env, policy.chat, config.turns, each) for each in instances if each.seed not in done]
        try:
            _solve(policy, waiting, len(instances), options, folder, display)
        except RuntimeError as error:
            if not memory_was_full(str(error)):
                raise
            raise MemoryError(
                f"memory is full ({str(error).splitlines()[0]}): lower --nodes, now {options.nodes}, or raise --mass, "
                f"now {options.mass:g}, with another --out. Intervals become wider."
            ) from error
        wanted = {each.seed for each in instances}
        records = [record for record in folder.records() if record["seed"] in wanted]
        found = summary(records)
        folder.finish(found)
        write_atomic(out / "page.html", page(about, found, records))
    if options.json:
        print_json(found)
    else:
        _print(config.game, about, found, display, out)
    return 0


def lone_policy(command: str, options: argparse.Namespace, display: Display) -> tuple[Policy, dict[str, Any], Path]:
    """The policy of a run in which the model alone plays a single game; what its results depend on; and their folder.

    Raises:
        ValueError: it plays a mixture, or a program plays.
    """
    policy, weights = measured_policy(options, display)
    config = policy.config
    if config.games:
        raise ValueError("this run plays a mixture of games: choose one, with --game NAME.")
    if config.program.command:
        raise ValueError("program.command plays the episodes of this run, so its replies are not the model's alone.")
    asked = {
        "model": str(options.model),
        "weights": weights,
        "game": config.game,
        "env_options": config.env_options,
        "turns": asdict(config.turns),
        "split": config.evaluation.split,
        "temperature": config.evaluation.temperature,
    }
    return policy, asked, options.out or Path("runs") / results_name(command, options.model, config)


def _solve(
    policy: Policy, levels: Sequence[ExactLevel], total: int, options: argparse.Namespace, folder: Any, display: Display
) -> None:
    from ragen_agent.exact.policy_value import solve
    from ragen_agent.exact.reply_tree import ReplyTexts
    from ragen_agent.exact.results import level_record
    from ragen_agent.exact.tree_reader import TreeReader
    from ragen_gym.core.console import ProgressBar, span

    if not levels:
        return
    reader = TreeReader(policy.model, len(policy.tokenizer), policy.config.evaluation.temperature)
    turns = policy.config.turns
    texts = ReplyTexts(policy.chat, think=turns.think, known_form=turns.prompt == "default", budget=turns.budget)
    begun = time.monotonic()
    parts = [levels[:_TRIED], *(levels[i : i + _TOGETHER] for i in range(_TRIED, len(levels), _TOGETHER))]
    with ProgressBar("levels", total, done=total - len(levels), console=display.console, transient=True) as bar:
        for number, part in enumerate(parts):
            found = solve(reader, part, mass=options.mass, most_nodes=options.nodes * len(part), texts=texts)
            folder.add(map(level_record, found))
            bar.advance(len(part))
            if number == 0 and len(levels) > len(part):
                left, each = len(levels) - len(part), (time.monotonic() - begun) / len(part)
                bar.say(
                    f"The first {len(part)} levels took {reader.tokens / len(part):,.0f} tokens and {each:.1f} s each: "
                    f"about {reader.tokens / len(part) * left:,.0f} tokens and {span(each * left)} for {left} more."
                )


def _print(game: str, about: dict[str, Any], found: dict[str, Any], display: Display, out: Path) -> None:
    from rich.table import Table

    from ragen_agent.exact.results import shown_interval, success_rows

    levels = f"{found['levels']} {about['split']} levels, temperature {about['temperature']:g}"
    table = Table(title=f"{game}: exact success on {levels}", title_justify="left")
    for column in ("policy", "success, %", "95 % over levels"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for row in success_rows("model", found):
        table.add_row(*row)
    display.console.print(table)
    display.say(f"Malformed replies: {shown_interval(found['malformed_share'])} %.")
    moves, total = shown_interval(found["moves"], 1.0), shown_interval(found["return"], 1.0, 3)
    display.say(f"Moves of an episode: {moves}. Return: {total}. Regret of success: {shown_interval(found['regret'])}.")
    passes = ", ".join(f"{k}: {shown_interval(found['pass_at_k'][k][-1], digits=1)}" for k in (1, 4, 16, 64, 256, 1024))
    display.say(f"pass@k, %: {passes}.")
    if found["widest"] > about["mass"] * (1 + 1e-6):
        display.say(
            f"The limit of {about['nodes']:,} tokens left more out than --mass {about['mass']:g}: the widest interval "
            f"of a level is {100 * found['widest']:.1f} points. Raise --nodes, or lower turns.max_tokens_per_turn."
        )
    display.say(f"The levels, one by one: {out / 'page.html'}")
