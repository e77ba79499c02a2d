"""Untrained models in each wording of the messages: well-formed replies and success, beside scripts.

``python -m benchmarks.wordings`` plays what ``wordings.json`` lacks, one ``ragen-agent eval`` a row, and writes
``wordings.json`` and ``wordings.md`` after each row. A row is measured again once its entry is removed there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from ragen_agent.cli import main as ragen_agent
from ragen_agent.models.catalogue import NAMED_MODELS
from ragen_gym.core.stats import wilson

#: Settings of each wording.
WORDINGS = {
    "default": ["turns.example=false"],
    "default and an example (`turns.example`)": ["turns.example=true"],
    "`ragen-v1`": ["turns.prompt=ragen-v1"],
}
GAMES = ("Bandit", "FrozenLake", "Sokoban")
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
TURNS, TOKENS = 2, 96
SHOWN = 70  # characters of a reply at most
SETTINGS = [f"turns.max_turns={TURNS}", f"turns.max_tokens_per_turn={TOKENS}"]
COLUMNS = (
    *("model", "game", "wording", "well formed, %", "solved, %", "commonest problem", "cut"),
    "the first of them",
)
SCRIPTS = ("random", "blind", "optimal")

PAGE = """\
# Untrained models in each wording

{models}

They play levels of the split `train`: their number is in the column *solved*. The temperature is 0.5, a reply has at
most {tokens} tokens, and an episode {turns} turns (a bandit's one). A reply is well formed if it has the form that the
wording asks for and names only known actions. *Cut* counts the replies with the commonest problem that ended at the
limit of tokens: more tokens might complete them. The example is the same on every level; playing it is not
significantly better than random. Intervals are of 95 %; the share of well-formed replies takes replies as independent.

{verdict}
{rows}

Scripts on the levels of each game's first row, solved in %; the blind script heads for the goal and ignores what is in
the way:

{scripts}

The models' weights are dequantised from the packages of `ragen-agent model`, not the Hub's own. A model that is given
to `--model` plays with the example unless it is told not to.

Written by `python -m benchmarks.wordings`, which plays each row by `ragen-agent eval`. Machines: {machines}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every model in every wording, and writes the page; returns the exit code."""
    parser = page_parser("wordings", __doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=NAMED_MODELS, metavar="NAME", help="which")
    parser.add_argument("--games", nargs="+", default=GAMES, choices=GAMES, metavar="GAME", help="which")
    parser.add_argument("--levels", type=int, default=256, metavar="N", help="levels of a new row (default: 256)")
    parser.add_argument("--work", type=Path, default=Path("runs/wordings"), metavar="DIR", help="of the episodes")
    options = parser.parse_args(argv)
    results = read_results(options.out, "wordings")
    for game, model, (number, wording) in product(options.games, options.models, enumerate(WORDINGS)):
        rows = results.setdefault(game, {}).setdefault(model, {})
        if wording not in rows:
            out = options.work / f"{model}-{game}-{number}"
            rows[wording] = _play(model, game, WORDINGS[wording], options.levels, out)
            write_results(options.out, "wordings", results, _page(results))
    write_results(options.out, "wordings", results, _page(results))
    return 0


def _play(model: str, game: str, chosen: Sequence[str], levels: int, out: Path) -> dict[str, Any]:
    """What a row says, from the summary of its episodes; they are played unless they are there."""
    sets = [word for each in (*SETTINGS, *chosen) for word in ("--set", each)]
    played = ["--split", "train", "--levels", str(levels), "--out", str(out)]
    if not (out / "summary.json").is_file() and ragen_agent(["eval", model, "--game", game, *played, *sets]):
        raise SystemExit(f"{out} is not whole; see above.")
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))["splits"][game]
    keys = ("success", "malformed", "common_problem", *SCRIPTS)
    return {key: found.get(key) for key in keys} | {"machine": machine("torch", "transformers")}


def _page(results: dict[str, Any]) -> str:
    every = [
        (model, game, wording, row)
        for game, models in results.items()
        for model, wordings in models.items()
        for wording, row in wordings.items()
    ]
    first = {game: row for _, game, _, row in reversed(every)}
    scripts = [[game, *(f"{100 * first[game][name]['rate']:.1f}" for name in SCRIPTS)] for game in results]
    names = sorted({model for model, *_ in every}, reverse=True)
    return PAGE.format(
        models="\n".join(f"- `{name}`: {NAMED_MODELS[name].about}." for name in names),
        tokens=TOKENS,
        turns=TURNS,
        verdict=_verdict([row for *_, row in every]),
        rows=markdown_table(COLUMNS, [_row(*each) for each in every]),
        scripts=markdown_table(["game", *SCRIPTS], scripts),
        machines="; ".join(dict.fromkeys(row["machine"] for *_, row in every)),
    )


def _verdict(rows: Sequence[dict[str, Any]]) -> str:
    """A sentence on success beside random play, which is measured on each row's own levels."""
    below = sum(row["success"]["high"] < row["random"]["low"] for row in rows)
    above = sum(row["success"]["low"] > row["random"]["high"] for row in rows)
    return (
        f"On the same levels random moves solve more than the model in {below} of these {len(rows)} rows, and fewer in "
        f"{above}\n(intervals that do not meet): well-formed replies alone are not success.\n"
    )


def _row(model: str, game: str, wording: str, row: dict[str, Any]) -> list[str]:
    malformed, common, success = row["malformed"], row["common_problem"], row["success"]
    whole = wilson(malformed["n"] - sum(malformed["problems"].values()), malformed["n"])
    problem, cut, first = "", "", ""
    if common:
        problem, cut = f"`{common['problem']}`, {common['n']} of {malformed['n']}", f"{common['cut']}"
        first = f"`{' '.join(common['reply'].split()).replace('|', '¦').replace('`', '')[:SHOWN]}`"
    share = f"{100 * whole.value:.0f} ({100 * whole.low:.0f} to {100 * whole.high:.0f})"
    solved = (
        f"{100 * success['rate']:.1f} ({100 * success['low']:.1f} to {100 * success['high']:.1f}) of {success['n']}"
    )
    return [f"`{model}`", game, wording, share, solved, problem, cut, first]


if __name__ == "__main__":
    raise SystemExit(main())
