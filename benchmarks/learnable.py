"""Verdicts of ``ragen-gym audit --learnable``: ``python -m benchmarks.learnable``.

The environments are those of ``benchmarks.planted``. Thresholds were chosen on the first 30; ``--held-out`` plays the
last ten; ``--others PYTHON`` plays the environments of other people in the interpreter that has their libraries.
What ``learnable.json`` holds already is not played again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from benchmarks.planted import HELD_OUT, KINDS, NUMBERS, Planted
from ragen_agent.learnable import VERDICTS, LearnSettings, learn
from ragen_agent.learnable.answers import BLIND, GAP, SIGNAL, THRESHOLDS, Floats, Measured, answers, verdict
from ragen_agent.learnable.task import AuditedTask, opened
from ragen_agent.learnable.train import PROBED, REPEATS
from ragen_gym.audit import AuditSettings
from ragen_gym.core.stats import mean_interval, wilson

ROOT = Path(__file__).parents[1]
#: The command's, but for the clock: processor seconds, with those of ended child processes, on a shared machine.
SETTINGS = LearnSettings(clock=lambda: sum(os.times()[:4]))
EPISODES = 1024  # of a constant reply
JUDGED = 4096  # the same in environments of other people
#: Players that read, by target: the reply to a text.
READERS: dict[str, dict[str, Callable[[str], str]]] = {
    "Blackjack-v1": {"hit below 17": lambda text: str(int(int(re.findall(r"\d+", text)[0]) < 17))}
}
#: The verdict that is right for each kind.
RIGHT = dict(zip(KINDS, ("teaches", "no signal", "pays without reading", "pays without solving"), strict=True))
SUMS = [str(answer) for answer in range(-9, 19)]  # of two digits, or their difference
#: Environments of other people: target, options and actions.
OTHERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("reasoning-gym:syllogism", {}, ["Yes", "No"]),
    ("textarena:ThreeCardMonte-v0", {"steps": 1}, ["[0]", "[1]", "[2]"]),
    ("Blackjack-v1", {}, []),
    ("reasoning-gym:chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, SUMS),
    ("reasoning-gym:count_bits", {"min_n": 1, "max_n": 15}, ["1", "2", "3", "4"]),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on the environments that are missing, and write the page."""
    parser = page_parser("learnable", __doc__)
    parser.add_argument("--held-out", action="store_true", help="the ten environments kept for the end")
    parser.add_argument("--others", metavar="PYTHON", help="interpreter with textarena, reasoning-gym and gymnasium")
    parser.add_argument("--page-only", action="store_true", help="write the page again from the JSON")
    options = parser.parse_args(arguments)
    results = read_results(options.out, "learnable") or {"machine": machine("torch"), "rows": [], "others": []}

    def run(rows: str, target: str, audited: AuditSettings, about: Mapping[str, Any]) -> None:
        row = {**about, **asdict(learn(target, audited, SETTINGS))}
        results[rows].append(row)
        print(about, row["verdict"], f"{row['seconds']:.0f} s", flush=True)
        write_results(options.out, "learnable", results, _page(results))

    for target, given, actions in OTHERS if options.others else ():
        audited = AuditSettings(options=given, actions=actions, python=options.others)
        if target not in (row["target"] for row in results["others"]):
            run("others", target, audited, {"options": given, "actions": actions})
        row = next(row for row in results["others"] if row["target"] == target)
        if "fools" not in row:
            row["fools"] = fools(target, audited)
    done = {row["number"] for row in results["rows"]}
    for number in () if options.page_only or options.others else NUMBERS:
        if number not in done and (options.held_out or number not in HELD_OUT):
            planted = Planted(number)
            about = {"number": number, "kind": planted.kind, "about": planted.about, "tells": planted.tells}
            audited = AuditSettings(options={"number": number}, path=[str(ROOT)])
            run("rows", "benchmarks.planted:Planted", audited, about | {"constant_reply": constant_reply(planted)})
    write_results(options.out, "learnable", results, _page(results))
    return 0


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


def fools(target: str, audited: AuditSettings) -> list[dict[str, Any]]:
    """Returns of the best constant reply, and of the player of ``READERS``, with their intervals."""
    with opened("fools", target, audited):
        train, test = (AuditedTask("fools", split=split) for split in ("train", "test"))

        def earned(task: AuditedTask, episodes: int, reply: Callable[[str], str]) -> list[float]:
            totals = []
            for seed in range(episodes):
                (text, _), total, over = task.reset(seed=seed, options={"noise_seed": seed}), 0.0, False
                while not over:
                    text, reward, terminated, truncated, _ = task.step(reply(text))
                    total, over = total + reward, terminated or truncated
                totals.append(total)
            return totals

        rng = np.random.default_rng(0)
        train.reset(seed=0)
        choices = audited.actions or sorted({train.random_reply(rng) for _ in range(PROBED)})
        best = max(choices, key=lambda choice: fmean(earned(train, EPISODES, lambda _: choice)))
        players = {f"always {best}": lambda _: best, **READERS.get(target, {})}
        return [
            {"name": name, **mean_interval(earned(test, JUDGED, reply)).to_dict("mean")}
            for name, reply in players.items()
        ]


def _page(results: Mapping[str, Any]) -> str:
    """The page of the rows so far."""
    rows = sorted(results["rows"], key=lambda row: row["number"])
    faulty = [row for row in rows if row["kind"] != "fine"]
    fine, skewed = [row for row in rows if row not in faulty], [row for row in rows if "skew" in row["about"]]
    tried = [row for row in rows if row["number"] in (0, 1, 2, 8, 12, 16, 28)]
    shuffled = [row for row in rows if row["verdict"] == "no signal" and _answer(row, BLIND)["n"]]
    cut = sum("the time ended" in row["reason"] or "was cut" in row["reason"] for row in rows)
    seconds = sorted(row["seconds"] for row in rows)
    return f"""\
# Does an environment teach?

`python -m benchmarks.learnable` runs `ragen-gym audit --learnable` on {len(rows)} planted environments of known kind,
with the command's settings but for the clock: its minute is counted in processor seconds, as the machine was shared.
The command counts wall seconds. The minute ended {cut} of these trainings. Where it ends one, on a slow or busy
machine, the command does not say `no signal` but asks for more minutes.

The thresholds (signal {THRESHOLDS[SIGNAL]}, blind {THRESHOLDS[BLIND]}, gap {THRESHOLDS[GAP]}) were fixed on 30 of the
environments with earlier code and other settings, and not changed since. Ten were kept apart then, and have been run
twice: with the earlier code and with this one. Between the two codes the verdict of one of the 40 changed, number 28
from `no signal` to `teaches`. Each is of one training run. Intervals of rates count environments of one generator.

Two fools stand beside the model. A script without a model judges the best constant reply against random replies, by
the same thresholds. Or one verdict is given to all. On the {len(faulty)} environments that are not fine, the script is
right {_right(faulty, "constant_reply")} times and the model {_right(faulty)} times. Only `teaches` needs a model: it
says so of {_right(fine)} of {len(fine)}.

## Chosen on

{_confusion([row for row in rows if row["number"] not in HELD_OUT])}

## Kept apart

{_confusion([row for row in rows if row["number"] in HELD_OUT])}

## The environments

Signal and gap are shares of the range of returns seen; blind is the blind policy's share of the trained model's gain.
Shares have no interval: they are compared with their thresholds as they are.
A dash: not measured, as no gain was to be explained or success is not told. Wrong verdicts are bold.

{_table(rows)}

## Environments of other people

The first four were listed before any was run. The last was added afterwards, as an easy one. No other was run. Each
trains once, with one seed, and plays {SETTINGS.levels} levels {REPEATS} times. Constant replies are chosen on
{EPISODES:,} seeds and judged on {JUDGED:,} others.

{_fools(results["others"])}

**"Pays without reading" is here no fault of the environment.** Both that got it reward reading: the solutions of
`syllogism` earn 1, and in `Blackjack-v1` a player who looks at the sum and hits below 17 earns surely more than any
constant reply. The verdict only says that this model gained about as much as its copy that sees nothing. The audit
cannot tell a leak from a task beyond the model.
{"".join(map(_other, results["others"]))}
## How

A planted environment asks one or two short questions a level and offers 2 to 11 replies. A model of 0.15M parameters
imitates random valid replies, which teaches the form of a reply and not the skill. Then it trains with Dr. GRPO, 16
levels with 8 episodes each in an iteration, for a quarter of the time that is left, or until the returns of a level no
longer differ. Where it gained, copies train as many iterations with shuffled rewards and without sight of the level.
The shuffled rewards changed {len(shuffled)} of the verdicts. All policies play the same {SETTINGS.levels} levels, of
seeds that training does not draw, {REPEATS} episodes each at temperature 1. Intervals are over these levels, for one
training run with one seed: they do not hold the spread between training runs. On planted environments the constant
reply is chosen on {EPISODES:,} seeds and judged on {EPISODES:,} others.

The median planted environment took {median(seconds):.0f} processor seconds and the longest {seconds[-1]:.0f}
({results["machine"]}).

## What it does not show

- The planted environments are small, alike and made by us, and the ten kept apart come from the same generator.
- "No signal" means that this small model found none in this time. A task beyond it looks like a broken one. That is so
  in three environments of other people, which whoever reads can solve: its replies to a level soon no longer differed,
  and its training ended. None of the five was found to teach.
- "No signal" also means a gain below {THRESHOLDS[SIGNAL]:.0%} of the range of returns seen. Where pay is rare and
  large, as in a bandit with a risky arm, that can be nearly all there is to gain.
- A verdict depends on the time. `Blackjack-v1` once got "teaches" with `--minutes 0.3`: the blind copy had not yet
  learned.
- A KL term towards the warm start is not in the command. It was tried on numbers 0, 1, 2, 8, 12, 16 and 28 alone,
  with one weight, one training each and more time. They were chosen when their verdicts were known, with all that the
  command gets wrong but 20. With the term 6 were right, without it {_right(tried)}; how much of that is the time was
  not tried. The record does not hold these runs. The term was left out because where pay differs, replies then keep
  differing: training lasts until its time ends, and the command gives no "no signal" to a training that the time ended.
- `skew` overwrites the right answer in four tenths of the questions, and the text stays. The verdict is right on
  {_right(skewed)} of {len(skewed)} such environments. A blind policy has 0.62 to 0.67 of a perfect reader's gain there:
  "teaches" is hardly within reach. None of them was kept apart: that table is an easier test.
- Number 36 was not quite kept apart: learning curves of 12, 16, 24, 28 and 36, without controls or verdicts, were
  looked at while the learning rate was chosen.
- "Pays without solving" needs an environment that tells success apart from reward, as all planted hackable ones do.
  In any other, a phrase that always pays appears as "pays without reading".
"""


def _right(rows: Sequence[Mapping[str, Any]], by: str = "verdict") -> int:
    return sum(RIGHT[row["kind"]] == row[by] for row in rows)


def _answer(row: Mapping[str, Any], question: str) -> Mapping[str, Any]:
    return next(each for each in row["answers"] if each["question"] == question)


def _confusion(rows: Sequence[Mapping[str, Any]]) -> str:
    if {row["kind"] for row in rows} != set(KINDS):
        return "Not run yet."
    table = []
    for kind, wanted in RIGHT.items():
        inside = [row for row in rows if row["kind"] == kind]
        outside = [row["verdict"] != wanted for row in rows if row["kind"] != kind]
        rates = [str(wilson(_right(inside), len(inside))), str(wilson(sum(outside), len(outside)))]
        counts = [str(sum(row["verdict"] == each for row in inside) or "-") for each in VERDICTS]
        table.append([kind, *counts, *rates, f"{_right(inside, 'constant_reply')} of {len(inside)}"])
    one, script = max(sum(row["kind"] == kind for row in rows) for kind in KINDS), _right(rows, "constant_reply")
    head = ["planted", *VERDICTS, "sensitivity", "specificity", "constant reply is right"]
    right = f"Right verdicts: {_right(rows)} of {len(rows)}, {wilson(_right(rows), len(rows))}. The best constant reply"
    return f"{right} gives {script}, and one verdict for all at best {one}.\n\n{markdown_table(head, table)}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in rows:
        asked = [_answer(row, question) for question in THRESHOLDS]
        figures = [f"{each['figure']:.2f}" if each["n"] else "-" for each in asked]
        said = [
            each if RIGHT[row["kind"]] == each else f"**{each}**" for each in (row["verdict"], row["constant_reply"])
        ]
        cells.append([str(row["number"]), row["kind"], row["about"], *figures, f"{row['seconds']:.0f}", *said])
    head = ["", "planted", "about", "signal", "blind", "gap", "seconds", "verdict", "constant reply"]
    return markdown_table(head, cells)


def _fools(others: Sequence[Mapping[str, Any]]) -> str:
    """Returns of the trained models beside players without a model."""
    cells = []
    for row in others:
        shown = [
            f"{each['name']}: {each['mean']:.3f} ({each['low']:.3f} to {each['high']:.3f})" for each in row["fools"]
        ]
        detail = _answer(row, SIGNAL)["detail"].split(" after training")[0]
        cells.append(
            [
                row["target"],
                row["verdict"],
                detail.removeprefix("return ").replace(" before and ", " to "),
                shown[0],
                "; ".join(shown[1:]) or "-",
            ]
        )
    return markdown_table(
        ["environment", "verdict", "model, start to end", "best constant reply", "a simple reader"], cells
    )


def _other(row: Mapping[str, Any]) -> str:
    """The section of an environment of other people."""
    given = [f" --option {name}={value}" for name, value in row["options"].items()]
    listed = [f" --action={shlex.quote(action)}" for action in row["actions"]]
    command = "".join(["ragen-gym audit --learnable ", row["target"], *given, *listed])
    measured = [f"- {each['question']}: {each['answer']}; {each['detail']}\n" for each in row["answers"] if each["n"]]
    return f"""
### {row["target"]}: {row["verdict"]}

`{command}`

With {row["version"]}, {row["train_episodes"]:,} training episodes of each policy, {row["seconds"]:.0f} s:

{"".join(measured)}"""


if __name__ == "__main__":
    raise SystemExit(main())
