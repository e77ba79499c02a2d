"""The tables of experiments, read from ``tables/*.toml`` or from a path, and the measures of a run that they may name.

Means at a run's start and end are over ``WINDOW`` iterations: one iteration of 256 episodes has a standard error of
about three points. A run that was stopped early, because nothing was left to learn from, keeps its last figures for the
iterations that it did not play.

What a claim compares is ``end``, the mean over the policies after each of the last ``evaluations`` iterations, all on
the same fixed levels, and on the same in every arm; the k-th last of every run draws the same noise.

title, question, claim, source, evidence, limits    text, for the page
curves, columns                                     figures by iteration (``METRICS``); measures of a run (``MEASURES``)
looks, evaluations, computed                        see ``Experiment``
margin                                              of all comparisons, in points; see ``Comparison``
[settings]                                          over the game's defaults, or a recipe's, for all arms
[[arms]] name, about, settings, ...                 over those; see ``Arm``
[[comparisons]] first, second, measure, asks, ...   without a second: against 0; see ``Comparison``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ragen_agent.config import Settings, read_toml
from ragen_agent.report.runs import RecordedRun
from ragen_agent.update.metrics import METRICS
from ragen_gym.core.validation import did_you_mean, shown

WINDOW = 5
FALL = 0.5  # of the best success: below this part of it a run has collapsed
MOST_EVALUATIONS = 10


def end_row(before: int) -> str:
    """The row of the summary with the evaluation of the policy so many iterations before the last, 1 or more."""
    return f"end_{before}"


class Measure(NamedTuple):
    """A number of a run."""

    about: str  # what it is
    of: Callable[[RecordedRun], float | None]  # its value; None where a run has no such number
    rate: bool = False  # whether it is a share, printed in percent
    signed: bool = False  # whether it may be below 0
    success: bool = False  # whether it is success after reinforcement began, of which "before" is the start


def measure(run: RecordedRun, name: str) -> float | None:
    """One number of ``MEASURES``."""
    return MEASURES[name].of(run)


def series(run: RecordedRun, name: str) -> list[float]:
    """A figure by iteration, to the planned end; empty where the run has no such figure."""
    values = [float(record[name]) for record in run.metrics if name in record]
    return values + values[-1:] * max(0, run.config.training.iterations - len(run.metrics))


def window_means(run: RecordedRun, name: str) -> list[float]:
    """Means of ``WINDOW`` iterations in a row, or fewer in a shorter run; empty where nothing has the figure."""
    values = series(run, name)
    width = min(WINDOW, len(values))
    return [fmean(values[end - width : end]) for end in range(width, len(values) + 1)] if width else []


def _rate(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: run.summary[name]["rate"] if name in run.summary else None


def _gain(run: RecordedRun) -> float | None:
    end, before = _end(run), _rate("before")(run)
    return None if end is None or before is None else end - before


def _normalised(run: RecordedRun) -> float | None:
    end, random, optimal = _end(run), _rate("random")(run), _rate("optimal")(run)
    if end is None or random is None or optimal is None or optimal <= random:
        return None
    return (end - random) / (optimal - random)


def _window(name: str, pick: Callable[[list[float]], float]) -> Callable[[RecordedRun], float | None]:
    def of(run: RecordedRun) -> float | None:
        means = window_means(run, name)
        return pick(means) if means else None

    return of


def _end(run: RecordedRun) -> float | None:
    """The mean of the final evaluation and of those before it; see ``end_row``."""
    rows = [run.summary[name] for name in ("after", *map(end_row, range(1, MOST_EVALUATIONS))) if name in run.summary]
    return fmean(row["rate"] for row in rows) if "after" in run.summary else None


def _shrinking(means: list[float]) -> float:
    return means[-1] / means[0] - 1 if means[0] else 0.0


def _early(name: str) -> Callable[[RecordedRun], float | None]:
    """The mean of the iterations 6 to 15: what is learned first. None of a run that was to be shorter."""

    def of(run: RecordedRun) -> float | None:
        values = series(run, name)[5:15]
        return fmean(values) if len(values) == 10 else None

    return of


def _lost(means: list[float]) -> float:
    return (max(means) - means[-1]) / max(means) if max(means) else 0.0


def _sum(name: str) -> Callable[[RecordedRun], float | None]:
    def of(run: RecordedRun) -> float | None:
        found = [record[name] for record in run.metrics if name in record]
        return float(sum(found)) if found else None

    return of


#: All measures of a run, by name.
MEASURES = {
    "end": Measure("success on the fixed levels, mean over the last policies", _end, rate=True, success=True),
    "after": Measure("success on the fixed levels of the last policy", _rate("after"), rate=True, success=True),
    "before": Measure("success on the fixed levels before it", _rate("before"), rate=True),
    "gain": Measure("end \N{MINUS SIGN} before", _gain, rate=True, signed=True),
    "random": Measure("random play on the same levels", _rate("random"), rate=True),
    "blind": Measure("a script that ignores what is in the way, on the same levels", _rate("blind"), rate=True),
    "optimal": Measure("optimal play on the same levels", _rate("optimal"), rate=True),
    "normalised": Measure("end, from random play (0) to optimal play (100)", _normalised, rate=True, signed=True),
    "early": Measure("training success, iterations 6 to 15", _early("success"), rate=True, success=True),
    "peak": Measure("the best training success", _window("success", max), rate=True, success=True),
    "final": Measure("the last training success", _window("success", lambda m: m[-1]), rate=True, success=True),
    "drop": Measure("peak \N{MINUS SIGN} final", _window("success", lambda m: max(m) - m[-1]), rate=True),
    "lost": Measure("share of the best training success that is lost at the end", _window("success", _lost), rate=True),
    "entropy_end": Measure("entropy at the end", _window("entropy", lambda m: m[-1])),
    "information_early": Measure("mutual information, iterations 6 to 15, nats a token", _early("mutual_information")),
    "information_end": Measure("mutual information at the end", _window("mutual_information", lambda m: m[-1])),
    "return_std_end": Measure("return std at the end", _window("return_std", lambda m: m[-1])),
    "grad_peak": Measure("the largest gradient norm", _window("grad_norm", max)),
    "invalid_end": Measure("malformed replies at the end", _window("invalid_rate", lambda m: m[-1]), rate=True),
    "reasoning_start": Measure("reasoning tokens at the start", _window("reasoning_tokens", lambda m: m[0])),
    "reasoning_end": Measure("reasoning tokens at the end", _window("reasoning_tokens", lambda m: m[-1])),
    "reasoning_change": Measure(
        "reasoning tokens, change from start to end", _window("reasoning_tokens", _shrinking), rate=True, signed=True
    ),
    "observed_end": Measure("right observations at the end", _window("observation_rate", lambda m: m[-1]), rate=True),
    "iterations": Measure("iterations until it ended", lambda run: float(len(run.metrics)) if run.metrics else None),
    "trained_tokens": Measure("tokens trained on", _sum("train_tokens")),
    "seconds": Measure("seconds in all", lambda run: run.summary.get("wall_s")),
    "correlation": Measure("of two measures over the arms of a seed, which no run has", lambda run: None, signed=True),
}


TABLES = Path(__file__).with_name("tables")


def _one_of(what: str, known: Iterable[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"not a {what}; give one of {', '.join(known)}")
        return name

    return check


Name = Annotated[str, AfterValidator(_one_of("measure", MEASURES))]
Curve = Annotated[str, AfterValidator(_one_of("curve", METRICS))]
Text = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
KNOWN_ALONE = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=KNOWN_ALONE)
class Arm:
    """One configuration."""

    name: str  # unique in the experiment
    about: str  # what it is, for the page
    settings: Settings = field(default_factory=dict)  # over those of the experiment
    control: bool = False  # whether it is there to rule out another explanation of what the other arms show
    #: Its seeds at most, whatever the looks: of a costly arm, which is described and not compared.
    seeds: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, config=KNOWN_ALONE)
class Comparison:
    """Two arms seed by seed, or one against 0; or two measures over the arms of a seed."""

    first: str  # name of an arm; empty with ``foretold_by``
    measure: Name
    asks: str  # the question, for the page
    second: str = ""  # name of an arm; empty to compare with 0
    claim: Literal["", "higher", "lower", "equal"] = ""  # what is said of the first; empty claims nothing
    by: Literal["source", "ours"] = "source"  # who claims it: the source, or this project
    spread: bool = False  # whether their spreads over seeds are compared, not their means
    margin: float = 0.05  # two rates that differ by less count as equal; stated before the first run
    looks: tuple[int, ...] = ()  # as of the experiment
    #: Two more arms, whose difference is subtracted: whether an intervention does less in one world than in another.
    beside: tuple[str, str] | tuple[()] = ()
    #: An earlier measure, in place of arms: its correlation with ``measure`` over the arms of a seed, within each world
    #: (equal ``env_options``), at the seeds that all arms have.
    foretold_by: Name | None = None
    without: tuple[str, ...] = ()  # arms it leaves out, say those that joined after it was seen

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of its arms; none where it is of all."""
        return tuple(arm for arm in (self.first, self.second, *self.beside) if arm)

    @property
    def unit(self) -> str:
        """The measure in whose unit the difference is."""
        return "correlation" if self.foretold_by else self.measure

    @property
    def compared(self) -> str:
        """The difference in words."""
        if self.foretold_by:
            return f"{self.measure} by {self.foretold_by}, over arms"
        what = "" if self.measure == "end" else f", {self.measure}"
        pair = f"{self.first} \N{MINUS SIGN} {self.second or 0}"
        if self.beside:
            pair = f"({pair}) \N{MINUS SIGN} ({self.beside[0]} \N{MINUS SIGN} {self.beside[1]})"
        return f"{pair}{what}{', spread over seeds' if self.spread else ''}"


@dataclass(frozen=True, config=KNOWN_ALONE)
class Experiment:
    """A table, as the module describes it."""

    name: str
    title: Text
    question: Text
    claim: Text
    source: Text
    evidence: Text
    limits: Text
    curves: tuple[Curve, ...]
    columns: tuple[Name, ...]
    settings: Settings
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    #: At how many seeds the comparisons are looked at: arms get more seeds until each claim is decided, at most as many
    #: as the last. Empty where they are compared once, over however many seeds there are.
    looks: tuple[Annotated[int, Field(ge=2)], ...] = ()
    #: How many policies are evaluated: those after each of the last iterations.
    evaluations: int = Field(default=1, ge=1, le=MOST_EVALUATIONS)
    #: module:name of f(folder, runs) -> (lines, names of pictures): a part of the page before its measurements
    computed: str = ""


def names() -> list[str]:
    """The names of all experiments, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def read(name: str) -> Experiment:
    """The experiment of that name, or of the table at that path, which ends in ``.toml``.

    Raises:
        ValueError: there is none, its table names an arm, a measure or a key that does not exist, or a table of one's
            own is called like one of the repository.
    """
    path = Path(name) if name.endswith(".toml") else TABLES / f"{name}.toml"
    if not path.is_file():
        raise ValueError(
            f"there is no experiment {name!r}: give the path of a table (.toml), or one of {', '.join(names())}."
            + did_you_mean(name, names())
        )
    if path.stem in names() and path.resolve().parent != TABLES.resolve():
        raise ValueError(
            f"{path} is called like an experiment of the repository, whose runs it would share: rename it."
        )
    content: dict[str, Any] = {**read_toml(path), "name": path.stem}
    try:
        shared = {"looks": content.get("looks", ()), "margin": content.pop("margin", 5) / 100}
        content["comparisons"] = [dict(**row, **shared) for row in content["comparisons"]]
        made = TypeAdapter(Experiment).validate_python(content)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not the table of an experiment: {error!r}.") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc']))} = {shown(each['input'])}: {each['msg']}" for each in error.errors()
        )
        raise ValueError(f"{path.name} is not the table of an experiment: {wrong}.") from error
    arms = [arm.name for arm in made.arms]
    if twice := {name for name in arms if arms.count(name) > 1}:
        raise ValueError(f"{path.name} has several arms of the name {', '.join(sorted(twice))}.")
    if list(made.looks) != sorted(set(made.looks)):
        raise ValueError(f"{path.name} has looks={list(made.looks)}; give rising numbers of seeds.")
    for each in made.comparisons:
        if bool(each.first) == bool(each.foretold_by) or (each.beside and not each.second):
            raise ValueError(f"{path.name} asks {each.asks!r}; give first or foretold_by, and beside only with second.")
    for arm in (arm for each in made.comparisons for arm in (*each.arms, *each.without) if arm not in arms):
        raise ValueError(f"{path.name} compares {arm!r}; its arms are {', '.join(arms)}.")
    return made
