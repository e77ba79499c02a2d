"""Groups that are trees: some episodes of a group begin, token by token, as another one did (``training.groups_by``).

Of the episodes of a group one in ``1 + training.branches`` is a *base*, played from the start. The others branch off a
base: they hold its first turns, with the very ids that were sampled there, and go on from the state that these led to,
with replies and transition noise of their own. Where a base is branched is ``training.branch_at``:

- ``pivot``: the turn with which the level was lost, the first one with which the highest probability of success in the
  moves that are left drops, or after which it is 0 (``ragen_gym.games.values.pivot``: exact, where PIVOT, arXiv
  2609.35303, asks heuristics). A base that gave nothing away has none, nor has one whose values are unknown; it is
  branched where its entropy is highest.
- ``entropy``: the turn whose reply was the most uncertain, by the mean of minus the log-probabilities of its sampled
  tokens (ARPO, arXiv 2507.19849, branches where the entropy rises; here nothing is sampled to find out).

A base that is branched at its first turn, or that failed, has no turns to share: its branches are whole episodes.

A turn that several episodes hold is one turn. It is trained on once, in the base, with the mean of their advantages and
returns (``ragen_agent.update.step_groups``); in the branches its tokens count as not sampled. Nothing is encoded
again: a branch plays the base's replies once more, and the ids that this gives must be those of the base.

**Cost.** A group has as many episodes as one without branches, of which fewer tokens were sampled: those of the shared
turns once. ``sampled_tokens`` in ``metrics.jsonl`` counts them, ``stops.sampled_tokens`` ends runs at equal numbers.
The engine reads a prefix that several rows share once, and so does the update, where they are in one minibatch.
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
    """The episodes of whole groups: of each tree the base first, its branches after it.

    Args:
        play: the episodes of some instances; the second argument says whether they are branches.
        instances: what to play; the noise seed of a branch is that of its noise from the branch on.
        settings: the algorithm's.

    Returns:
        Trajectories in the order of the instances.

    Raises:
        ValueError: an environment that cannot go back to a state; see ``TokenMDP.begin_branch``.
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
