"""Groups as trees: some episodes of a group share the beginning of another, token by token (``training.groups_by``).

One in ``1 + training.branches`` episodes of a group is a *base*, played from the start. The others branch off a base:
they begin with its first turns, with the ids sampled there, and continue from the state reached, with their own replies
and transition noise. ``training.branch_at`` sets the branch point:

- ``pivot``: the turn that lost the level, the first one that lowers the highest probability of success in the remaining
  moves, or after which it is 0 (``ragen_gym.games.values.pivot``: exact, while PIVOT, arXiv 2609.35303, uses
  heuristics). A base without a pivot, or with unknown values, is branched at its highest entropy.
- ``entropy``: the turn with the most uncertain reply, by the mean of minus the log-probabilities of its sampled tokens
  (ARPO, arXiv 2507.19849, branches where the entropy rises; here no further sampling is needed).

A base that failed, or is branched at its first turn, has no turns to share: its branches are whole episodes.

A shared turn is one turn. It is trained on once, in the base, with the mean of the sharing episodes' advantages and
returns (``ragen_agent.update.step_groups``); in the branches its tokens count as not sampled. Nothing is encoded
again: a branch replays the base's replies, which must give the base's ids.

**Cost.** A group has as many episodes as without branches, but shared turns are sampled only once. ``sampled_tokens``
in ``metrics.jsonl`` counts them, and ``stops.sampled_tokens`` ends runs at equal numbers. The engine reads a shared
prefix once, and so does the update, if its rows are in one minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ragen_agent.config import Training
from ragen_agent.tokens.rollout import Instance, Prefix
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import turn_spans

__all__ = ["branch_turn", "play_trees"]


def branch_turn(base: Trajectory, at: str) -> int:
    """The turn, from 0, that the branches of an episode begin with; ``at`` is ``Training.branch_at``."""
    if at == "pivot":
        pivots = [turn for turn, info in enumerate(base.turn_infos) if info.pivot]
        if pivots:
            return pivots[0]
    surprise = [-float(base.log_probs[first:end].mean(dtype="float64")) for first, end in turn_spans(base)]
    return max(range(len(surprise)), key=surprise.__getitem__)


def play_trees(
    play: Callable[[list[Instance], bool], list[Trajectory]], instances: Sequence[Instance], settings: Training
) -> list[Trajectory]:
    """The episodes of whole groups; in each tree the base comes first, then its branches.

    Args:
        play: plays some instances; the second argument is True for branches.
        instances: the episodes to play; a branch's noise seed sets its noise from the branch on.
        settings: the algorithm's settings.

    Returns:
        Trajectories in the order of the instances.

    Raises:
        ValueError: an environment that cannot be restored to a state; see ``TokenMDP.begin_branch``.
    """
    size = 1 + settings.branches
    bases = play(list(instances[::size]), False)
    branches = []
    for number, base in enumerate(bases):
        first = size * number
        turns = branch_turn(base, settings.branch_at) if base.failure is None else 0
        prefix = Prefix(base, turns, instances[first].noise_seed) if turns else None
        branches += [replace(instance, prefix=prefix) for instance in instances[first + 1 : first + size]]
    rest = iter(play(branches, True))
    return [bases[row // size] if row % size == 0 else next(rest) for row in range(len(instances))]
