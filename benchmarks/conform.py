"""Formulas that trainers compute, library by library: ``python -m benchmarks.conform FILE ...``.

Each FILE is the output of ``ragen-agent conform LIBRARY --json`` in an environment with that library; its rows replace
those of the same library. Written are ``conform.json`` and ``conform.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page_parser, write_results
from ragen_agent.conform.formulas import RULES

__all__ = ["main", "page"]

EQUAL = ("equal returns of 0.1, float32", "equal returns of 10.9, float32")

MATTERS = {
    "equal returns keep the rounding error of their mean": "all rollouts of a group return the same, and this return "
    "is not a float32 number; see below",
    "the only rollout of a group keeps its return": "a group has one rollout: without a baseline every return above 0 "
    "is reinforced",
    "a turn is taken to end with value 0 where an observation follows": "episodes have several turns and lambda is "
    "below 1: a turn that leads to a good state gets no credit from its value",
    "the value at an observation's tokens stands in for the next turn's": "episodes have several turns: the critic is "
    "read at tokens at which it is not trained",
    "bounded at 3 times a negative advantage (dual clip)": "a token of a bad rollout became more than 3 times as "
    "likely as when it was sampled",
    "rows without tokens count as rows": "a mask or a filter leaves rows without tokens: the step shrinks",
    "ratios clipped from below too": "a token became less likely: its weight stays at 1 - epsilon",
    "ratios below 1 count as 1": "a token became less likely: its weight stays 1 at the default, "
    "`cispo_eps_clip_low=0`",
    "bounded by epsilon, not by 1 + epsilon": "the setting is copied from a paper or from another trainer",
    "no gradient where the estimate is above 10": "the reference finds a token far more likely, with k3 over 13 "
    "times: it is not pulled back",
    "std + 1e-9": "returns of a group differ by less than 1e-5",
    "whitened": "always: advantages have mean 0 and std 1 over the batch, as PPO is usually run",
    "whitened, with a variance over n": "always, as above",
    "whitened over observations too": "always; tokens of observations, which are not trained, move mean and std",
}
"""When each difference changes what is learned."""

PAGE = """\
# What trainers compute

Written by `python -m benchmarks.conform` from the output of `ragen-agent conform LIBRARY --json`, which calls the
functions of each library on a few small batches of rollouts, and compares advantages, or the gradient of the loss with
respect to the log-probs, with the published formula. Try your own trainer: `ragen-agent conform my_trainer:LIBRARY`.

| rule | {heads} |
|---|{lines}|
{rows}

✓ the published formula, on every batch. A letter: this difference, and no other. no: the library does not have the
rule, or not as a function that can be called. All settings but the bounds of the clip and the kind of mean are the
library's defaults. A difference is not always a fault; two trainers that differ here are not comparable at the same
settings.

| | difference | matters where |
|---|---|---|
{differences}

**Equal returns.** A group whose rollouts all return the same teaches nothing: the formula gives each the advantage 0.
In float32 the mean of eight equal returns is not always the return itself; divided by a std of the same size the
rounding error becomes an advantage, of one sign for the whole group:

| size of the advantage of each of eight equal rollouts | {heads_grpo} |
|---|{lines_grpo}|
{equal}

A group of rollouts that differ has advantages of size 1. So in these trainers a group that earned 10.9 eight times, a
usual return of a solved Sokoban, can be pushed down or up as a whole. Cures: filter groups without spread, as
[StarPO-S](../docs/concepts/starpo.md) does, or returns that float32 holds exactly.

**How.** Batches have one to eight rows of 12 tokens, in float64 unless they are about float32; results agree to a
relative error of 1e-5. What a difference is called was found by trying the variants of the formula, fewest changes
first, and each variant is written out in `ragen_agent/conform/formulas.py`. TRL's advantages stand inside the method
that also generates, so its losses alone are compared. TRL's and OpenRLHF's methods run on a stand-in for their trainer
that holds the fields they read. SkyRL's settings import on Python 3.12 only; here `typing.TypedDict` was replaced.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Add the findings and write the page."""
    parser = page_parser("conform", __doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="output of ragen-agent conform --json")
    options = parser.parse_args(arguments)
    kept = Path(__file__).with_suffix(".json")
    by_library: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text())["libraries"] if kept.exists() else {}
    for file in options.files:
        rows = json.loads(file.read_text())
        for library in {row["library"] for row in rows}:
            by_library[library] = [row for row in rows if row["library"] == library]
    write_results(options.out, "conform", {"libraries": by_library}, page(by_library))
    return 0


def page(by_library: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The page of the findings of each library.

    Raises:
        ValueError: a finding that no variant explains, or a difference of which ``MATTERS`` says nothing.
    """
    cells: dict[tuple[str, str], str] = {}
    letters: dict[str, str] = {}
    for rule in RULES:
        for library, found in by_library.items():
            for row in found:
                if row["rule"] != rule:
                    continue
                if row["verdict"] == "unexplained" or not set(row["differences"]) <= set(MATTERS):
                    raise ValueError(f"{library}, {rule}: {row['differences'] or row['verdict']} needs an explanation")
                for words in row["differences"]:
                    letters.setdefault(words, chr(ord("a") + len(letters)))
                cells[rule, library] = ", ".join(letters[words] for words in row["differences"]) or "✓"
    heads = [f"{library} {found[0]['version']}" for library, found in by_library.items()]
    grpo = {library: row["errors"] for library, found in by_library.items() for row in found if row["rule"] == "GRPO"}
    return PAGE.format(
        heads=" | ".join(heads),
        lines="|".join("---" for _ in heads),
        rows="\n".join(
            f"| {rule} ({RULES[rule].source}) | {' | '.join(cells.get((rule, each), 'no') for each in by_library)} |"
            for rule in RULES
        ),
        differences="\n".join(f"| {letter} | {words} | {MATTERS[words]} |" for words, letter in letters.items()),
        heads_grpo=" | ".join(grpo),
        lines_grpo="|".join("---" for _ in grpo),
        equal="\n".join(
            f"| {name.partition(',')[0]} | {' | '.join(f'{errors[name]:.2g}' for errors in grpo.values())} |"
            for name in EQUAL
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
