"""``ragen-agent tokens``: how a model's tokenizer cuts a game's boards."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import Any

from ragen_gym.core.command_line import add_command, print_json

ABOUT = """\
Shows the first board of a game cut into the tokens of a model, in each text format, and measures over
many levels how many cells a token holds, and in how many ways a cell is spelled. A model reads a board
well where each cell has tokens of its own (1.0 cells a token) and a symbol is the same token wherever it
stands (1 spelling).

examples:
  ragen-agent tokens --game FrozenLake --model smollm2-135m
  ragen-agent tokens --game Sokoban --model models/Qwen2.5-0.5B-Instruct --set env_options.vocabulary=letters"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    from ragen_agent.cli.settings import add_settings

    parser = add_command(commands, "tokens", "how a tokenizer cuts a game's boards", _run, description=ABOUT)
    parser.add_argument(
        "--model", metavar="MODEL", help="whose tokenizer (default: the small model's); see train --help"
    )
    parser.add_argument("--levels", type=int, default=64, metavar="N", help="levels to look at (default 64)")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_settings(parser)


def _run(options: argparse.Namespace) -> int:
    from rich.table import Table

    from ragen_agent.cli.settings import check_not_distributed, configure, given
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import rich_console

    if options.levels < 1:
        raise ValueError(f"--levels {options.levels} must be 1 or more.")
    check_not_distributed(options)
    config = configure(options, given(options, "model"), fetch=True)
    with Display(rich_console(stderr=True)).waiting("loading torch and transformers"):
        from ragen_agent.preflight.dry_run import tokenizer_of
        from ragen_agent.tasks.tasks import make_game_env
        from ragen_agent.tokens.board_tokens import board_tokens, formats_of
    tokenizer, _ = tokenizer_of(config)
    found = []
    for text_format in formats_of(make_game_env(config, None)):
        env = make_game_env(replace(config, env_options={**config.env_options, "text_format": text_format}), None)
        found.append(board_tokens(tokenizer, env, range(options.levels)))
    if options.json:
        print_json([{**asdict(each), "verdict": each.verdict} for each in found])
        return 0
    console = rich_console(soft_wrap=True)
    table = Table("format", "tokens a board", "cells a token", "spellings", "", show_edge=False)
    for each in found:
        table.add_row(
            each.text_format,
            f"{each.tokens_per_board:.1f}",
            f"{each.cells_per_token:.2f}",
            each.most_spellings,
            each.verdict,
        )
    console.print(table)
    for each in found:
        pieces = "|".join(token.replace("\n", "\\n") + "\n" * ("\n" in token) for token in each.example)
        console.print(f"\n{each.text_format}, each token between two bars:\n|{pieces}|")
    return 0
