"""Well-formed replies of untrained models in each wording: ``python -m benchmarks.wordings NAME=MODEL ...``.

Each row is one ``ragen-agent eval``; what is in ``--work`` already is not played again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen_agent.cli import main as ragen_agent
from ragen_gym.core.stats import wilson
from ragen_gym.core.storage import write_atomic

__all__ = ["main"]

PAGE = Path(__file__).with_suffix(".md")

#: What ``--set`` says of each wording.
WORDINGS = {
    "default": ["turns.example=false"],
    "default and an example (`turns.example`)": ["turns.example=true"],
    "`ragen-v1`": ["turns.prompt=ragen-v1"],
}
GAMES = ("Bandit", "FrozenLake", "Sokoban")
SETTINGS = ["turns.max_turns=2", "turns.max_tokens_per_turn=96"]

TEXT = """\
# Well-formed replies of untrained models

{models} on {games}, in each wording of the messages.
{levels} levels of the split `train` a row, temperature 0.5, replies of at most 96 tokens, two turns (a bandit has one).
A reply is well formed if it has the form that the wording asks for and names only known actions. In parentheses 95 %
intervals, which treat replies as independent. The example is the same on every level; playing it is no better than
random.

| model | game | wording | well formed | solved | commonest problem |
|---|---|---|---|---|---|
{rows}

`python -m benchmarks.wordings {command}` writes this page, by `ragen-agent eval` once a row. {about}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every model in every wording, and write the page; 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL", help="a name for the table, and a model of eval")
    parser.add_argument("--levels", type=int, default=32, metavar="N", help="levels of each row (default: 32)")
    parser.add_argument("--games", nargs="+", default=GAMES, metavar="GAME", help=f"default: {' '.join(GAMES)}")
    parser.add_argument("--work", type=Path, default=Path("runs/wordings"), metavar="DIR", help="of the results")
    parser.add_argument("--about", default="", metavar="TEXT", help="a sentence on the models, for the page")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page")
    options = parser.parse_args(argv)
    models, rows = dict(each.split("=", 1) for each in options.models), []
    for game in options.games:
        for name, model in models.items():
            for number, (wording, chosen) in enumerate(WORDINGS.items()):
                out = options.work / f"{name}-{game}-{number}"
                sets = [word for each in (*SETTINGS, *chosen) for word in ("--set", each)]
                played = ["--split", "train", "--levels", str(options.levels), "--out", str(out)]
                if not (out / "summary.json").is_file() and ragen_agent(
                    ["eval", model, "--game", game, *played, *sets]
                ):
                    raise SystemExit(f"{out} is not whole; see above.")
                summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
                rows.append(_row(name, game, wording, summary["splits"][game]))
                command = f"{' '.join(f'{each}=MODEL' for each in models)} --levels {options.levels}"
                command += f" --games {' '.join(options.games)}"
                text = TEXT.format(
                    models=" and ".join(models),
                    games=" and ".join(options.games),
                    levels=options.levels,
                    rows="\n".join(rows),
                    command=command,
                    about=options.about,
                )
                write_atomic(options.out, f"{text.rstrip()}\n")
    return 0


def _row(model: str, game: str, wording: str, split: dict[str, Any]) -> str:
    malformed, common = split["malformed"], split["common_problem"]
    whole = wilson(malformed["n"] - sum(malformed["problems"].values()), malformed["n"])
    problem = f"`{common['problem']}`, {common['n']} of {malformed['n']}" if common else ""
    success = split["success"]
    solved = f"{round(success['rate'] * success['n'])} of {success['n']}"
    share = f"{100 * whole.value:.0f} % ({100 * whole.low:.0f} to {100 * whole.high:.0f})"
    return f"| {model} | {game} | {wording} | {share} | {solved} | {problem} |"


if __name__ == "__main__":
    raise SystemExit(main())
