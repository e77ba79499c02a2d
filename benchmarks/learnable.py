"""Sensitivity and specificity of ``ragen-gym audit --learnable``: ``python -m benchmarks.learnable``.

The environments are those of ``benchmarks.planted``. Thresholds were chosen on the first 30; ``--held-out`` plays the
last ten, once: what ``learnable.json`` holds already is not played again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from benchmarks.planted import HELD_OUT, KINDS, NUMBERS, Planted
from ragen_agent.learnable import VERDICTS, LearnSettings, learn
from ragen_agent.learnable.answers import BLIND, COMPARED, THRESHOLDS, Answer, Floats, Measured, answers, verdict
from ragen_agent.learnable.train import REPEATS
from ragen_gym.audit import AuditSettings
from ragen_gym.core.stats import wilson

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
SETTINGS = LearnSettings(iterations=24, seconds=600)
EPISODES = 1024  # of a constant reply
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
        audited = AuditSettings(options={"number": number}, path=[str(ROOT)])
        code = digest()
        report = learn("benchmarks.planted:Planted", audited, SETTINGS)
        row = {"number": number, "kind": planted.kind, "about": planted.about, "tells": planted.tells, "code": code}
        results["rows"].append(row | report.to_dict() | {"constant_reply": constant_reply(planted)})
        print(json.dumps(row), report.verdict, f"{report.seconds:.0f} s", flush=True)
        write_results(options.out, "learnable", results, _page(results))
    write_results(options.out, "learnable", results, _page(results))
    return 0


def judged(row: Mapping[str, Any]) -> str:
    """The verdict on a row's measurements, by the thresholds as they are."""
    return verdict([Answer(**each) for each in row["answers"]])


def digest() -> str:
    """A name of the code that a row is measured with: of both packages and the planted environments."""
    files = sorted([*ROOT.glob("ragen_*/**/*.py"), ROOT / "benchmarks" / "planted.py"])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def constant_reply(planted: Planted) -> str:
    """The verdict without a model: by the best constant reply beside random ones, judged as a trained model is."""
    rng, choices = np.random.default_rng(0), planted.get_all_actions()
    best = max(choices, key=lambda reply: float(_played(planted, 0, lambda: reply)[0].mean()))
    policies = {"start": lambda: str(rng.choice(choices)), "trained": lambda: best}
    played = {name: _played(planted, 1, reply) for name, reply in policies.items()}
    returns = {name: each[0] for name, each in played.items()}
    seen = np.concatenate([*returns.values()])
    returns |= {"shuffled": returns["start"], "blind": returns["trained"]}
    successes = {name: each[1] for name, each in played.items()} if planted.tells else {}
    return verdict(answers(Measured(returns, successes, [0.0], [], float(seen.min()), float(seen.max()), EPISODES)))


def _played(planted: Planted, odd: int, reply: Callable[[], str]) -> tuple[Floats, Floats]:
    """Returns and successes on even seeds or on odd ones, (256, 4) each."""
    found = []
    for seed in range(odd, 2 * EPISODES, 2):
        planted.reset(seed=seed)
        total, over, info = 0.0, False, dict[str, Any]()
        while not over:
            _, reward, over, _, info = planted.step(reply())
            total += reward
        found.append((total, float(info.get("success", False))))
    totals, successes = np.array(found).T.reshape(2, -1, 4)
    return totals, successes


def _page(results: Mapping[str, Any]) -> str:
    """The page of the rows so far."""
    rows = results["rows"]
    sides = {
        "Chosen on": [row for row in rows if row["number"] not in HELD_OUT],
        "Held out": [row for row in rows if row["number"] in HELD_OUT],
    }
    faulty = [row for row in rows if row["kind"] != "fine"]
    lines = [
        "# Does an environment teach?",
        "",
        INTRODUCTION.format(
            planted=len(rows),
            iterations=SETTINGS.iterations,
            seconds=SETTINGS.seconds,
            longer=sum(row["seconds"] > LearnSettings.seconds for row in rows),
            limits=", ".join(f"{name} {value:g}" for name, value in THRESHOLDS.items()),
            chosen=len(sides["Chosen on"]),
            held=len(sides["Held out"]),
            faulty=len(faulty),
            model=sum(RIGHT[row["kind"]] == judged(row) for row in faulty),
            script=sum(RIGHT[row["kind"]] == row["constant_reply"] for row in faulty),
        ),
    ]
    for title, side in sides.items():
        lines += ["", f"## {title}: {len(side)} environments", "", *_confusion(side)]
    skewed = [row for row in rows if "skew" in row["about"]]
    method = METHOD.format(
        script=EPISODES,
        levels=SETTINGS.levels,
        repeats=REPEATS,
        seconds=median(row["seconds"] for row in rows),
        trained=mean(row["train_episodes"] for row in rows),
        machine=results["machine"],
        skewed=len(skewed),
        missed=sum(RIGHT[row["kind"]] != judged(row) for row in skewed),
        held_skewed=sum(row["number"] in HELD_OUT for row in skewed),
        blind=THRESHOLDS["blind"],
        shuffled=sum(judged(row) == "no signal" and _answer(row, BLIND)["n"] > 0 for row in rows),
        without=sum("code" not in row for row in rows),
    )
    return "\n".join([*lines, "", "## The environments", "", PLANTED, "", _table(rows), "", method])


def _confusion(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["Not run yet."]
    said = [(row["kind"], judged(row)) for row in rows]
    script = [(row["kind"], row["constant_reply"]) for row in rows]
    table = []
    for kind, wanted in RIGHT.items():
        inside = [each == wanted for of, each in said if of == kind]
        outside = [each != wanted for of, each in said if of != kind]
        rates = [str(wilson(sum(each), len(each))) if each else "-" for each in (inside, outside)]
        counts = [str(said.count((kind, each)) or "-") for each in VERDICTS]
        table.append([kind, *counts, *rates, f"{script.count((kind, wanted))} of {len(inside)}"])
    right, without = (sum(RIGHT[kind] == each for kind, each in by) for by in (said, script))
    return [
        f"Right verdicts: {right} of {len(said)}, {wilson(right, len(said))}; by the constant reply, {without}.",
        "",
        markdown_table(["planted", *VERDICTS, "sensitivity", "specificity", "constant reply is right"], table),
    ]


INTRODUCTION = """\
`python -m benchmarks.learnable` trains the small model of `ragen-gym audit --learnable` on {planted} planted
environments of known kind, with other settings than the command's: up to {iterations} iterations and {seconds:g}
seconds, without the control with random groups. The default, one minute for four policies, was not measured; {longer}
environments took longer here. The thresholds ({limits}) were fixed on {chosen} environments; {held} were kept apart
and run once, afterwards.

A script without a model, the best constant reply beside random replies, is judged by the same thresholds. On the
{faulty} environments that are not fine it is right {script} times, and the model {model} times: only `teaches` needs
the model here."""


PLANTED = """\
Signal and gap are shares of the range of returns seen; blind is the blind policy's share of the trained model's gain.
A dash: not measured, as no gain was to be explained or success is not told. Wrong verdicts are bold."""


def _answer(row: Mapping[str, Any], question: str) -> Mapping[str, Any]:
    return next(each for each in row["answers"] if each["question"] == question)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in sorted(rows, key=lambda row: row["number"]):
        figures = {each["question"]: f"{each['figure']:.2f}" for each in row["answers"] if each["n"]}
        asked = [figures.get(question, "-") for question in COMPARED]
        verdicts = [
            each if RIGHT[row["kind"]] == each else f"**{each}**" for each in (judged(row), row["constant_reply"])
        ]
        cells.append([str(row["number"]), row["kind"], row["about"], *asked, f"{row['seconds']:.0f}", *verdicts])
    head = ["", "planted", "about", *COMPARED.values(), "seconds", "verdict", "constant reply"]
    return markdown_table(head, cells)


METHOD = """\
## How

Each environment asks one or two short questions a level and offers 2 to 11 replies. A model of 0.15M parameters
imitates random valid replies, which teaches the form of a reply and not the skill. Then it trains with Dr. GRPO, 16
levels with 8 episodes each in an iteration. Where it gained, copies train with shuffled rewards and without sight of
the level; the shuffled rewards changed {shuffled} of the verdicts. All policies play the same {levels} levels, of seeds
that training does not draw, {repeats} episodes each at temperature 1. Intervals are over these levels, for one training
run with one seed: they do not hold the spread between training runs. The constant reply is chosen on {script:,} seeds
and judged on {script:,} others.

The median environment took {seconds:.0f} seconds on a core shared with other work ({machine}), and {trained:,.0f}
training episodes of each policy on average.

## What it does not show

- The environments are small, alike and made by us, and the ten held out come from the same generator. Other people's
  environments differ more than these do from each other.
- {without} rows were measured with slightly older code and do not name it; rows to come record its digest. Headroom in
  their records is to the best episode. In 0 to 5 a control could end sooner than the trained model. Before the others
  `any` was redefined, so that its phrase also solves: by the old definition 6, 10 and 18 would most likely be "pays
  without solving".
- "No signal" means that this small model found none in this time. A task beyond it looks like a broken one.
- `skew` overwrites the right answer in four tenths of the questions, and the text stays. {missed} of {skewed} such
  environments have a wrong verdict. A blind policy has 0.62 to 0.67 of a perfect reader's gain there, and the limit is
  {blind:g}: "teaches" is hardly within reach. {held_skewed} of them are held out: that table is an easier test.
- Number 36 is not quite held out: learning curves of 12, 16, 24, 28 and 36, without controls or verdicts, were looked
  at while the learning rate was chosen.
- "Pays without solving" needs an environment that tells success apart from reward. All planted hackable ones do.
- A blind policy finds a reply that always pays, too. A hack in an environment that tells no success therefore appears
  as "pays without reading".
"""


if __name__ == "__main__":
    raise SystemExit(main())
