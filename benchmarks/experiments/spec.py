"""The tables of experiments, read from ``tables/*.toml``.

title, question, claim, source, evidence, limits    text, for the page
curves, columns                                     figures by iteration (``METRICS``); measures of a run (``MEASURES``)
[settings]                                          over the game's recipe, for all arms
[[arms]] name, about, settings, ...                 over those; see ``Arm``
[[comparisons]] first, second, measure, asks, ...   without a second: against 0; see ``Comparison``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.experiments.metrics import MEASURES
from ragen_agent.config import Settings, read_toml
from ragen_agent.training.metrics import METRICS
from ragen_gym.core.validation import did_you_mean

__all__ = ["TABLES", "Arm", "Comparison", "Experiment", "names", "read"]

TABLES = Path(__file__).with_name("tables")

#: What a claim says of the first arm's measure compared with the second's; the empty text claims nothing.
CLAIMS = ("", "higher", "lower", "equal")


@dataclass(frozen=True)
class Arm:
    """One configuration."""

    name: str  # unique in the experiment
    about: str  # what it is, for the page
    settings: Settings = field(default_factory=dict)  # over those of the experiment
    control: bool = False  # whether it is there to rule out another explanation of what the other arms show
    imitation: bool = False  # whether it is compared with further imitation at the same cost
    #: whether its rewards may teach what is measured as failure, so that its fall is no collapse
    misleading: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two arms seed by seed, or one against 0."""

    first: str  # name of an arm
    measure: str  # a key of ``MEASURES``
    asks: str  # the question, for the page
    second: str = ""  # name of an arm; empty to compare with 0
    claim: str = ""  # what is said of the first, one of ``CLAIMS``
    by: str = "source"  # who claims it: the source, or this project ("ours")


@dataclass(frozen=True)
class Experiment:
    """A table, as the module describes it."""

    name: str
    title: str
    question: str
    claim: str
    source: str
    evidence: str
    limits: str
    curves: tuple[str, ...]
    columns: tuple[str, ...]
    settings: Settings
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]


def names() -> list[str]:
    """The names of all experiments, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def read(name: str, folder: Path = TABLES) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: there is none, or its table names an arm, a measure or a key that does not exist.
    """
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise ValueError(
            f"there is no experiment {name!r}: choose one of {', '.join(names())}.{did_you_mean(name, names())}"
        )
    content = read_toml(path)
    try:
        made = Experiment(
            name=name,
            **{key: _text(content.pop(key)) for key in ("title", "question", "claim", "source", "evidence", "limits")},
            curves=tuple(content.pop("curves")),
            columns=tuple(content.pop("columns")),
            settings=content.pop("settings"),
            arms=tuple(Arm(**row) for row in content.pop("arms")),
            comparisons=tuple(Comparison(**row) for row in content.pop("comparisons")),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not the table of an experiment: {error}") from error
    if content:
        raise ValueError(f"{path.name} holds unknown keys: {', '.join(content)}.")
    _check(made)
    return made


def _text(value: Any) -> str:
    return " ".join(str(value).split())


def _check(experiment: Experiment) -> None:
    arms = [arm.name for arm in experiment.arms]
    twice = {name for name in arms if arms.count(name) > 1}
    if twice:
        raise ValueError(f"{experiment.name} has several arms of the name {', '.join(sorted(twice))}.")
    for comparison in experiment.comparisons:
        for arm in filter(None, (comparison.first, comparison.second)):
            if arm not in arms:
                raise ValueError(f"{experiment.name} compares {arm!r}; its arms are {', '.join(arms)}.")
        if comparison.claim not in CLAIMS:
            raise ValueError(f"{experiment.name} claims {comparison.claim!r}; a claim is {', '.join(CLAIMS[1:])}.")
        if comparison.by not in ("source", "ours"):
            raise ValueError(f"{experiment.name} has a claim by {comparison.by!r}; it is by source, or ours.")
    wanted = [*experiment.columns, *(comparison.measure for comparison in experiment.comparisons)]
    for measure in wanted:
        if measure not in MEASURES:
            raise ValueError(f"{experiment.name} asks for {measure!r}; measures are {', '.join(MEASURES)}.")
    for curve in experiment.curves:
        if curve not in METRICS:
            raise ValueError(f"{experiment.name} draws {curve!r}; curves are {', '.join(METRICS)}.")
