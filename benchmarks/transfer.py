"""What an agent carries over to what it was not trained on: ``python -m benchmarks.transfer``.

Three small models are trained from scratch, each on one game, and measured on held-out levels of other games and of
their own game changed along one axis: symbols, text format, board size, boxes, slip. A run that is whole is read, one
that was interrupted goes on, and what was measured is not measured again. Written are ``transfer.json``,
``transfer.md`` and ``transfer.svg``, after each run and of all that is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import machine, made_folder
from benchmarks.recipes import train
from ragen_agent.config import Config
from ragen_agent.models.small_model import CONTEXT
from ragen_agent.run.evaluation import baselines, evaluated_levels, play_fixed, rate_of_played
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import Estimate, Rate, mean_interval
from ragen_gym.core.storage import atomic_path, write_atomic
from ragen_gym.games.registry import find

__all__ = ["AGENTS", "TARGETS", "Target", "main"]

HERE = Path(__file__).parent

#: The agents by the game that they are trained on, each with the arguments of ``ragen-agent train``.
AGENTS: dict[str, tuple[str, ...]] = {
    "Sokoban": ("--recipe", "small-sokoban"),
    "FrozenLake": ("--game", "FrozenLake"),
    "Bandit": ("--game", "Bandit"),
}
ALONE = ("--set", "evaluation.imitation=false")  # what imitates only is not measured here
#: With ``--quick``: only to see whether it works.
QUICK = (
    *("--set", "training.iterations=1", "--set", "demonstrations.episodes=64", "--set", "evaluation.levels=8"),
    *("--set", "training.groups=4", "--set", "training.minibatch=16"),
)
QUICK_LEVELS = 8


@dataclass(frozen=True)
class Target:
    """What an agent is measured on.

    ``options`` go over those that the agent was trained with; in a game with other rules over the text format alone.
    """

    agent: str
    axis: str
    title: str
    game: str
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "test"

    @property
    def key(self) -> str:
        """What of the results is this target's; equal for targets that are the same levels."""
        return json.dumps([self.agent, self.game, self.options, self.split], sort_keys=True)


def _axis(agent: str, axis: str, game: str, option: str, titles: Mapping[str, Any]) -> list[Target]:
    """Targets that differ in one option from what the agent was trained on, which is the title with None."""
    return [
        Target(agent, axis, title, game, {} if value is None else {option: value}) for title, value in titles.items()
    ]


_AS_IN_THE_PAPER = {"min_moves": None, "max_moves": None}
TARGETS: tuple[Target, ...] = (
    Target("Sokoban", "game", "Sokoban, as trained on", "Sokoban"),
    Target("Sokoban", "game", "Sokoban, any distance", "Sokoban", _AS_IN_THE_PAPER),
    Target("Sokoban", "game", "NewVocab, any distance", "NewVocab", _AS_IN_THE_PAPER),
    Target("Sokoban", "game", "LargeSokoban, any distance", "LargeSokoban", _AS_IN_THE_PAPER),
    Target("Sokoban", "game", "FrozenLake, slip 2/3", "FrozenLake", {"success_rate": 1 / 3}),
    Target("Sokoban", "game", "FrozenLake, no slip", "FrozenLake", {"success_rate": 1.0}),
    *_axis("Sokoban", "board size", "Sokoban", "size", {"6x6, as trained on": None, "5x5": 5, "7x7": 7, "8x8": 8}),
    *_axis("Sokoban", "boxes", "Sokoban", "boxes", {"1, as trained on": None, "2": 2, "3": 3}),
    *_axis(
        *("Sokoban", "symbols", "Sokoban", "vocabulary"),
        {"# _ O X P, as trained on": None, "NewVocab's": "new_vocab", "letters": "letters", "digits": "digits"},
    ),
    *_axis(
        *("Sokoban", "text format", "Sokoban", "text_format"),
        {"coord, as trained on": None, "grid_coord": "grid_coord", "grid": "grid", "spaced": "spaced"},
    ),
    Target("FrozenLake", "game", "FrozenLake, as trained on", "FrozenLake"),
    Target("FrozenLake", "game", "Sokoban", "Sokoban"),
    *_axis(
        *("FrozenLake", "slip", "FrozenLake", "success_rate"),
        {"0, as trained on": None, "1/10": 0.9, "1/5": 0.8, "1/3": 2 / 3, "2/3, the paper's": 1 / 3},
    ),
    *_axis(
        "FrozenLake", "board size", "FrozenLake", "size", {"4x4, as trained on": None, "3x3": 3, "5x5": 5, "6x6": 6}
    ),
    *_axis(
        *("FrozenLake", "symbols", "FrozenLake", "vocabulary"),
        {"_ O G P, as trained on": None, "letters": "letters", "digits": "digits", "punctuation": "punctuation"},
    ),
    *_axis(
        *("FrozenLake", "text format", "FrozenLake", "text_format"),
        {"grid, as trained on": None, "grid_coord": "grid_coord", "spaced": "spaced", "coord": "coord"},
    ),
    Target("Bandit", "names", "Bandit, as trained on", "Bandit", split="train"),
    Target("Bandit", "names", "Bandit, names never met", "Bandit"),
    Target("Bandit", "names", "BanditRev, names trained on", "BanditRev", split="train"),
    Target("Bandit", "names", "BanditRev, names never met", "BanditRev"),
)

PAGE = """\
# What carries over

Written by `python -m benchmarks.transfer`. Small models are trained from scratch, each on one game, by imitation and
then by reinforcement, and play {levels} levels of the test split of everything else, by the turns that they were
trained with. No level makes one problem with a training level ([held-out levels](heldout.md)). Success in %, with 95 %
intervals: Wilson's for random and optimal play and for a single seed, Student's over seeds. *Carried over* is how far
from random (0 %) to optimal play (100 %) on those very levels; a dash stands where the agent's interval overlaps that
of random play.

![success on what the agents were not trained on, by axis](transfer.svg)

{sections}
RAGEN trains on Sokoban and on Bandit and measures like this (arXiv 2504.20073, Tables 2 to 4), without random or
optimal play next to its rates; its StarPO-S ends at 21.5 on Sokoban, 18.8 on NewVocab, 2.3 on LargeSokoban and 19.9 on
FrozenLake, where random play scores 19.1, 19.1, 2.5 and 21.2, and at 67.6 on BanditRev.

Machines: {machines}.
"""
SECTION = """\
## Trained on {agent}

{about}

| axis | measured on | random | imitation | **then RL** | optimal | carried over |
|---|---|---|---|---|---|---|
{rows}
"""
ABOUT = {
    "Sokoban": "The recipe `small-sokoban`: {options}; a board is written as coordinates, so that other symbols stand "
    "in the instructions alone.",
    "FrozenLake": "The default run of `ragen-agent train`: {options}; boards are grids of symbols.",
    "Bandit": "The default run on this game, ten pairs of names. Its demonstrator chooses at random.",
}

Results = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and measures what is missing, writes; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=AGENTS, default=list(AGENTS), metavar="GAME", help="which agents")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--levels", type=int, default=128, metavar="N", help="of each target (default 128)")
    parser.add_argument("--runs", type=Path, default=Path("runs/transfer"), metavar="DIR", help="folder of the runs")
    parser.add_argument("--out", type=made_folder, default=HERE, metavar="DIR", help="folder of the three files")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see whether it works; give another --out")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.out == HERE:
        parser.error("--quick measures nothing worth keeping: give --out another folder than that of the page.")
    levels = QUICK_LEVELS if arguments.quick else arguments.levels
    file = arguments.out / "transfer.json"
    results: Results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"levels": levels}
    if results["levels"] != levels:
        parser.error(f"{file} holds rates on {results['levels']} levels: give --levels {results['levels']}.")
    for seed in arguments.seeds:
        for agent in arguments.only:
            folder = arguments.runs / f"{agent}-seed{seed}"
            measured = _is_measured(agent, seed, results)
            if measured and not folder.exists():  # on another machine
                continue
            options = (*ALONE, *(QUICK if arguments.quick else ()))
            train(folder, *AGENTS[agent], "--seed", str(seed), *options, rows=("after",))
            _measure(agent, seed, folder, results)
            if not measured:
                results["machines"] = list(dict.fromkeys([*results.get("machines", ()), machine("torch")]))
            write_atomic(file, json.dumps(results, indent=1) + "\n")
            _draw(results, arguments.out / "transfer.svg")
            write_atomic(arguments.out / "transfer.md", _page(results))
    return 0


def settings_for(trained: Config, target: Target, levels: int) -> Config:
    """The settings of an agent that plays a target, by the turns that it was trained with."""
    rules = find(target.game).game_class
    same = rules is find(trained.game).game_class
    kept = {name: value for name, value in trained.env_options.items() if same or name == "text_format"}
    if rules.layout == "arms":  # which are not written in a text format
        kept = {}
    return replace(
        trained,
        game=target.game,
        env_options=kept | target.options,
        turns=replace(trained.turns, max_tokens_per_episode=CONTEXT),
        evaluation=replace(trained.evaluation, split=target.split, levels=levels),
    )


def _is_measured(agent: str, seed: int, results: Results) -> bool:
    rates = results.get("rates", {}).get(agent, {}).get(str(seed), {})
    return all({"before", "after"} <= rates.get(target.key, {}).keys() for target in TARGETS if target.agent == agent)


def _measure(agent: str, seed: int, folder: Path, results: Results) -> None:
    """Adds to the results what a run's models, before and after reinforcement, score on its agent's targets."""
    run, trained = RunFolder.reopen(folder)
    results.setdefault("settings", {})[agent] = {"game": trained.game, "env_options": trained.env_options}
    mine = results.setdefault("rates", {}).setdefault(agent, {}).setdefault(str(seed), {})
    players = {"before": run.warm, "after": run.checkpoint}
    policies: dict[str, Policy] = {}
    for target in (target for target in TARGETS if target.agent == agent):
        config = settings_for(trained, target, results["levels"])
        env, instances = evaluated_levels(config)
        bounds = results.setdefault("bounds", {})
        if target.key not in bounds:
            bounds[target.key] = {name: rate.to_dict() for name, rate in baselines(env, instances).items()}
        rates = mine.setdefault(target.key, {})
        for name in players.keys() - rates.keys():
            if name not in policies:
                policies[name] = Policy.build(trained, players[name])
            rates[name] = rate_of_played(play_fixed(replace(policies[name], config=config), instances)).to_dict()
        print(f"{agent}, seed {seed}: {target.axis}, {target.title}: {100 * rates['after']['rate']:.1f} %", flush=True)


@dataclass(frozen=True)
class Row:
    """A target with what was measured on it."""

    target: Target
    random: Rate
    optimal: Rate
    before: Estimate
    after: Estimate

    @property
    def carried(self) -> float:
        """The share of the way from random to optimal play; may be negative."""
        return (self.after.value - self.random.value) / (self.optimal.value - self.random.value)

    @property
    def differs(self) -> bool:
        """Whether the intervals of the agent and of random play are apart."""
        return self.after.low > self.random.high or self.after.high < self.random.low


def _rows(results: Results, agent: str) -> list[Row]:
    rows = []
    for target in (target for target in TARGETS if target.agent == agent):
        seeds = [rates[target.key] for rates in results["rates"][agent].values() if target.key in rates]
        if seeds:
            bounds = {name: Rate.from_dict(rate) for name, rate in results["bounds"][target.key].items()}
            before, after = (_over_seeds([Rate.from_dict(r[name]) for r in seeds]) for name in ("before", "after"))
            rows.append(Row(target, bounds["random"], bounds["optimal"], before, after))
    return rows


def _over_seeds(rates: Sequence[Rate]) -> Estimate:
    """The mean over seeds; of a single one the rate itself, with Wilson's interval."""
    if len(rates) == 1:
        return rates[0]
    found = mean_interval([rate.rate for rate in rates])
    if found.low == found.high:  # equal seeds: the levels are still few
        return replace(found, low=fmean(r.low for r in rates), high=fmean(r.high for r in rates))
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _page(results: Results) -> str:
    """The page of these results."""
    sections = [_section(results, agent) for agent in AGENTS if agent in results.get("rates", {})]
    return PAGE.format(levels=results["levels"], sections="\n".join(sections), machines="; ".join(results["machines"]))


def _section(results: Results, agent: str) -> str:
    lines, axis = [], ""
    for row in _rows(results, agent):
        rates = row.random, row.before, row.after, row.optimal
        cells = [f"{100 * rate.value:.1f} ({100 * rate.low:.0f} to {100 * rate.high:.0f})" for rate in rates]
        cells[2] = f"**{cells[2].replace(' (', '** (', 1)}"
        carried = "-" if not row.differs else f"{100 * row.carried:.0f} %" if row.carried > 0 else "worse than random"
        title = row.target.axis if row.target.axis != axis else ""
        lines.append(f"| {' | '.join([title, row.target.title, *cells, carried])} |")
        axis = row.target.axis
    options = ", ".join(f"{name}={value}" for name, value in results["settings"][agent]["env_options"].items())
    seeds = ", ".join(sorted(results["rates"][agent], key=int))
    about = f"{ABOUT[agent].format(options=options)} Seeds: {seeds}."
    return SECTION.format(agent=agent, about=about, rows="\n".join(lines))


def _draw(results: Results, path: Path) -> None:
    """A panel for each agent, a line for each target: random, imitation, RL and optimal play."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    panels = {agent: _rows(results, agent) for agent in AGENTS if agent in results["rates"]}
    heights = [len(rows) + len({row.target.axis for row in rows}) for rows in panels.values()]
    with rc_context({"svg.hashsalt": "transfer"}):
        figure = Figure(figsize=(8, 0.22 * sum(heights) + 0.6 * len(panels) + 0.6), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights).ravel()
        for panel, (agent, rows) in zip(axes, panels.items(), strict=True):
            _draw_panel(panel, agent, rows)
        axes[-1].set_xlabel("success on held-out levels, %")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small", frameon=False
        )
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})


def _draw_panel(panel: Any, agent: str, rows: Sequence[Row]) -> None:
    places: list[float] = []
    labels: list[str] = []
    axis = ""
    for row in rows:
        if row.target.axis != axis:
            axis, place = row.target.axis, (places[-1] + 1.9 if places else 0.9)
            panel.text(-0.01, place - 0.85, axis, transform=panel.get_yaxis_transform(), ha="right", va="center",
                       fontsize=8, fontweight="bold")  # fmt: skip
        else:
            place = places[-1] + 1
        places.append(place)
        labels.append(row.target.title)
        first = len(places) == 1
        span = [100 * row.random.value, 100 * row.optimal.value]
        panel.plot(span, [place] * 2, color="0.85", linewidth=5, solid_capstyle="butt", zorder=1)
        for name, rate, mark, colour, size in (
            ("random play", row.random, "|", "0.35", 9),
            ("optimal play", row.optimal, "|", "#009E73", 9),
            ("imitation", row.before, "o", "#E69F00", 4),
        ):
            panel.plot(100 * rate.value, place, mark, color=colour, markersize=size, markeredgewidth=1.6,
                       linestyle="none", label=name if first else None, zorder=2)  # fmt: skip
        error = [[100 * (row.after.value - row.after.low)], [100 * (row.after.high - row.after.value)]]
        panel.errorbar(100 * row.after.value, place, xerr=error, fmt="D", color="#0072B2", markersize=4.5, capsize=2,
                       linewidth=1.2, label="then RL, 95 % interval" if first else None, zorder=3)  # fmt: skip
    panel.set_yticks(places, labels, fontsize=8)
    panel.set_ylim(places[-1] + 0.6, -0.5)
    panel.set_xlim(-2, 102)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", alpha=0.25)
    panel.set_title(f"trained on {agent}", fontsize=10, loc="left")


if __name__ == "__main__":
    raise SystemExit(main())
