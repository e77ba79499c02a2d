"""What an iteration's replies look like: how long, how alike, how many malformed, how many that do something.

All are shares or means over the turns of the episodes that did not fail. Collapse shows here first to a reader: the
replies of a collapsed policy are malformed, or the same few whatever the board says (RAGEN, arXiv 2504.20073,
section on the Echo Trap).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ragen_agent.training.diagnostics.reasoning import reasoning_spans
from ragen_agent.trajectory import Trajectory

__all__ = [
    "effective_rate",
    "invalid_rate",
    "observation_rate",
    "prediction_rate",
    "reasoning_tokens",
    "repeated_rate",
    "reply_figures",
    "reply_tokens",
]


def reply_figures(trajectories: Sequence[Trajectory], piece: Callable[[int], str] | None = None) -> dict[str, float]:
    """All figures of this module by name, without those that cannot be told.

    Args:
        trajectories: of one iteration.
        piece: see `ragen_agent.training.diagnostics.reasoning.piece_decoder`; without it no reasoning is measured.
    """
    figures = {
        "response_tokens": reply_tokens(trajectories),
        "repeated_rate": repeated_rate(trajectories),
        "invalid_rate": invalid_rate(trajectories),
        "effective_rate": effective_rate(trajectories),
        "observation_rate": observation_rate(trajectories),
        "prediction_rate": prediction_rate(trajectories),
        "reasoning_tokens": None if piece is None else reasoning_tokens(trajectories, piece),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def reply_tokens(trajectories: Sequence[Trajectory]) -> float | None:
    """Sampled tokens a turn, the end token included where it was sampled; None without turns."""
    return _mean([float(t.sampled.sum()) for t in _whole(trajectories)], _turns(trajectories))


def reasoning_tokens(trajectories: Sequence[Trajectory], piece: Callable[[int], str]) -> float | None:
    """Tokens a turn between the thinking tags, 0 for a reply without them; None without turns."""
    lengths = [float(end - first) for t in _whole(trajectories) for first, end in reasoning_spans(t, piece)]
    return _mean(lengths, _turns(trajectories))


def repeated_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of turns whose reply occurs more than once among the iteration's, token by token; None without turns.

    Small vocabularies of moves make this high for any policy, so its course tells more than its height.
    """
    replies = Counter(reply for t in _whole(trajectories) for reply in _replies(t))
    return _mean([float(count) for count in replies.values() if count > 1], sum(replies.values()))


def invalid_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of turns whose reply was malformed or named an unknown action; None where no environment says so."""
    facts = [facts for t in _whole(trajectories) for facts in t.turn_facts]
    return _mean([float(bool(fact.problem)) for fact in facts], len(facts))


def effective_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of turns that changed the board or ended the game; None where no environment says so."""
    facts = [facts for t in _whole(trajectories) for facts in t.turn_facts]
    return _mean([float(fact.effective) for fact in facts], len(facts))


def observation_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of turns whose reply describes the very board; None where none is asked to."""
    said = [fact.observation_right for t in _whole(trajectories) for fact in t.turn_facts]
    return _mean([float(right) for right in said if right is not None], sum(right is not None for right in said))


def prediction_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of turns whose reply predicts the very board after its moves; None where none is asked to."""
    said = [fact.prediction_right for t in _whole(trajectories) for fact in t.turn_facts]
    return _mean([float(right) for right in said if right is not None], sum(right is not None for right in said))


def _replies(trajectory: Trajectory) -> list[tuple[int, ...]]:
    starts = [0, *(end + 1 for end in trajectory.turn_ends)]
    return [
        tuple(trajectory.ids[start : end + 1][trajectory.sampled[start : end + 1]].tolist())
        for start, end in zip(starts, trajectory.turn_ends, strict=False)
    ]


def _whole(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.failure is None]


def _turns(trajectories: Sequence[Trajectory]) -> int:
    return sum(len(t.turn_ends) for t in _whole(trajectories))


def _mean(numbers: Sequence[float], count: int) -> float | None:
    return sum(numbers) / count if count else None
