"""Stated budgets compared with exact truth: ``python -m benchmarks.budget``.

The reference agents play ``budget-v1``, honest and with statements that ignore the board. A small model is trained on
demonstrations that state the budget of optimal play, then by reinforcement (some 15 minutes of a core), and plays the
suite's lakes without thoughts after each. Its policy is also computed exactly (``ragen_agent.exact``), so that its
first statement is scored against the distribution of its own moves. Rewards of stated budgets are compared by
``benchmarks.budget_rewards`` (``--rewards`` measures them alone and keeps the rest; with ``--model`` on a pretrained
model). A run whose folder is there is not played or trained again. Written are ``budget.json``, ``budget.md`` and
``budget.png``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import budget_rewards, machine, markdown_table, page_parser, read_results, write_results
from benchmarks.budget_figure import draw
from benchmarks.experiments.plots import save_figure
from ragen_agent.agents.hf import HFAgent
from ragen_agent.cli import main as ragen_agent
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import LevelValue, solve
from ragen_agent.exact.reply_tree import ENDED
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import Instance
from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.budgets import best_constants
from ragen_gym.bench.report.tables import number, success
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.core.stats import clustered_mean, percent
from ragen_gym.envs.budget import Budget, covered, interval_score
from ragen_gym.envs.policies import moves_to_go
from ragen_gym.envs.turn import make_turn

LAKES = "frozen_lake"
TRAINED = {
    "turns.think": "false",
    "turns.history": "0",
    "turns.budget": "true",
    "turns.max_turns": "5",
    "turns.max_actions_per_turn": "1",
    "turns.max_actions": "5",
    "turns.max_tokens_per_turn": "16",
    "demonstrations.thought": "none",
    "demonstrations.moves": "[1.0]",
    "demonstrations.mistakes": "0.25",
    "training.iterations": "60",
}
MODELS = {"small model after imitation": "warm", "small model after reinforcement": "checkpoint"}
HONEST = ("oracle", "blind", "random")
FOOLS = {"wide": "always [1, 20]", "possible": "always [1, actions left]", "impossible": "always impossible"}
MASS, TOGETHER = 1e-2, 16

PAGE = """\
# Does an agent know how many actions it still needs?

Written by `python -m benchmarks.budget`. In [`budget-v1`](../docs/guides/benchmark_an_agent.md#stated-budgets) agents
state with every action how many they still need, [low, high] in 80 of 100 cases, or that success is impossible.

![Interval scores of agents and of small models, beside those of the best constant intervals](budget.png)

Figure 1. How far statements are from the truth: diamonds left of the black tick beat the best constant interval, and
left of the grey one the best for each number of actions left (*clock*), which needs counting alone. 95 % intervals
are over levels; of the three rewards they are over {seeds} seeds, which are the dots.

- On lakes without slip both small models lie right of both ticks with their whole intervals.
- On slippery lakes so do the start and the three rewards against optimal play, and BAGEN's reward against its own
  play, too.
- Lying left of a tick is not yet skill: honest random play does, since it mostly fails and says so.

## A small model on lakes

{lakes}

{answer}

A small model ({parameters:,} parameters, one training run) imitated demonstrations that state the budget of optimal
play. Where nothing slips that is a single number, so the model has seen no interval by which to say that it is unsure.
Reinforcement then rewarded success alone. In this run success on these lakes fell, so the last row does not show
what reinforcement that works would do.

*Score* is the interval score in actions (Gneiting and Raftery, 2007), 0 at best; *constant* is the score of the best
single interval for the same statements, chosen in hindsight, and *clock* of the best one for each number of actions
left. An interval that does not beat them shows at most that the agent counts. *Optimal* scores against the exact
distribution under optimal play from the state of the statement, *own* against the agent's own episode. *Holds* is the
share of optimal play's actions in the interval, for which 80 % was asked. *Precision* and *recall* are of `impossible`
in lost states: those that optimal play cannot win, and on slippery ice those that it wins in less than 10 % of cases.
*Saved* is the share of the actions of failed episodes that stopping at the first `impossible` would have saved, *lost*
the share of all episodes that succeeded after it. Each row has {levels} episodes, one a level; 95 % intervals are
clustered by level. The model's replies are without thoughts, at the suite's temperature.

**Exactly.** All of the model's replies can be summed over, with at most {mass:g} of the probability left out. Its first
statement on each of these lakes, against the exact distributions:

{exact}

{rewards}
## The scale

Honest agents state the quantiles of their own play. The others play optimal moves and state the same on every board.

{tables}

## Not seeing, or not planning

Statements of an interval in episodes that then failed. *Not seeing*: the state was lost already. *Not planning*: what
the agent's later moves gave away of optimal play's chance. *Chance*: the rest.

{optimism}

The model was trained by `ragen-agent train --game FrozenLake` with these settings:

```text
{settings}
```

Machine: {machine}.
"""
HEAD = (
    *("agent", "success %", "holds %", "width", "score: optimal", "constant and clock", "score: own"),
    *("constant and clock", "precision %", "recall %", "saved %", "lost %"),
)


class CurrentTurn:
    """A model that reads the system message and the newest message alone, as with ``turns.history=0``."""

    keeps_time = whole_replies = True

    def __init__(self, name: str, path: Path, settings: Mapping[str, str] = TRAINED) -> None:
        self.model = HFAgent(str(path), max_tokens=int(settings["turns.max_tokens_per_turn"]))
        self.name, self.seen, self.batch = name, self.model.seen, self.model.batch
        self.concurrency, self.settings = self.batch, {**self.model.settings, "history": 0}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The model's reply, drawn with other random numbers in every turn."""
        own = replace(task, seed=(task.seed + len(messages)) % 2**32)
        return await self.model.reply([messages[0], messages[-1]], own)

    async def close(self) -> None:
        """Close the model."""
        await self.model.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    parser = page_parser("budget", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/budget"), metavar="DIR", help="folder of the runs")
    parser.add_argument("--rewards", action="store_true", help="measure the rewards of budgets alone, keep the rest")
    parser.add_argument("--model", default="", metavar="NAME", help="with --rewards: of a pretrained model, by name")
    options = parser.parse_args(arguments)
    if options.model and not options.rewards:
        parser.error("--model goes with --rewards: the other measurements are of a small model.")
    torch.set_num_threads(1)
    suite = load_suite("budget-v1")
    if options.rewards:
        rewards = _rewards(suite, options.runs, options.model)
        new = {"pretrained": {"model": options.model, "rows": rewards}} if options.model else {"rewards": rewards}
        return _write(options.out, read_results(options.out, "budget") | new)
    run = options.runs / "train"
    if not (run / "summary.json").exists():
        resumes = ["--resume", str(run)] if (run / "config.toml").exists() else ["--out", str(run), *_settings()]
        if code := ragen_agent(["train", *resumes]):
            return code
    unthinking = _unthinking(suite, LAKES)
    rows: dict[str, dict[str, Any]] = {split.name: {} for split in suite.splits}
    scripted = [(f"{policy}, honest", policy, "own") for policy in HONEST]
    scripted += [(f"oracle, {said}", "oracle", states) for states, said in FOOLS.items()]
    for name, policy, states in scripted:
        agent = make_agent(f"budget:{policy}", states=states)
        for split, entry in _played(suite, agent, options.runs / f"{policy}-{states}").items():
            rows[split][name] = entry
    exact = {}
    for name, checkpoint in MODELS.items():
        folder = run / checkpoint
        rows[LAKES][name] = _played(unthinking, CurrentTurn(name, folder), options.runs / checkpoint)[LAKES]
        exact[name] = _exact(run, folder, unthinking)
    results = {"machine": machine("torch", "transformers"), "rows": rows, "exact": exact}
    results["rewards"] = _rewards(suite, options.runs)
    return _write(options.out, results)


def _write(out: Path, results: dict[str, Any]) -> int:
    write_results(out, "budget", results, _page(results))
    rows = results["rows"]
    save_figure(draw(rows[LAKES], rows[budget_rewards.SPLIT], results["rewards"]), out / "budget.png")
    return 0


def _unthinking(suite: Suite, name: str) -> Suite:
    """One split of the suite, for replies without thoughts."""
    split = next(split for split in suite.splits if split.name == name)
    plain = replace(split, turn_config=replace(split.turn_config, think=False))
    return replace(suite, name="budget-v1 without thoughts", splits=(plain,))


def _rewards(suite: Suite, runs: Path, pretrained: str = "") -> dict[str, Any]:
    """Rows of ``benchmarks.budget_rewards``, of a small model or of a pretrained one."""
    one = _unthinking(suite, budget_rewards.SPLIT)
    settings = TRAINED | (budget_rewards.PRETRAINED if pretrained else {})

    def play(name: str, checkpoint: Path, out: Path) -> dict[str, Any]:
        row: dict[str, Any] = _played(one, CurrentTurn(name, checkpoint, settings), out)[budget_rewards.SPLIT]
        return row

    return budget_rewards.measure(runs / "rewards" / pretrained, settings, play, pretrained)


def _settings() -> list[str]:
    return ["--game", "FrozenLake", *(part for name, value in TRAINED.items() for part in ("--set", f"{name}={value}"))]


def _played(suite: Suite, agent: Any, folder: Path) -> dict[str, Any]:
    """Success and budgets of each split."""
    run_suite(suite, agent, folder)
    splits = score(suite, ResultsFolder(folder).records(), agent.name)["splits"]
    return {name: {"success": success(split), "budget": split["budget"]} for name, split in splits.items()}


def _exact(run: Path, checkpoint: Path, suite: Suite) -> dict[str, Any]:
    """The policy's exact success, and the scores of its first statement, the mean over the levels."""
    split = suite.splits[0]
    policy = Policy.build(RunFolder.reopen(run)[1], checkpoint)
    reader = TreeReader(policy.model, len(policy.tokenizer), suite.temperature)
    levels, optimal = [], []
    for level in split.boards:
        env = make_turn(split.env, split.turn_config, levels=[level], **split.env_options)
        levels.append(ExactLevel(env, policy.chat, policy.config.turns, Instance(0, 0)))
        env.reset(seed=0)
        optimal.append(moves_to_go(env.env, env.actions_left))
    found: list[LevelValue] = []
    for first in range(0, len(levels), TOGETHER):
        found += solve(reader, levels[first : first + TOGETHER], mass=MASS)
    own = []
    for each in found:
        won = np.diff(each.success_by_turn.mean(1), prepend=0.0)
        own.append(np.array([0.0, *won, 1 - won.sum()]))
    said = [_first_statements(each) for each in found]
    result: dict[str, Any] = {
        "parameters": policy.model.num_parameters(),
        "success": np.mean([each.of("success") for each in found], 0).tolist(),
    }
    for name, truth in (("optimal", optimal), ("own", own)):
        scores = np.array([_mean(each, interval_score, chances) for each, chances in zip(said, truth, strict=True)])
        best = best_constants(truth, [0] * len(truth))
        result[name] = {
            "holds": float(np.mean([_mean(each, covered, chances) for each, chances in zip(said, truth, strict=True)])),
            "score": clustered_mean(scores, split.families).to_dict("mean"),
            "constant": float(best.mean()),
            "excess": clustered_mean(scores - best, split.families).to_dict("mean"),
        }
    return result


def _first_statements(value: LevelValue) -> dict[Budget, float]:
    """The budgets of the first reply, each with its probability; a reply without one states every number."""
    level, tree = value.level, value.start.tree
    found: dict[Budget, float] = {}
    for node in np.flatnonzero(tree.outcome >= 0).tolist():
        path = tree.path(node)
        text = level.chat.decode_reply(path[:-1] if tree.kind[node] == ENDED else path)
        budget = level.env.parse(text).budget or (0, level.env.max_actions + 1)
        found[budget] = found.get(budget, 0.0) + float(tree.reach[node])
    return found


def _mean(said: dict[Budget, float], of: Any, chances: Any) -> float:
    weights = list(said.values())
    return float(np.average([of(budget, chances) for budget in said], weights=weights))


def _ends(estimate: Any, scale: float = 1, digits: int = 2) -> str:
    return f"({number(scale * estimate['low'], digits)} to {number(scale * estimate['high'], digits)})"


def _scored(score: Any) -> str:
    return f"{number(score['mean'])} {_ends(score)}"


def _row(name: str, row: Any) -> list[str]:
    entry, won = row["budget"], row["success"]
    holds = percent(entry["optimal"]["coverage"]["rate"], "")
    cells = [name, f"{percent(won['rate'], '')} {_ends(won, 100, 1)}", holds, number(entry["width"]["mean"])]
    for of in (entry["optimal"], entry["own"]):
        cells += [_scored(of["score"]), f"{number(of['constant']['score'])} and {number(of['clock']['score'])}"]
    called = (entry["impossible"][key] for key in ("precision", "recall"))
    cells += [percent(each and each["rate"], "") for each in called]
    return cells + [percent(entry["stopping"][key], "") for key in ("replies_of_failed", "successes_lost")]


def _page(results: dict[str, Any]) -> str:
    rows, exact = results["rows"], results["exact"]
    optimism = [
        [split, name, f"{entry['n']:,}", *(percent(entry[k], "") for k in ("not_seeing", "not_planning", "chance"))]
        for split, found in rows.items()
        for name, row in found.items()
        if (entry := row["budget"]["optimism"])["n"] and ("honest" in name or name in MODELS)
    ]
    exactly = []
    for name, found in exact.items():
        low, high = found["success"]
        for truth in ("optimal", "own"):
            of = found[truth]
            figures = percent(of["holds"], ""), _scored(of["score"]), number(of["constant"]), _scored(of["excess"])
            exactly.append([name, f"{100 * low:.2f} to {100 * high:.2f}", truth, *figures])
    return PAGE.format(
        lakes=markdown_table(HEAD, [_row(name, row) for name, row in rows[LAKES].items()]),
        answer="\n".join(_answer(name, rows[LAKES][name]) for name in MODELS),
        tables="\n\n".join(
            f"**{split}**\n\n{markdown_table(HEAD, [_row(*item) for item in found.items()])}"
            for split, found in rows.items()
            if split != LAKES
        ),
        optimism=markdown_table(
            ["split", "agent", "statements", "not seeing %", "not planning %", "chance %"], optimism
        ),
        exact=markdown_table(
            ["model", "success %", "truth", "holds %", "score", "best constant", "score above it"], exactly
        ),
        levels=(levels := len(load_suite("budget-v1").splits[0].levels)),
        rewards=budget_rewards.section(
            results["rewards"],
            levels,
            rows[budget_rewards.SPLIT]["random, honest"]["success"]["rate"],
            results.get("pretrained"),
        ),
        parameters=next(iter(exact.values()))["parameters"],
        mass=MASS,
        seeds=len(budget_rewards.SEEDS),
        settings="\n".join(f"--set {name}={value}" for name, value in TRAINED.items()),
        machine=results["machine"],
    )


def _answer(name: str, row: Any) -> str:
    """Verdict on one model's intervals against the best constant one, and on its ``impossible``."""
    said, entry = [], row["budget"]
    for truth, of in (("optimal play", entry["optimal"]), ("its own play", entry["own"])):
        excess = of["constant"]["excess"]
        verdict = (
            "worse" if excess["low"] > 0 else "better" if excess["high"] < 0 else "neither clearly worse nor better"
        )
        said.append(f"{verdict} against {truth} (score above it {_scored(excess)})")
    verdicts = f"compared with the best constant interval: {', and '.join(said)}"
    return f"- **{name.capitalize()}**, {verdicts}. {_stopping(row)}"


def _stopping(row: Any) -> str:
    """Tokens saved and successes lost by stopping at the first ``impossible``, beside the success of all episodes."""
    stop, success = row["budget"]["stopping"], row["success"]
    if not stop["episodes"]:
        return "It never says `impossible`."
    lost, won = (round(rate * success["n"]) for rate in (stop["successes_lost"], success["rate"]))
    return (
        f"Of the {stop['episodes']} episodes in which it says `impossible`, {lost} then succeed "
        f"({percent(lost / stop['episodes'])}; of all {percent(success['rate'])}). Stopping at the first would save "
        f"{percent(stop['tokens'])} of its tokens and lose {lost} of its {won} successes."
    )


if __name__ == "__main__":
    raise SystemExit(main())
