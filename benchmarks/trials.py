"""Learning within a trial: ``python -m benchmarks.trials`` (half an hour).

Several attempts at one level whose rules are partly hidden (``ragen_gym.TrialEnv``). Success by attempt of random play,
the blind script, optimal play without memory of earlier attempts, scripts, Bayes-adaptive optimal play and informed
play is computed; a script without a model and small models before and after reinforcement are played. The models are
trained by ``trials.toml`` in ``runs/trials``, one run a seed, and continued there. Written are ``trials.json``,
``trials.md`` and ``trials.png``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import machine, markdown_table, page_parser, write_results
from benchmarks.experiments.plots import COLOURS, CONTROL
from ragen_agent.cli import main as ragen_agent
from ragen_agent.run.evaluation import evaluated_levels, play_fixed
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym import TrialEnv
from ragen_gym.core.stats import clustered_mean
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.policies import reply_for
from ragen_gym.games.beliefs import Curve, TrialValues

TABLE = Path(__file__).with_suffix(".toml")
RUNS = Path("runs/trials")
EPSILON = 0.1


class Setting(NamedTuple):
    """A kind of trial."""

    title: str
    options: dict[str, Any]  # of ``TrialEnv``
    moves: int = 1  # of an attempt
    shown: tuple[int, ...] = (1, 2, 3)  # attempts of the table


_LAKE = {"game": "FrozenLake", "size": 3, "min_path": 2, "split": "test"}
_BANDIT = {"game": "Bandit", "low": 0.25, "shuffled": True, "split": "train"}
SETTINGS = {
    "names": Setting("Lakes, names of the moves unknown", _LAKE | {"success_rate": 1.0, "shuffled": True}, 4),
    "symbols": Setting("Lakes, symbols unknown", _LAKE | {"success_rate": 1.0, "hidden_symbols": True}, 4),
    "both": Setting(
        "Lakes, names and symbols unknown",
        _LAKE | {"success_rate": 1.0, "shuffled": True, "hidden_symbols": True},
        4,
    ),
    "slip": Setting("Lakes, slip unknown", _LAKE | {"unknown": {"success_rate": [0.1, 0.9]}}, 4),
    "arms": Setting("Bandit, arms unknown", _BANDIT | {"high_prob": 0.45, "attempts": 3}),
    "chance": Setting(
        "Bandit, arms and chance unknown",
        _BANDIT | {"unknown": {"high_prob": [0.05, 0.45]}, "attempts": 6},
        shown=(1, 2, 4, 6),
    ),
}
#: The setting that models are trained on.
TRAINED = "chance"

FORGETS, BAYES = "optimal, forgets earlier attempts", "Bayes-adaptive optimum"
LINES: dict[str, Callable[[TrialValues], Curve | None]] = {
    "random": lambda values: values.random,
    "blind script": lambda values: values.blind,
    FORGETS: lambda values: values.forgetful,
    "Thompson sampling": lambda values: values.thompson,
    f"greedy, {EPSILON:.0%} of moves random": lambda values: values.mixed(EPSILON),
    "greedy": lambda values: values.greedy,
    BAYES: lambda values: values.bayes,
    "optimal, informed": lambda values: values.informed,
}
SCRIPT = "repeats its best attempt"

PAGE = """\
# Who learns within a trial?

Written by `python -m benchmarks.trials`. A [trial](../docs/guides/trials.md) is several attempts at one level. What is
hidden is drawn at its start and stays the same in every attempt. On lakes whose moves have unknown names, the
Bayes-adaptive optimum succeeds in {first:.1f} % of first attempts and in {last:.1f} % of third ones. Play that is
optimal within an attempt and forgets the attempts before it stays at {forgets:.1f} %. Unknown symbols alone hardly need
a second attempt: there forgetful play succeeds in {symbols:.1f} %. A [small model](#a-small-model) is not shown to
learn within a trial.

![Success by attempt: random, forgetful and informed play are flat, the Bayes-adaptive optimum rises](trials.png)

{tables}

Computed lines are exact, with 95 % intervals over {levels} test lakes, and on all {arms} bandits of the training split,
which differ in nothing but names. The lakes are different ones and weigh alike; trials draw some of them more often, so
rates over drawn trials differ. *{script}* plays the moves of its best attempt again once one has earned
something, and random moves before; it was played {episodes:,} times a setting, and its intervals are clustered by
level. The blind script takes names and symbols at their word. A lake is 3x3 cells with a shortest path of two moves or
more, and an attempt at it has four moves; where the slip is unknown, a move goes as meant with probability 0.1 or 0.9,
and the names mean what they say. An attempt at a bandit is one pull, and a success is a pull of the arm with the higher
mean: the safe arm always pays 0.25, the other one pays 1 with probability 0.45, or in the last setting 0.05 or 0.45.

Where symbols are unknown, those of ice, hole, goal and player are permuted, and the first board tells part of what they
mean, as the generator draws some lakes more often than others. The belief begins with that, and a computed line is the
mean over all lakes that the first board may show. **So the two tables of unknown symbols cannot be compared with the
others, nor can their computed lines with the script**, which played the {levels} lakes themselves.

**Forgets earlier attempts**: the best play of a single attempt, repeated. It learns within an attempt alone.
**Greedy** remembers, and plays each attempt as if it were the last, by the first of several best moves.
**Thompson sampling** draws a world from its belief before each move. **Bayes-adaptive optimum**: the highest expected
return of all attempts together. **Informed** play knows what is hidden; on average no player earns more.

## A small model

A model of {parameters:,} parameters on the last setting, trained by `trials.toml`: a warm start on {demonstrations:,}
trials in which each reply is the optimum's with probability {quality:g} and else random, then {iterations} iterations
of Dr. GRPO on the return of the whole trial. It plays {trials} trials at temperature {temperature:g}, before and after.
Its intervals are clustered by level and world; they say nothing of other seeds. Random play and
play that forgets reach 50 % in every attempt and a return of {chance:.2f}.

{models}

No rise from the first attempt to the last is shown: their intervals overlap, and the difference within a trial was not
recorded. After the warm start the model is surely **below** random play, in its first attempts and in its return. Each
arm is the better one in half of the trials, so replies without a valid move are the likely cause; they were not
counted. After reinforcement it is not surely above random play. The settings were changed after earlier runs had been
seen, so this is exploratory.

Machine: {machine}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page; 0."""
    parser = page_parser("trials", __doc__)
    parser.add_argument("--levels", type=int, default=64, metavar="N", help="levels of a setting (default 64)")
    parser.add_argument("--episodes", type=int, default=2000, metavar="N", help="trials of the script (default 2000)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="models that are trained (default 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine("torch", "numpy")}
    results |= {"levels": options.levels, "episodes": options.episodes}
    results["settings"] = {
        name: computed(setting, options.levels) | {SCRIPT: scripted(setting, options.levels, options.episodes)}
        for name, setting in SETTINGS.items()
    }
    results["models"] = _models(options.seeds)
    write_results(options.out, "trials", results, _page(results))
    _draw(results, options.out / "trials.png")
    return 0


def made(setting: Setting) -> TrialEnv:
    """The environment of a setting, of one move a reply and without thoughts."""
    moves = setting.moves
    config = TurnConfig(think=False, max_turns=moves, max_actions=moves, max_actions_per_turn=1)
    return TrialEnv(turn_config=config, **setting.options)


def seeds_of(env: TrialEnv, levels: int) -> list[int]:
    """Seeds of the first distinct levels, fewer where there are fewer."""
    found: dict[str, int] = {}
    for seed in range(20 * levels):
        env.reset(seed=seed)
        found.setdefault(env.env.level.id, seed)
        if len(found) == levels:
            break
    return list(found.values())


def computed(setting: Setting, levels: int) -> dict[str, Any]:
    """Success by attempt and return of each of ``LINES``, exact, with intervals over levels."""
    env = made(setting)
    curves: dict[str, list[Curve]] = {name: [] for name in LINES}
    for seed in seeds_of(env, levels):
        env.reset(seed=seed)
        for name, line in LINES.items():
            if (curve := line(env.values())) is not None:
                curves[name].append(curve)
    return {name: _summary(found, range(len(found))) for name, found in curves.items() if found}


def scripted(setting: Setting, levels: int, episodes: int) -> dict[str, Any]:
    """Success by attempt and return of the script, played ``episodes`` times."""
    env, rng = made(setting), np.random.default_rng(0)
    seeds = seeds_of(env, levels)
    played, clusters = [], []
    for episode in range(episodes):
        # Where there are fewer levels than asked for, every seed plays one of them, in a world drawn anew.
        seed = seeds[episode % levels] if len(seeds) == levels else episode
        env.reset(seed=seed, options={"noise_seed": episode})
        clusters.append(env.env.level.id)
        played.append(repeats_the_best(env, rng))
    return _summary(played, clusters)


def repeats_the_best(env: TrialEnv, rng: np.random.Generator) -> Curve:
    """Play a trial from its start: the moves of the attempt that earned most, or random ones while none has."""
    names = range(len(env.env.action_names))
    best, most, plan = list[int](), 0.0, list[int]()
    earned, rewards, over, info = 0.0, list[float](), False, dict[str, Any]()
    while not over:
        done = len(plan)
        plan.append(best[done] if done < len(best) else int(rng.choice(names)))
        _, reward, over, _, info = env.step(reply_for(env.env, [env.env.world.meanings[plan[-1]]]))
        earned += reward
        if len(info["successes"]) > len(rewards):
            if earned > most:
                best, most = plan, earned
            rewards.append(earned)
            earned, plan = 0.0, []
    return Curve(np.array(info["successes"], float), np.array(rewards))


def replayed(env: gymnasium.Env[Any, str], trajectory: Trajectory, noise_seed: int) -> Curve:
    """Success and rewards by attempt of a recorded trial, by playing its replies again."""
    env.reset(seed=trajectory.seed, options={"noise_seed": noise_seed})
    rewards, info, over = [0.0], dict[str, Any](), False
    for message in trajectory.messages:
        if message["role"] == "assistant":
            _, reward, over, _, info = env.step(message["content"])
            rewards[-1] += float(reward)
            if len(info["successes"]) == len(rewards) and not over:
                rewards.append(0.0)
    if trajectory.failure or not over:
        raise RuntimeError(f"the trial of seed {trajectory.seed} was not played to its end: {trajectory.failure}")
    return Curve(np.array(info["successes"], float), np.array(rewards))


def _models(seeds: int) -> dict[str, Any]:
    """The models before and after reinforcement: success by attempt and return."""
    rows, about = dict[str, Any](), dict[str, Any]()
    for seed in range(seeds):
        run = RUNS / f"seed{seed}"
        fresh = ["--config", str(TABLE), "--set", f"seed={seed}", "--out", str(run)]
        if ragen_agent(["train", *(["--resume", str(run)] if (run / "config.toml").exists() else fresh)]):
            raise RuntimeError(f"{run}: the training failed; its folder says why")
        folder, config = RunFolder.reopen(run)
        env, instances = evaluated_levels(config)
        for label, weights in {"after the warm start": folder.warm, "after reinforcement": folder.checkpoint}.items():
            policy = Policy.build(config, weights)
            about["parameters"] = policy.model.num_parameters()
            curves, levels = [], []
            for instance, trajectory in zip(instances, play_fixed(policy, instances), strict=True):
                curves.append(replayed(env, trajectory, instance.noise_seed))
                levels.append(trajectory.level_id)
            rows[f"seed {seed}, {label}"] = _summary(curves, levels)
        about |= {"demonstrations": config.demonstrations.episodes, "quality": config.demonstrations.quality}
        about |= {"iterations": config.training.iterations}
        about |= {"trials": len(instances), "temperature": config.evaluation.temperature}
    return about | {"rows": rows}


def _summary(curves: Sequence[Curve], clusters: Sequence[Any]) -> dict[str, Any]:
    success = np.array([curve.success for curve in curves])
    total = clustered_mean([float(curve.rewards.sum()) for curve in curves], clusters)
    return {
        "success": [clustered_mean(column, clusters).to_dict("rate") for column in success.T],
        "return": total.to_dict("mean"),
    }


def _cell(found: Mapping[str, Any], name: str, scale: float, digits: int) -> str:
    low, value, high = (scale * found[key] for key in ("low", name, "high"))
    if name == "rate":
        low, high = max(0.0, low), min(scale, high)
    interval = "" if high - low < 1e-9 else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{value:.{digits}f}{interval}"


def _table(setting: Setting, lines: Mapping[str, Any]) -> str:
    rows = [
        [
            line,
            *(_cell(found["success"][attempt - 1], "rate", 100, 1) for attempt in setting.shown),
            _cell(found["return"], "mean", 1, 2),
        ]
        for line, found in lines.items()
    ]
    return markdown_table(["success, %", *(f"attempt {attempt}" for attempt in setting.shown), "return"], rows)


def _page(results: Mapping[str, Any]) -> str:
    settings, models = results["settings"], results["models"]
    bayes, forgets = (settings["names"][line]["success"] for line in (BAYES, FORGETS))
    return PAGE.format(
        first=100 * bayes[0]["rate"],
        last=100 * bayes[-1]["rate"],
        forgets=100 * forgets[-1]["rate"],
        symbols=100 * settings["symbols"][FORGETS]["success"][-1]["rate"],
        **{key: results[key] for key in ("machine", "levels", "episodes")},
        **{key: value for key, value in models.items() if key != "rows"},
        tables="\n\n".join(f"## {each.title}\n\n{_table(each, settings[name])}" for name, each in SETTINGS.items()),
        arms=settings[TRAINED]["random"]["return"]["n"],
        chance=settings[TRAINED]["random"]["return"]["mean"],
        script=SCRIPT.capitalize(),
        models=_table(SETTINGS[TRAINED], models["rows"]),
    )


def _draw(results: Mapping[str, Any], path: Path) -> None:
    """Success by attempt on lakes of unknown names and on the bandits that the first model was trained on."""
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    drawn = [line for line in LINES if line not in ("blind script", f"greedy, {EPSILON:.0%} of moves random")]
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("names", TRAINED), strict=True):
        for colour, line in zip(COLOURS, drawn, strict=True):
            rates = [100 * each["rate"] for each in results["settings"][name][line]["success"]]
            axes.plot(range(1, len(rates) + 1), rates, "o-", color=colour, label=line, markersize=4)
        for (label, found), style in zip(results["models"]["rows"].items(), (":", "--"), strict=False):
            if name == TRAINED:
                rates = [100 * each["rate"] for each in found["success"]]
                axes.plot(range(1, len(rates) + 1), rates, f"s{style}", color=CONTROL, label=label, markersize=4)
        axes.set_title(SETTINGS[name].title, fontsize=10)
        axes.set_xlabel("attempt")
        axes.set_xticks(range(1, SETTINGS[name].options.get("attempts", 3) + 1))
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("success, %")
    figure.legend(*figure.axes[1].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
