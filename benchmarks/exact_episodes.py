"""Exact success compared with a million episodes, level by level: ``python -m benchmarks.exact_episodes``.

The policy of ``benchmarks.exact`` plays fixed levels of lakes without slip and with it, in blocks of episodes with
random numbers of their own. Computed values and the wins of each block are kept in the run's folder, so a command that
was stopped goes on. Written are ``exact_episodes.json`` and ``exact_episodes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine, markdown_table, page_parser, read_records, write_results
from benchmarks.exact import TOGETHER, trained
from ragen_agent.config import Config, with_settings
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import solve
from ragen_agent.exact.results import REFERENCES, references
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import Instance
from ragen_gym.core.stats import scipy_stats
from ragen_gym.core.storage import append_json_lines
from ragen_gym.envs.turn import TurnEnv

SUCCESS_RATES = (1.0, 0.8)
"""Chances that a move goes where it is meant to."""
MASS = 1e-4  # far below the error of a level's episodes
BLOCK = 64  # episodes of a level
LEAST = 5  # expected wins and losses of a level that the chi-square counts
LEVEL = 0.05
"""Level of all tests together (Bonferroni)."""

PAGE = """\
# Exact success and episodes

Written by `python -m benchmarks.exact_episodes`. If [exact evaluation](exact.md) computes the true success of a policy,
the wins of its episodes on a level are binomial with this chance.

{table}

Means over {each} fixed test levels of FrozenLake 4x4, at least {path} moves from the goal, {played} episodes each,
{episodes:,} in all. *With slip* a move goes astray with a chance of 20 %. The policy is the small model of
`python -m benchmarks.exact` ({parameters:,} parameters), with two turns, at temperature {temperature:g}. Random, blind
and optimal play are computed.

**Level by level the wins {agree} the computed success**: the smallest of the six p-values, times six, is
{smallest:.2f}; they agree from {level:g} on. The chi-square counts levels with at least {least} expected wins and
losses. *Level* is the smallest binomial p-value of a level, times the number of levels. A common difference of
{power:.2f} points would be found by the test of a lake's mean at 5 % with a chance of 80 %.

One policy, one game: other games and models are compared with fewer episodes, in the tests.

Machine: {machine}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, play what is missing, and write the page."""
    parser = page_parser("exact_episodes", __doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/exact"), metavar="DIR", help="trained where missing")
    parser.add_argument("--levels", type=int, default=128, metavar="N", help="levels of each lake (default 128)")
    parser.add_argument("--episodes", type=int, default=10**6, metavar="N", help="episodes in all (default 1000000)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder, config = RunFolder.reopen(trained(options.run))
    policy = Policy.build(config, folder.checkpoint)
    torch.set_num_threads(1)
    results = {
        "machine": machine("torch", "transformers"),
        "parameters": policy.model.num_parameters(),
        "temperature": config.evaluation.temperature,
        "lakes": check(policy, config, options.run / "check.jsonl", options.levels, options.episodes),
    }
    write_results(options.out, "exact_episodes", results, _page(results))
    return 0


def check(policy: Policy, config: Config, kept: Path, levels: int, episodes: int) -> list[dict[str, Any]]:
    """Success by level, computed and from episodes, one record for each of ``SUCCESS_RATES``.

    Args:
        policy: the policy.
        config: the settings of its run.
        kept: the file of what is computed and played so far.
        levels: levels for each of ``SUCCESS_RATES``.
        episodes: episodes in all, at least.
    """
    lakes = [_Lake(policy, config, kept, levels, number) for number in range(len(SUCCESS_RATES))]
    values = [lake.values() for lake in lakes]
    blocks = -(-episodes // (len(lakes) * levels * BLOCK))
    wins = [[lake.wins(block) for lake in lakes] for block in range(blocks)]
    return [
        {**value, "episodes": blocks * BLOCK, "wins": np.sum(won, 0).tolist()}
        for value, won in zip(values, zip(*wins, strict=True), strict=True)
    ]


class _Lake:
    """The policy on the levels of one lake; results are read from a file of records, or added to it."""

    def __init__(self, policy: Policy, config: Config, kept: Path, levels: int, number: int) -> None:
        options = {**config.env_options, "success_rate": SUCCESS_RATES[number]}
        self.config = with_settings(config, {"env_options": options, "evaluation": {"levels": levels}})
        self.policy, self.kept, self.number = replace(policy, config=self.config), kept, number
        self.about = {"levels": levels, **options}
        self.records = [each for each in read_records(kept) if self.about.items() <= each.items()]
        env, self.instances = evaluated_levels(self.config)
        assert isinstance(env, TurnEnv)
        self.env = env
        self.processes = self.policy.processes(self.config.evaluation.split, self.config.evaluation.batch)

    def values(self) -> dict[str, Any]:
        """``exact``, the intervals of success by level, and the mean of each reference."""
        if found := next((each for each in self.records if "exact" in each), None):
            return found
        reader = TreeReader(self.policy.model, len(self.policy.tokenizer), self.config.evaluation.temperature)
        exact, beside = list[tuple[float, float]](), list[dict[str, float]]()
        for first in range(0, len(self.instances), TOGETHER):
            some = self.instances[first : first + TOGETHER]
            levels = [ExactLevel(self.env, self.policy.chat, self.config.turns, each) for each in some]
            exact += [each.of("success") for each in solve(reader, levels, mass=MASS)]
            beside += [references(each) for each in levels]
        means = {name: float(np.mean([each[name] for each in beside])) for name in beside[0]}
        return self._keep({"exact": exact, "references": means})

    def wins(self, block: int) -> list[int]:
        """The wins on each level in a block of episodes."""
        found = next((each for each in self.records if each.get("block") == block), None)
        if found is None:
            count = len(self.instances)
            numbers = range(block * BLOCK, (block + 1) * BLOCK)
            many = [Instance(each.seed, n * count + at) for at, each in enumerate(self.instances) for n in numbers]
            seed = block * len(SUCCESS_RATES) + self.number  # so that the lakes' replies are drawn apart
            played = self.policy.play(self.processes, many, self.config.evaluation.temperature, seed)
            assert not any(each.failure for each in played)
            found = self._keep(
                {"block": block, "won": np.reshape([each.success for each in played], (count, BLOCK)).sum(1).tolist()}
            )
        won: list[int] = found["won"]
        return won

    def _keep(self, record: dict[str, Any]) -> dict[str, Any]:
        append_json_lines(self.kept, [self.about | record])
        return self.about | record


def agreement(lake: Mapping[str, Any]) -> dict[str, float]:
    """The tests of a record of ``check``.

    Returns:
        ``chi2`` over ``df`` levels with an expected ``LEAST`` wins and losses, and its ``chi2_p``; ``level_p``, the
        smallest two-sided binomial p-value of a level times the number of levels (Bonferroni), by the end of the
        interval that fits better; ``gap``, the mean success of the episodes less the exact one, with ``error``, its
        standard error by the exact values, and ``gap_p``; and ``width``, of the widest interval.
    """
    stats = scipy_stats()
    n, wins, exact = lake["episodes"], np.array(lake["wins"]), np.clip(lake["exact"], 0.0, 1.0)
    nearest = np.clip(wins / n, exact[:, 0], exact[:, 1])
    p_values = [stats.binomtest(int(k), n, p).pvalue for k, p in zip(wins, nearest, strict=True)]
    middle = exact.mean(1)
    variance = n * middle * (1 - middle)
    tested = np.minimum(n * middle, n * (1 - middle)) >= LEAST
    chi2 = float(((wins - n * middle)[tested] ** 2 / variance[tested]).sum())
    gap, error = float((wins / n - middle).mean()), float(np.sqrt(variance.sum()) / n / len(wins))
    return {
        "df": int(tested.sum()),
        "chi2": chi2,
        "chi2_p": float(stats.chi2.sf(chi2, int(tested.sum()))),
        "level_p": float(min(1.0, len(wins) * min(p_values))),
        "gap": gap,
        "error": error,
        "gap_p": float(2 * stats.norm.sf(abs(gap) / error)),
        "width": float((exact[:, 1] - exact[:, 0]).max()),
    }


def _page(results: Mapping[str, Any]) -> str:
    lakes, columns = results["lakes"], []
    tests = [agreement(each) for each in lakes]
    smallest = 2 * 3 * min(each[name] for each in tests for name in ("chi2_p", "level_p", "gap_p"))
    for lake, found in zip(lakes, tests, strict=True):
        low, high = 100 * np.mean(lake["exact"], 0)
        columns.append(
            [
                "without slip" if lake["success_rate"] == 1 else "with slip",
                *(f"{100 * lake['references'][name]:.1f}" for name in REFERENCES),
                f"{low:.3f} to {high:.3f}",
                f"{100 * np.mean(lake['wins']) / lake['episodes']:.3f}",
                f"{100 * found['gap']:+.3f} ± {100 * found['error']:.3f} (p = {found['gap_p']:.2f})",
                f"{found['chi2']:.1f}, {found['df']} levels (p = {found['chi2_p']:.2f})",
                f"p = {found['level_p']:.2f}",
                f"{100 * found['width']:.3f}",
            ]
        )
    names = [*(f"{name}, %" for name in REFERENCES), "the policy, computed, %", "the policy, episodes, %"]
    names += ["difference ± standard error, points", "chi-square", "level", "widest computed interval, points"]
    head, *rows = zip(["lake", *names], *columns, strict=True)
    return PAGE.format(
        **{name: results[name] for name in ("machine", "parameters", "temperature")},
        table=markdown_table(head, rows),
        each=len(lakes[0]["wins"]),
        path=lakes[0]["min_path"],
        played=f"{lakes[0]['episodes']:,}",
        episodes=sum(each["episodes"] * len(each["wins"]) for each in lakes),
        agree="agree with" if smallest >= LEVEL else "do not agree with",
        smallest=min(1.0, smallest),
        level=LEVEL,
        least=LEAST,
        power=(1.96 + 0.84) * 100 * max(each["error"] for each in tests),
    )


if __name__ == "__main__":
    raise SystemExit(main())
