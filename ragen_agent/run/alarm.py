"""Run history: signs of the Echo Trap, and early-stopping rules.

RAGEN (arXiv 2504.20073, section on the Echo Trap) describes how multi-turn training collapses onto a few replies: the
return std within groups falls first, the entropy falls or jumps, the gradient norm spikes, and the success does not
come back. Two signs of format collapse stand next to these: malformed replies, and returns that no longer differ.

A sign is a function of the history up to an iteration, the same for a resumed run. It is a warning, not a verdict: it
compares the last iterations with the first ones by a factor.

A rule of stopping is from RAGEN-2 (arXiv 2604.06268, training details): the return std within groups stays below a
tenth of its initial value, so there is no more signal. A resumed run stops where an uninterrupted one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from ragen_agent.config import Stops

#: What each sign is, and what usually follows it.
FOLLOWS = {
    "return_std_fall": "episodes of a level earn nearly the same; the gradient loses its signal, replies grow alike",
    "return_std_end": "no group disagrees about anything; without a critic nothing is learned from here on",
    "entropy_fall": "the policy settles on few replies; success stays as it is, or falls when the replies turn wrong",
    "entropy_jump": "the policy drifts to noise; malformed replies follow within a few iterations",
    "gradient_spike": "one step moved the policy far; RAGEN sees no recovery after it, so look at the next rates",
    "invalid_rise": "format collapse: malformed replies play few moves or none, so few rewards teach the way back",
}

Record = Mapping[str, float]


START, WINDOW = 10, 3  # iterations: the first ones or as many as there are, and the last, whose means are compared
FALL, JUMP = 0.4, 2.0  # ratios of the two means below and above which a figure has fallen or jumped
SPIKE = 5.0  # ratio of a gradient norm to the median of those before it
INVALID = 0.5  # share of malformed turns that is too many, where the start had less


@dataclass(frozen=True)
class Sign:
    """One sign: its name (a key of ``FOLLOWS``), its iteration, the figure, and what it was held against."""

    name: str
    iteration: int
    value: float
    reference: float

    def __str__(self) -> str:
        return (
            f"Echo Trap alarm after iteration {self.iteration + 1}: {sign_label(self.name)} ({self.value:.3g} against "
            f"{self.reference:.3g}). What usually follows: {FOLLOWS[self.name]}."
        )


def sign_label(name: str) -> str:
    """A sign in words, such as ``return std fall`` for ``return_std_fall``."""
    return name.replace("_", " ")


def signs_at(history: Sequence[Record]) -> list[Sign]:
    """The signs that the last iteration of the history shows, in the order of ``FOLLOWS``.

    Args:
        history: the records of ``metrics.jsonl`` so far, in order. Read are ``return_std``, ``entropy``, ``grad_norm``
            and ``invalid_rate``; an iteration without an update lacks some of them, and those signs pass over it.
    """
    if not history:
        return []
    iteration = int(history[-1].get("iteration", len(history) - 1))
    std, entropy, grad_norm, invalid = (
        # A figure that the last iteration lacks shows nothing new.
        [record[name] for record in history if name in record] if name in history[-1] else []
        for name in ("return_std", "entropy", "grad_norm", "invalid_rate")
    )
    found = {
        "return_std_fall": _ends(std, lambda last, first: last < FALL * first),
        "return_std_end": _end(std),
        "entropy_fall": _ends(entropy, lambda last, first: last < FALL * first),
        "entropy_jump": _ends(entropy, lambda last, first: last > JUMP * first > 0),
        "gradient_spike": _spike(grad_norm),
        "invalid_rise": _ends(invalid, lambda last, first: last > INVALID > first),
    }
    return [Sign(name, iteration, *figures) for name, figures in found.items() if figures is not None]


def _ends(series: Sequence[float], shows: Callable[[float, float], bool]) -> tuple[float, float] | None:
    """The means of the last and of the first iterations, which do not overlap, where these show the sign.

    A rate that is far too high ends a run within five iterations, so a young run is held against its first one.
    """
    count = min(START, len(series) - WINDOW)
    if count <= 0:
        return None
    last, first = fmean(series[-WINDOW:]), fmean(series[:count])
    return (last, first) if shows(last, first) else None


def _end(series: Sequence[float]) -> tuple[float, float] | None:
    last = series[-WINDOW:]
    return (0.0, max(series)) if len(last) == WINDOW and not any(last) and any(series) else None


def _spike(series: Sequence[float]) -> tuple[float, float] | None:
    if len(series) <= START:
        return None
    usual = median(series[:-1])
    return (series[-1], usual) if series[-1] > SPIKE * usual > 0 else None


LOW = 0.1  # share of the initial return std that is low
STAGNANT_ITERATIONS = 3  # this many in a row without anything to learn from end a run
NO_FORMAT = (
    "The model does not know the reply format: no reply since the first iteration was well-formed, so no reward can "
    "teach it. Let it imitate demonstrations first, or more of them: raise warm_start.epochs and "
    "demonstrations.episodes (for a pretrained model --set warm_start.epochs=1 --set demonstrations.episodes=400, or "
    "--recipe smollm2-135m-bandit). Its last replies had {:.0f} tokens on average; if that is "
    "turns.max_tokens_per_turn, they were cut off: raise it."
)


class History:
    """The records of a run's iterations, with the alarm and stopping rules on them.

    ``stagnant`` is the number of last iterations that taught nothing; a resumed run sets it.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]], stops: Stops) -> None:
        self.records = list(records)
        self.stops, self.stagnant = stops, 0

    def new_signs(self, record: Mapping[str, Any]) -> list[Sign]:
        """The signs of collapse that first appear in an iteration not yet added."""
        known = {name for past in self.records for name in past.get("alarm", ())}
        return [sign for sign in signs_at([*self.records, record]) if sign.name not in known]

    def add(self, record: Mapping[str, Any], stagnant: bool) -> None:
        """Adds an iteration, whose record may still gain figures; ``stagnant`` as in ``Iteration``."""
        self.records.append(record)
        self.stagnant = self.stagnant + 1 if stagnant else 0

    @property
    def entropies(self) -> list[float]:
        """The entropy of each iteration's rollouts, in nats a token."""
        return [record["entropy_sampled"] for record in self.records if "entropy_sampled" in record]

    @property
    def stop_reason(self) -> str:
        """The reason to stop before the last iteration, or the empty text; the same in a resumed run."""
        if self.stagnant >= STAGNANT_ITERATIONS:
            return _stagnant_reason(self.records)
        stops, stopped = self.stops, f"Stopped after iteration {len(self.records)}"
        stds, patience = [record["return_std"] for record in self.records], stops.return_std_patience
        if patience and len(stds) >= START + patience and max(stds[-patience:]) < LOW * fmean(stds[:START]):
            return (
                f"{stopped}: for {patience} iterations the return std within groups was below {100 * LOW:g} % of what "
                f"it was in the first {START}."
            )
        sampled = sum(record.get("sampled_tokens", 0) for record in self.records)
        if 0 < stops.sampled_tokens <= sampled:
            limit = f"stops.sampled_tokens={stops.sampled_tokens}"
            return f"{stopped}: the rollouts have sampled {sampled:,} tokens, and {limit}."
        return ""


def _stagnant_reason(records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1]
    if last["success"] == 1:
        advice = "Every episode succeeds: the game is solved."
    elif all(record.get("invalid_rate") == 1 for record in records):
        advice = NO_FORMAT.format(last["reply_tokens"])
    else:
        advice = "The run is dead: try a lower training.learning_rate, a longer warm start or another --seed."
    return (
        f"Stopped after iteration {last['iteration'] + 1}: for {STAGNANT_ITERATIONS} iterations no episode that the "
        "filter kept did better or worse than those it is compared with, so there is nothing to learn from (success "
        f"{100 * last['success']:.0f} %, return {last['return']:.2f}). {advice}"
    )
