"""Exact value of a policy on a level: success, return and moves, as intervals that hold the true numbers.

The states that the policy reaches are found turn by turn, each with its probability. In each a reply tree gives the
distribution over replies, and the values follow by backward induction:

    V(s) = sum over replies of p(reply | s) E[reward + V(s') | s, reply]

Replies that a tree leaves out count with the lowest value that is possible in their state for the lower end of the
interval, and with the highest for the upper end, so an interval holds the true value however much was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ragen_agent.exact.level import QUANTITIES, ExactLevel, State, Transition
from ragen_agent.exact.reply_tree import ReplyTexts, ReplyTree, Root, walk
from ragen_agent.exact.tree_reader import TreeReader

Values = NDArray[np.float64]
"""float64 (3, 2): the lower and the upper end for each of ``QUANTITIES``."""

_MOST_TREES = 512
"""States whose trees are walked together."""


@dataclass
class StateValue:
    """A state that the policy reaches.

    Attributes:
        state: the state.
        prompt: its token ids.
        weight: probability that an episode reaches it by replies that no tree leaves out.
        tree: the replies.
        bounds: bounds under any policy; see ``Values``.
        transitions: of each of ``tree.outcomes``, its results.
        after: of each of these, the next state, or None where the episode is over.
        outcome_values: float64 (outcomes, 3, 2), Q of each outcome.
        value: V.
    """

    state: State
    prompt: list[int]
    weight: float
    tree: ReplyTree
    bounds: Values
    transitions: list[list[Transition]]
    after: list[list[StateValue | None]] = field(default_factory=list)
    outcome_values: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3, 2)))
    value: Values = field(default_factory=lambda: np.zeros((3, 2)))


@dataclass
class LevelValue:
    """The value of a policy on one level.

    Attributes:
        level: the level.
        turns: by turn the states, most likely first; the first is the start.
        success_by_turn: float64 (turns, 2), interval of the chance of success within so many turns.
        malformed: expected malformed replies of an episode, an interval.
        replies: expected replies of an episode, an interval.
    """

    level: ExactLevel
    turns: list[list[StateValue]]
    success_by_turn: NDArray[np.float64]
    malformed: tuple[float, float]
    replies: tuple[float, float]

    @property
    def start(self) -> StateValue:
        """The first state, whose value is the level's."""
        return self.turns[0][0]

    @property
    def states(self) -> list[StateValue]:
        """All states, turn by turn."""
        return [each for turn in self.turns for each in turn]

    def of(self, quantity: str) -> tuple[float, float]:
        """Interval of one of ``QUANTITIES`` over the whole episode."""
        low, high = self.start.value[QUANTITIES.index(quantity)]
        return float(low), float(high)


def solve(
    reader: TreeReader,
    levels: Sequence[ExactLevel],
    *,
    mass: float = 1e-3,
    most_nodes: int = 2**18,
    texts: ReplyTexts | None = None,
) -> list[LevelValue]:
    """The value of the reader's model on levels of one environment.

    Args:
        reader: the model at its sampling temperature.
        levels: at least one; their states are read together, turn by turn.
        mass: probability of an episode's replies that may be left out, in (0, 1), and so the most width of the interval
            of success; rarely reached states get less care.
        most_nodes: tokens that are read in the trees of ``levels`` in one turn, at most; where that is not enough,
            intervals are wider.
        texts: reply texts of earlier calls with the same chat format, to decode none twice.
    """
    if not 0 < mass < 1:
        raise ValueError(f"mass is {mass}; it must be above 0 and below 1, such as 1e-3.")
    config = levels[0].env.config
    known_form = config.prompt == "default"
    texts = texts or ReplyTexts(levels[0].chat, think=config.think, known_form=known_form, budget=config.budget)
    turns: list[list[list[StateValue]]] = [[] for _ in levels]
    waiting: list[dict[State, float]] = [{level.start: 1.0} for level in levels]
    left = [mass] * len(levels)
    for turn in range(levels[0].env.max_turns):
        asked = [(number, state, weight) for number, found in enumerate(waiting) for state, weight in found.items()]
        if not asked:
            break
        shares = [_share(mass, left[n], levels[n].env.max_turns - turn, len(waiting[n]), w) for n, _, w in asked]
        reached = []
        for first in range(0, len(asked), _MOST_TREES):
            some = slice(first, first + _MOST_TREES)
            limit = max(1, most_nodes * len(asked[some]) // len(asked))
            found = [(levels[number], state, weight) for number, state, weight in asked[some]]
            reached += _read(reader, texts, found, shares[some], limit)
        waiting = [{} for _ in levels]
        for (number, _, _), each in zip(asked, reached, strict=True):
            turns[number].append([]) if len(turns[number]) == turn else None
            turns[number][turn].append(each)
            left[number] -= each.weight * each.tree.left_out
            for chance, results in zip(each.tree.chances.tolist(), each.transitions, strict=True):
                for result in results:
                    if result.after is not None:
                        weight = each.weight * chance * result.chance
                        waiting[number][result.after] = waiting[number].get(result.after, 0.0) + weight
    return [_valued(level, found) for level, found in zip(levels, turns, strict=True)]


def _share(mass: float, left: float, turns: int, states: int, weight: float) -> float:
    """Mass that the tree of a state may leave out; all states of a turn may lose the same part of an episode's."""
    return min(1.0, max(left, 1e-3 * mass) / (turns * states * max(weight, 1e-300)))


def _read(
    reader: TreeReader,
    texts: ReplyTexts,
    asked: Sequence[tuple[ExactLevel, State, float]],
    shares: Sequence[float],
    most_nodes: int,
) -> list[StateValue]:
    prompts = [level.prompt(state) for level, state, _ in asked]
    roots = [
        Root(prompt, level.room(prompt), level.most_actions(state), share, level.env.parse)
        for (level, state, _), prompt, share in zip(asked, prompts, shares, strict=True)
    ]
    found = []
    for (level, state, weight), prompt, tree in zip(
        asked, prompts, walk(reader, texts, roots, most_nodes=most_nodes), strict=True
    ):
        results = [level.transitions(state, outcome) for outcome in tree.outcomes]
        found.append(StateValue(state, prompt, weight, tree, level.bounds(state), results))
    return found


def _valued(level: ExactLevel, turns: list[list[StateValue]]) -> LevelValue:
    """Backward induction over the states of a level."""
    for states in turns:
        states.sort(key=lambda each: -each.weight)
    following: dict[State, StateValue] = {}
    for states in reversed(turns):
        for each in states:
            each.after = [
                [None if r.after is None else following[r.after] for r in results] for results in each.transitions
            ]
            each.outcome_values = np.zeros((len(each.transitions), len(QUANTITIES), 2))
            for value, results, after in zip(each.outcome_values, each.transitions, each.after, strict=True):
                for result, then in zip(results, after, strict=True):
                    here = np.array([result.success, result.reward, result.moves], np.float64)[:, None]
                    value += result.chance * (here + (0.0 if then is None else then.value))
            each.value = np.einsum("o,oqi->qi", each.tree.chances, each.outcome_values)
            each.value = each.value + each.tree.left_out * each.bounds
        following = {each.state: each for each in states}
    won, lost, by_turn = 0.0, 0.0, []
    malformed = replies = unread = 0.0
    for turn, states in enumerate(turns):
        for each in states:
            chances = each.tree.chances.tolist()
            won += each.weight * sum(
                chance * result.chance * result.success
                for chance, results in zip(chances, each.transitions, strict=True)
                for result in results
            )
            lost += each.weight * each.tree.left_out
            malformed += each.weight * each.tree.malformed
            replies += each.weight
            unread += each.weight * each.tree.left_out * (level.env.max_turns - turn)
        by_turn.append((won, min(1.0, won + lost)))
    by_turn += [by_turn[-1]] * (level.env.max_turns - len(by_turn))
    return LevelValue(level, turns, np.array(by_turn), (malformed, malformed + unread), (replies, replies + unread))
