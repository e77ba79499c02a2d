"""Exact success of the policies of ``benchmarks.widening`` by level and turns: trainings, records, and their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks import machine, read_records
from benchmarks.thoughts import MODELS, trained
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import LevelValue, solve
from ragen_agent.exact.reply_tree import ReplyTexts
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import append_json_lines
from ragen_gym.envs.policies import blind_value, random_value
from ragen_gym.envs.turn import TurnEnv

GAME = "FrozenLake"
START, RL, MORE, BEST = "start", "RL", MODELS[2], "start, best temperature"
POLICIES = (START, RL, MORE, BEST)
REFERENCES = ("random", "blind", "optimal")
TRAINED, LONG = 2, 6  # turns of an episode: of training, and more of them

SMALL, PRETRAINED = "", "smollm2-135m"


class Plan(NamedTuple):
    """The measurement of a model.

    Attributes:
        settings: of its run, over the game's defaults.
        masses: mass left out, by the turns of an episode.
        levels: held-out levels, unless the command says otherwise.
        seeds: the same of seeds.
    """

    settings: Settings
    masses: Mapping[int, float]
    levels: int
    seeds: tuple[int, ...]

    def measured_in(self, turns: int) -> tuple[str, ...]:
        """The policies that are measured in episodes of so many turns; the control only where little is left out."""
        return POLICIES if self.masses[turns] <= CONTROLLED else POLICIES[:3]


CONTROLLED = 1e-4
PLANS = {
    SMALL: Plan(
        {
            "turns": {"think": False, "history": 0, "max_tokens_per_turn": 12},
            "demonstrations": {"thought": "none", "episodes": 6000},
            "training": {"iterations": 40},
        },
        {TRAINED: 1e-4, LONG: 1e-2},
        levels=64,
        seeds=(0, 1, 2),
    ),
    PRETRAINED: Plan(
        {
            "env_options": {"size": 4, "success_rate": 1.0, "min_path": 2, "text_format": "coord"},
            "turns": {
                **{"think": False, "history": 0, "example": False, "max_tokens_per_turn": 24},
                **{"max_turns": 2, "max_actions_per_turn": 5, "max_actions": 10},
            },
            "demonstrations": {"thought": "none", "episodes": 400, "moves": [0.5, 0.5]},
            "warm_start": {"epochs": 1, "batch": 8, "learning_rate": 2e-4},
            "training": {
                **{"iterations": 20, "groups": 8, "group_size": 8, "keep": 0.5, "minibatch": 8, "save_every": 5},
                **{"learning_rate": 5e-5, "schedule": "linear", "warm_up": 0.1},
            },
        },
        {TRAINED: 1e-3},
        levels=32,
        seeds=(0,),
    ),
}
"""By model: the small one, and SmolLM2 by half of the demonstrations and a third of the iterations of its recipe."""

COARSE = 1e-2  # mass left out where temperatures are chosen
TEMPERATURE = 0.5  # of evaluation, as in `make train`
TEMPERATURES = (0.1, 0.25, 0.5, 0.75)
TRIED = 32  # levels that the control's temperature is chosen on
TOGETHER, NODES = 16, 5_000  # levels solved together; tokens of a level and a turn that are read at most
IMPOSSIBLE, POSSIBLE = 1e-3, 0.1
DIGITS = 6  # of a record; ends of intervals are rounded outwards

Record = Mapping[str, Any]
Values = NDArray[np.float64]


def config_of(seed: int, model: str = SMALL) -> Config:
    """The settings of a seed's run, with replies without thoughts and history."""
    changes = merged(default_settings(GAME, model), PLANS[model].settings)
    return with_settings(Config(game=GAME, model=model, seed=seed), changes)


def solved(policy: Policy, levels: Sequence[ExactLevel], temperature: float, mass: float) -> list[LevelValue]:
    """Exact values of a policy on levels, some at a time."""
    reader = TreeReader(policy.model, len(policy.tokenizer), temperature)
    texts, found = ReplyTexts(policy.chat, think=False, known_form=True), []
    for first in range(0, len(levels), TOGETHER):
        part = levels[first : first + TOGETHER]
        found += solve(reader, part, mass=mass, most_nodes=NODES * len(part), texts=texts)
    return found


def entropy(found: Sequence[LevelValue]) -> float:
    """Entropy in nats of what the first reply does (its actions, or malformed), averaged over the levels."""
    chances = [each.start.tree.chances for each in found]
    return float(np.mean([-(p[p > 0] * np.log(p[p > 0])).sum() for p in chances]))


def best_temperature(start: Policy, levels: Sequence[ExactLevel]) -> float:
    """The one of ``TEMPERATURES`` with the highest success."""
    found = {each: solved(start, levels, each, COARSE) for each in TEMPERATURES}
    return max(found, key=lambda each: np.mean([level.of("success") for level in found[each]]))


def level_facts(levels: Sequence[ExactLevel]) -> dict[str, Any]:
    """Lists with an entry a level: its seed, its shortest path, and each of ``REFERENCES`` by turns."""
    found: dict[str, Any] = {name: [] for name in ("seed", "path", *REFERENCES)}
    for level in levels:
        env, start = level.env, level.start
        env.stand_at(start.board, start.integers, turn=0, played=0, earned=None, total=None)
        solution, moves = env.solution(), [turn * env.max_actions_per_turn for turn in range(1, env.max_turns + 1)]
        best = [solution.success(*env.env.state, count) for count in range(env.max_actions + 1)]
        found["seed"].append(level.instance.seed)
        found["path"].append(next(count for count, chance in enumerate(best) if chance > 0))
        found["random"].append([round(random_value(env.env, count)[0], DIGITS) for count in moves])
        found["blind"].append([blind_value(env.env, count)[0] for count in moves])
        found["optimal"].append([best[count] for count in moves])
    return found


def levels_of(config: Config, policy: Policy, count: int, turns: int) -> list[ExactLevel]:
    """The first test levels, with episodes of so many turns."""
    config = with_settings(config, {"evaluation": {"levels": count}, "turns": {"max_turns": turns}})
    env, instances = evaluated_levels(config)
    assert isinstance(env, TurnEnv)
    return [ExactLevel(env, policy.chat, config.turns, each) for each in instances]


def measure(seed: int, model: str, count: int, runs: Path, records: Path) -> None:
    """Append the records of a model's seed that are missing, on so many levels; trained in ``runs`` if missing."""
    plan, known = PLANS[model], [each for each in read_records(records) if each.get("model", SMALL) == model]
    done = {(each.get("seed"), each.get("policy"), each.get("turns")) for each in known}
    asked = [(name, turns) for turns in plan.masses for name in plan.measured_in(turns)]
    missing = [each for each in asked if (seed, *each) not in done]
    if not missing:
        return
    config, where = config_of(seed, model), {"model": model} if model else {}
    folder = runs / f"{model}-seed{seed}".removeprefix("-")
    checkpoints = dict(zip(POLICIES, trained(config, folder).values(), strict=False))
    start = Policy.build(config, checkpoints[START])
    levels = {turns: levels_of(config, start, count, turns) for turns in plan.masses}
    native = levels[config.turns.max_turns]
    if not any("levels" in each for each in known):
        about = {"machine": machine("torch", "transformers"), "parameters": start.model.num_parameters()}
        append_json_lines(records, [where | about | {"levels": level_facts(native)}])
    temperatures = dict.fromkeys(checkpoints, TEMPERATURE)
    if any(name == BEST for name, _ in missing):
        temperatures[BEST] = best_temperature(start, native[:TRIED])
    for name, turns in missing:
        policy = Policy.build(config, checkpoints.get(name, checkpoints[START]))
        found = solved(policy, levels[turns], temperatures[name], plan.masses[turns])
        bounds = np.array([each.success_by_turn for each in found])
        ends = np.floor(bounds[..., 0] * 10**DIGITS), np.ceil(bounds[..., 1] * 10**DIGITS)
        record = {
            "seed": seed,
            "policy": name,
            "turns": turns,
            "temperature": round(temperatures[name], 4),
            "entropy": entropy(found),
            "success": (np.stack(ends, -1) / 10**DIGITS).tolist(),
        }
        append_json_lines(records, [where | record])


class Table:
    """Records as arrays.

    Attributes:
        facts: by name int64 (levels,) or float64 (levels, turns); see ``level_facts``.
        about: fields of the page: the machine, the model, its parameters, and settings of the measurement.
        measured: by turns of an episode the policies.
        most: by turns of an episode the largest k at which the mass left out says something.
        heads: by policy its records of episodes as in training, one a seed.
        values: by policy and turns of an episode, float64 (seeds, levels, turns, 2): bounds of success by turn.
    """

    def __init__(self, records: Sequence[Record], model: str = SMALL) -> None:
        records = [each for each in records if each.get("model", SMALL) == model]
        about = next(each for each in records if "levels" in each)
        self.facts = {name: np.array(each) for name, each in about["levels"].items()}
        config = config_of(0, model)
        self.about = {
            **{name: about[name] for name in ("machine", "parameters")},
            "model": model,
            "levels": len(self.facts["seed"]),
            "episodes": config.demonstrations.episodes,
            "iterations": config.training.iterations,
            **{"temperature": TEMPERATURE, "trained": TRAINED, "long": LONG},
            **{"impossible": IMPOSSIBLE, "possible": POSSIBLE},
        }
        measured = sorted((each for each in records if "policy" in each), key=lambda each: each["seed"])
        self.values: dict[tuple[str, int], Values] = {}
        self.measured: dict[int, list[str]] = {turns: [] for turns in PLANS[model].masses}
        for name, turns in ((name, turns) for name in POLICIES for turns in self.measured):
            if some := [each for each in measured if (each["policy"], each["turns"]) == (name, turns)]:
                self.values[name, turns] = np.array([each["success"] for each in some])
                self.measured[turns].append(name)
        self.heads = {
            n: [e for e in measured if (e["policy"], e["turns"]) == (n, TRAINED)] for n in self.measured[TRAINED]
        }
        self.most = {turns: 2 ** int(np.log2(0.11 / mass)) for turns, mass in PLANS[model].masses.items()}

    def chances(self, policy: str, turns: int) -> Values:
        """Bounds of success within so many turns, float64 (seeds or 1, levels, 2); also of ``REFERENCES``."""
        if policy in REFERENCES:
            return self.facts[policy][None, :, min(turns, TRAINED) - 1, None].repeat(2, -1)
        return self.values[policy, self.budget(turns)][:, :, turns - 1]

    def budget(self, turns: int) -> int:
        """The turns of the episodes in which success within so many turns was measured."""
        return min(each for each in self.measured if each >= turns)

    def passed(self, policy: str, k: int, turns: int) -> Values:
        """Bounds of pass@k, like ``chances``."""
        return 1 - (1 - self.chances(policy, turns).clip(0, 1)) ** k

    def gain(self, policy: str, base: str, k: int, turns: int) -> Values:
        """Bounds of the difference of two policies' pass@k, float64 (seeds, levels, 2)."""
        return self.passed(policy, k, turns) - self.passed(base, k, turns)[..., ::-1]

    def width(self, turns: int) -> float:
        """The widest bounds of a chance of success in episodes of so many turns."""
        return max(float(np.ptp(self.chances(name, turns), axis=-1).max()) for name in self.measured[turns])

    def turned(self, policy: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Levels whose chance rose from ``IMPOSSIBLE`` to ``POSSIBLE``, and fell; bool (seeds, levels) each."""
        before, after = (self.chances(name, TRAINED) for name in (START, policy))
        possible = (before[..., 1] < IMPOSSIBLE) & (after[..., 0] > POSSIBLE)
        return possible, (before[..., 0] > POSSIBLE) & (after[..., 1] < IMPOSSIBLE)


def interval(bounds: Values, tests: int = 1) -> Estimate:
    """Mean of a figure with its 95 % interval over seeds and levels, both drawn at random.

    The variance is the sum of both means' variances, which counts their interaction twice and so is rather too large;
    the degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946). A single row is a figure without seeds.
    The interval is widened by half the mean width of the exact bounds.

    Args:
        bounds: float64 (seeds, levels, 2).
        tests: comparisons that all intervals together cover with 95 %, by Bonferroni's inequality.
    """
    middle, exact = bounds.mean(-1), float(np.ptp(bounds, axis=-1).mean()) / 2
    means = [middle.mean(axis) for axis in (0, 1) if middle.shape[1 - axis] > 1]
    parts = np.array([each.var(ddof=1) / len(each) for each in means])
    free = np.array([len(each) - 1 for each in means])
    total, value = float(parts.sum()), float(middle.mean())
    half = float(student.ppf(1 - 0.025 / tests, total**2 / (parts**2 / free).sum())) * total**0.5 if total > 0 else 0.0
    return Estimate(value, value - half - exact, value + half + exact, middle.size)
