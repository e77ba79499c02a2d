"""Sensitivity and specificity of ``ragen-gym audit --learnable``: ``python -m benchmarks.learnable``.

The environments are those of ``benchmarks.planted``. Thresholds were chosen on the first 30; ``--held-out`` plays the
last ten, once: what ``learnable.json`` holds already is not played again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from benchmarks.planted import HELD_OUT, KINDS, NUMBERS, Planted
from ragen_agent.learnable import VERDICTS, LearnSettings, learn
from ragen_agent.learnable.answers import COMPARED, THRESHOLDS, Answer, verdict
from ragen_agent.learnable.train import REPEATS
from ragen_gym.audit import AuditSettings
from ragen_gym.core.stats import wilson

__all__ = ["main"]

SETTINGS = LearnSettings(iterations=24, seconds=600, groups=False)
#: The verdict that is right for each kind.
RIGHT = dict(zip(KINDS, ("teaches", "no signal", "pays without reading", "pays without solving"), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on the environments that are missing, and write the page."""
    parser = page_parser("learnable", __doc__)
    parser.add_argument("--held-out", action="store_true", help="the ten environments kept for the end")
    parser.add_argument("--page-only", action="store_true", help="write the page again from the JSON")
    options = parser.parse_args(arguments)
    results = read_results(options.out, "learnable") or {"machine": machine("torch"), "rows": []}
    done = {row["number"] for row in results["rows"]}
    for number in () if options.page_only else NUMBERS:
        if number in done or (number in HELD_OUT and not options.held_out):
            continue
        planted = Planted(number)
        audited = AuditSettings(options={"number": number}, path=[str(Path(__file__).parents[1])])
        report = learn("benchmarks.planted:Planted", audited, SETTINGS)
        row = {"number": number, "kind": planted.kind, "about": planted.about, "tells": planted.tells}
        results["rows"].append(row | report.to_dict())
        print(json.dumps(row), report.verdict, f"{report.seconds:.0f} s", flush=True)
        write_results(options.out, "learnable", results, _page(results))
    write_results(options.out, "learnable", results, _page(results))
    return 0


def judged(row: Mapping[str, Any]) -> str:
    """The verdict on a row's measurements, by the thresholds as they are."""
    return verdict([Answer(**each) for each in row["answers"]])


def _page(results: Mapping[str, Any]) -> str:
    """The page of the rows so far."""
    rows = results["rows"]
    sides = {
        "Chosen on": [row for row in rows if row["number"] not in HELD_OUT],
        "Held out": [row for row in rows if row["number"] in HELD_OUT],
    }
    limits = ", ".join(f"{name} {value:g}" for name, value in THRESHOLDS.items())
    lines = [
        "# Does an environment teach?",
        "",
        f"`python -m benchmarks.learnable` runs `ragen-gym audit --learnable` on {len(rows)} planted environments of "
        f"known kind. The thresholds ({limits}) were fixed on {len(sides['Chosen on'])} of them; "
        f"{len(sides['Held out'])} were kept apart and run once, afterwards.",
    ]
    for title, side in sides.items():
        lines += ["", f"## {title}: {len(side)} environments", "", *_confusion(side)]
    wrong = [row for row in rows if RIGHT[row["kind"]] != judged(row)]
    method = METHOD.format(
        iterations=SETTINGS.iterations,
        levels=SETTINGS.levels,
        repeats=REPEATS,
        episodes=SETTINGS.levels * REPEATS,
        seconds=median(row["seconds"] for row in rows),
        trained=mean(row["train_episodes"] for row in rows),
        machine=results["machine"],
        wrong=len(wrong),
        skewed=sum("skew" in row["about"] for row in wrong),
        held_skewed=sum("skew" in row["about"] for row in sides["Held out"]),
    )
    return "\n".join([*lines, "", "## The environments", "", PLANTED, "", _table(rows), "", method])


def _confusion(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["Not run yet."]
    said = [(row["kind"], judged(row)) for row in rows]
    table = [[kind, *(str(said.count((kind, each)) or "-") for each in VERDICTS)] for kind in KINDS]
    rates = []
    for kind, wanted in RIGHT.items():
        inside = [each == wanted for of, each in said if of == kind]
        outside = [each != wanted for of, each in said if of != kind]
        rates.append(
            [kind, wanted, *(str(wilson(sum(each), len(each))) if each else "-" for each in (inside, outside))]
        )
    right, commonest = sum(RIGHT[kind] == each for kind, each in said), max(Counter(kind for kind, _ in said).values())
    return [
        f"Right verdicts: {right} of {len(said)}, {wilson(right, len(said))}. One verdict for all would be right in "
        f"{commonest} at best.",
        "",
        markdown_table(["planted", *VERDICTS], table),
        "",
        markdown_table(["planted", "right verdict", "sensitivity", "specificity"], rates),
    ]


PLANTED = """\
Signal and gap are shares of the range of returns seen; blind is the blind policy's share of the trained model's gain.
A dash: not measured, as no gain was to be explained or success is not told. Wrong verdicts are bold."""


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in sorted(rows, key=lambda row: row["number"]):
        figures = {each["question"]: f"{each['figure']:.2f}" for each in row["answers"] if each["n"]}
        found = judged(row)
        found = found if RIGHT[row["kind"]] == found else f"**{found}**"
        asked = [figures.get(question, "-") for question in COMPARED]
        cells.append([str(row["number"]), row["kind"], row["about"], *asked, f"{row['seconds']:.0f}", found])
    return markdown_table(["", "planted", "about", *COMPARED.values(), "seconds", "verdict"], cells)


METHOD = """\
## How

Each environment asks one or two short questions a level and offers 2 to 11 replies. A model of 0.15M parameters
imitates random valid replies, which teaches the form of a reply and not the skill. From there it trains with Dr. GRPO
for up to {iterations} iterations of 16 levels with 8 episodes each. Where it gained, copies train with shuffled rewards
and without sight of the level. The audit's control with random groups is left out here, since no verdict reads it. All
policies play the same {levels} levels, of seeds that training does not draw, {repeats} episodes each at temperature 1:
{episodes} episodes. Intervals are over these levels, for one training run with one seed: they do not hold the spread
between training runs.

The median environment took {seconds:.0f} seconds on a core shared with other work ({machine}), and {trained:,.0f}
training episodes of each policy on average.

## What it does not show

- The environments are small, alike and made by us, and the ten held out come from the same generator. Other people's
  environments differ more than these do from each other.
- "No signal" means that this small model found none in this time. A task beyond it looks like a broken one.
- A model that has only learnt the commonest answer gains as much as the blind policy. A fine environment with such an
  answer then appears as "pays without reading". Longer training was not tried here. Of the {wrong} wrong verdicts,
  {skewed} are on environments with a common answer (`skew`), and {held_skewed} of those held out are of this kind: the
  held-out table is an easier test than the first one.
- Number 36 is not quite held out: learning curves of 12, 16, 24, 28 and 36, without controls or verdicts, were looked
  at while the learning rate was chosen.
- "Pays without solving" needs an environment that tells success apart from reward. All planted hackable ones do.
- A blind policy finds a reply that always pays, too. A hack in an environment that tells no success therefore appears
  as "pays without reading".
"""


if __name__ == "__main__":
    raise SystemExit(main())
