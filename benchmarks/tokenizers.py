"""Boards under the tokenizers of pretrained models: ``python -m benchmarks.tokenizers``.

Each model's figures are ``ragen-agent tokens``. Written are ``tokenizers.json``, which keeps the figures of models that
are not asked for again, and ``tokenizers.md``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from benchmarks import markdown_table, page_parser, read_results, write_results
from ragen_agent.cli import main as ragen_agent
from ragen_agent.models.catalogue import NAMED_MODELS

GAMES = ("FrozenLake", "Sokoban")
LEVELS = 64
SHOWN = 12  # tokens of an example at most

PAGE = """\
# Boards under the tokenizers of pretrained models

A board is regular for a model where each cell has tokens of its own (1 cell a token) and a symbol is the same token
wherever it stands (1 spelling). Tokens and cells are means over {levels} levels, of 4 by 4 for lakes and 6 by 6 for
rooms with one box; spellings are of the symbol or coordinate that has most. Success by format is not measured here.

{table}

Under all of these tokenizers a plain grid joins neighbouring cells in many ways; `text_format="spaced"` gives each cell
a token of its own. Written by `python -m benchmarks.tokenizers`, by `ragen-agent tokens` for each model and game; the
tokenizers are {about}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the models that are asked for, and writes the page; returns the exit code."""
    parser = page_parser("tokenizers", __doc__)
    parser.add_argument("models", nargs="*", choices=[[], *NAMED_MODELS], metavar="NAME", help="of ragen-agent model")
    options = parser.parse_args(argv)
    results = read_results(options.out, "tokenizers")
    for model in options.models:
        results[model] = {game: _tokens(model, game) for game in GAMES}
    write_results(options.out, "tokenizers", results, _page(results))
    return 0


def _tokens(model: str, game: str) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        if ragen_agent(["tokens", "--game", game, "--model", model, "--levels", str(LEVELS), "--json"]):
            raise SystemExit(f"{model} was not measured on {game}; see above.")
    return list(json.loads(printed.getvalue()))


def _page(results: dict[str, Any]) -> str:
    head = (
        *("model", "game", "`text_format`", "tokens a board", "cells a token", "spellings"),
        f"two rows, or {SHOWN} tokens",
    )
    rows = [_row(model, game, each) for model in results for game in GAMES for each in results[model][game]]
    about = " and ".join(f"that of {NAMED_MODELS[model].hub}" for model in results)
    return PAGE.format(levels=LEVELS, table=markdown_table(head, rows), about=about)


def _row(model: str, game: str, found: dict[str, Any]) -> list[str]:
    pieces, lines = [], 0
    for token in found["example"]:
        pieces.append(token.replace("\n", "\\n"))
        lines += token.count("\n")
        if lines >= 2 or len(pieces) == SHOWN:
            break
    cut = "`" + "¦".join(pieces) + "`"
    spellings = max(found["spellings"].values())
    figures = f"{found['tokens_per_board']:.1f}", f"{found['cells_per_token']:.2f}", f"{spellings}"
    return [f"`{model}`", game, f"`{found['text_format']}`", *figures, cut]


if __name__ == "__main__":
    raise SystemExit(main())
