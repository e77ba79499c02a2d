"""Formulas that trainers compute, library by library: ``python -m benchmarks.conform FILE ...``.

Each FILE is the output of ``ragen-agent conform LIBRARY --json`` in an environment with that library; its rows replace
the rows of the same library. The results are ``conform.json`` and ``conform.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page_parser, write_results
from ragen_agent.conform.formulas import RULES

EQUAL = "equal returns keep the rounding error of their mean"
NOISE = 1e-3  # advantages below are of no consequence
UNCALLED = {"TRL": ("GRPO", "Dr. GRPO", "RLOO")}  # within the method that also generates

MATTERS = {
    EQUAL: "all rollouts of a group return the same, and their sum rounds in float32; see below",
    "the only rollout of a group keeps its return": "a group has one rollout: without a baseline every return above 0 "
    "is reinforced",
    "a turn is taken to end with value 0 where an observation follows": "episodes have several turns, and lambda or "
    "gamma is below 1: credit for a later turn shrinks with each token of the observation. At 1 and 1, the default, it "
    "vanishes",
    "the value at an observation's tokens stands in for the next turn's": "episodes have several turns, and lambda or "
    "gamma is below 1: the critic is read at tokens at which it is not trained. At 1 and 1, the default, it vanishes",
    "bounded at 3 times a negative advantage (dual clip)": "a token of a bad rollout became more than 3 times as "
    "likely as when it was sampled; arXiv 1912.09729",
    "rows without tokens count as rows": "a mask or a filter leaves rows without tokens: the step shrinks",
    "divided by the width of the batch": "batches differ in width: `loss_scale_factor` makes it constant",
    "ratios clipped from below too": "a token became less likely. Equation 5 has this bound; the paper sets it so low "
    "that it never acts, as `clip_ratio_low=1` does",
    "ratios below 1 count as 1": "a token became less likely. The default `cispo_eps_clip_low=0` does it; 1 gives the "
    "paper's run",
    "no gradient where the estimate is beyond 10": "policy and reference are far apart: k3 stops where the reference "
    "finds a token over 13.6 times as likely, k2 at 87 times either way, k1 at 22,026 times",
    "times the probability ratio, with its gradient": "always: the gradient is of KL(policy to reference), where k3 "
    "alone has the gradient of KL(reference to policy)",
    "std + 1e-9": "returns of a group differ by less than 1e-5; the paper has no term here",
    "whitened": "always: advantages have mean 0 and std 1 over the batch, as PPO is usually run",
    "whitened, with a variance over n": "always, as above",
    "whitened over observations too": "always: tokens of observations, which are not trained, move mean and std",
}
"""The conditions in which each difference changes what is learned."""

PAGE = """\
# What trainers compute

Written by `python -m benchmarks.conform` from the output of `ragen-agent conform LIBRARY --json`, which calls the
functions of each library on a few small batches of rollouts, and compares advantages, or the gradient of the loss with
respect to the log-probs, with the published formula. Try your own trainer: `ragen-agent conform my_trainer:LIBRARY`.

| rule | {heads} |
|---|{lines}|
{rows}

✓ the published formula, on these batches, in one microbatch on one device. Letters: these differences, and no other.
no: the library does not have the rule. not called: the rule stands inside a larger method. OpenRLHF and Molt refuse
groups of one, so none was tried there. A difference is not a fault: two trainers that differ here are just not
comparable at the same settings, and several differences improve on the paper.

| | difference | matters where |
|---|---|---|
{differences}

**Equal returns.** Rollouts of a group that all return the same give no direction, and we take their advantage as 0. In
float32 the mean of eight equal returns is not always the return; divided by a std of that size, the rounding error
becomes an advantage, of one sign for the whole group:

| each of eight returns | {heads_grpo} |
|---|{lines_grpo}|
{equal}

The table has the size of each rollout's advantage, in two groups of eight; rollouts that differ have one of about 1.
-0.3 is the return of three moves of Sokoban that solve nothing, 9.9 of eleven that solve it. OpenRLHF takes the mean of
all groups at once and the std of equal returns as 0; its advantages are clipped to 10. Cures: returns whose sum is
exact, such as multiples of 1/8, or a filter of groups without spread: [StarPO-S](../docs/concepts/starpo.md), verl's
`filter_groups`, SkyRL's `zero_variance_filter`, `dynamic_filtering` of OpenRLHF and Molt. All four are off by default.

**How.** Batches have up to 16 rows of 12 tokens, in float64; the formulas agree to a relative error of 1e-5. Clips go
from 0.8 to 1.28, Dr. GRPO's constant length is 16, gamma 0.99 and lambda 0.9; other settings are the libraries'
defaults, but for Molt's `kl.ref`, here `model`. In CISPO, TRL and Molt take the bound itself as their setting, here
1.28; TRL's default, 0.2, caps a token's weight at 0.2 even on policy. KL rows compare the estimate's gradient under a
mean over tokens; some libraries advise k1 in the reward alone. Our formulas divide by the std over n - 1, plus 1e-6,
and are 0 where they are undefined. A difference was named by trying the variants of the formula, fewest changes first;
each is written out in `ragen_agent/conform/formulas.py`. TRL's and OpenRLHF's methods run on a stand-in for their
trainer that holds the fields they read. SkyRL's settings import on Python 3.12 only; here `typing.TypedDict` was
replaced.
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
        cells |= {(rule, library): "not called" for library, rules in UNCALLED.items() if rule in rules}
        for library, found in by_library.items():
            for row in (row for row in found if row["rule"] == rule):
                differences = row["differences"] + [EQUAL] * (max(row["equal"].values(), default=0) > NOISE)
                if row["verdict"] == "unexplained" or not set(differences) <= set(MATTERS):
                    raise ValueError(f"{library}, {rule}: {differences or row['verdict']} needs an explanation")
                for words in differences:
                    letters.setdefault(words, chr(ord("a") + len(letters)))
                cells[rule, library] = ", ".join(letters[words] for words in differences) or "✓"
    heads = [f"{library} {found[0]['version']}" for library, found in by_library.items()]
    grpo = {library: row["equal"] for library, found in by_library.items() for row in found if row["rule"] == "GRPO"}
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
            f"| {value} | {' | '.join(f'{equal[value]:.2g}' for equal in grpo.values())} |"
            for value in next(iter(grpo.values()))
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
