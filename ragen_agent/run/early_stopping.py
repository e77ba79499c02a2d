"""Run history: newly raised alarms and early-stopping rules.

Two rules are from RAGEN-2 (arXiv 2604.06268, training details, whose values are the defaults): the return std within
groups stays below a tenth of its initial value, so there is no more signal; or the policy repeatedly fails on nearly
every validation level. A resumed run stops at the same iteration as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen_agent.config import Stops
from ragen_agent.run.alarm import Sign, signs_at

__all__ = ["STAGNANT_ITERATIONS", "History", "return_std_stop", "validation_stop"]

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
        self.records = [dict(record) for record in records]
        self.stops, self.stagnant = stops, 0

    def new_signs(self, record: Mapping[str, Any]) -> list[Sign]:
        """The signs of collapse that first appear in an iteration not yet added."""
        known = {name for past in self.records for name in past.get("alarm", ())}
        return [sign for sign in signs_at([*self.records, record]) if sign.name not in known]

    def add(self, record: Mapping[str, Any], stagnant: bool) -> None:
        """Adds an iteration; ``stagnant`` as in ``Iteration``."""
        self.records.append(dict(record))
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
        stds = [record["spread"] for record in self.records]
        if return_std_stop(stds, stops):
            return (
                f"{stopped}: for {stops.return_std_patience} iterations the return std within groups was below "
                f"{100 * stops.return_std_share:g} % of what it was in the first {stops.return_std_baseline}."
            )
        sampled = sum(record.get("sampled_tokens", 0) for record in self.records)
        if 0 < stops.sampled_tokens <= sampled:
            limit = f"stops.sampled_tokens={stops.sampled_tokens}"
            return f"{stopped}: the rollouts have sampled {sampled:,} tokens, and {limit}."
        rates = [record["validation"] for record in self.records if "validation" in record]
        if validation_stop(rates, stops):
            return (
                f"{stopped}: {stops.validation_patience} validations in a row were below "
                f"{100 * stops.validation_floor:g} %."
            )
        return ""


def _stagnant_reason(records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1]
    if last["success"] == 1:
        advice = "Every episode succeeds: the game is solved."
    elif all(record.get("invalid_rate") == 1 for record in records):
        advice = NO_FORMAT.format(last["response_tokens"])
    else:
        advice = "The run is dead: try a lower training.learning_rate, a longer warm start or another --seed."
    return (
        f"Stopped after iteration {last['iteration'] + 1}: for {STAGNANT_ITERATIONS} iterations no episode that the "
        "filter kept did better or worse than those it is compared with, so there is nothing to learn from (success "
        f"{100 * last['success']:.0f} %, return {last['return']:.2f}). {advice}"
    )


def return_std_stop(history: Sequence[float], stops: Stops) -> bool:
    """True if the return std has been low for ``return_std_patience`` iterations; never if that is 0.

    Low is below ``return_std_share`` of the mean of the first ``return_std_baseline`` iterations, which never stop a
    run themselves. ``history`` holds each iteration's return std within groups, averaged over the groups. A run whose
    returns never differed does not stop by this rule.
    """
    first, patience = stops.return_std_baseline, stops.return_std_patience
    if not patience or len(history) < first + patience:
        return False
    bound = stops.return_std_share * sum(history[:first]) / first
    return all(std < bound for std in history[-patience:])


def validation_stop(history: Sequence[float], stops: Stops) -> bool:
    """True if the last ``validation_patience`` validations were all below ``validation_floor``; never if that is 0.

    ``history`` holds the success rates of the validations so far, in [0, 1].
    """
    patience = stops.validation_patience
    return 0 < patience <= len(history) and all(rate < stops.validation_floor for rate in history[-patience:])
