"""Search for a solution of each level."""

from __future__ import annotations

import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from .context import Context, passed
from .protocol import AuditedEnv, NotApplicable, Outcome, check, key

__all__ = ["levels_solvable"]

_SEARCHED, _STATES = 8, 4000  # levels that are searched, and states of each
_WALKS, _WALK = 32, 50  # random walks that check a search which found nothing, and actions of each
_TURN = r"(?i)\b(turn|step|move)s?:? \d+"  # what a text says of how long an episode has gone on


@check(
    "error",
    "No agent can reach the best score; the distance to it says nothing.",
    "Solve each level when it is generated, and draw again those that have no solution.",
)
def levels_solvable(context: Context) -> Outcome:
    """Levels can be solved, and the environment's own answers are right.

    Where it has no answers, breadth-first search over copies looks for a solution.
    """
    env = context.make()
    env.reset(context.some_seeds(2)[1])
    if env.oracle() is not None:
        return _own_answers(context, env)
    context.need_success()
    context.need_repeats()
    if not context.shared.actions():
        raise NotApplicable("the actions are not a short list, so that they cannot be searched")
    context.need_clones()
    if context.stochastic:
        raise NotApplicable("the dynamics are stochastic; the search needs each action to have one outcome")
    solved = context.solutions
    unsolvable: list[tuple[int, int]] = []
    undecided = 0
    for seed in context.some_seeds(_SEARCHED):
        path, states = (None, 0) if context.late else search(context, context.make(), seed)
        if path is not None:
            solved[seed] = path
        elif states:
            unsolvable.append((seed, states))
        else:
            undecided += 1
    if not solved and not context.wins:
        raise NotApplicable("no episode was seen to end in success, so that the search has no goal")
    if unsolvable:
        seed, states = unsolvable[0]
        raise context.fault(
            f"{len(unsolvable)} of {sum((len(solved), len(unsolvable), undecided))} levels cannot be solved: all {states} "
            f"reachable states of seed {seed} were searched",
            _SEARCH.format(seed=seed, actions=context.shared.actions(), turn=_TURN),
        )
    if not solved:
        raise NotApplicable(
            f"the search found neither a solution nor all states, or observations hide them ({undecided} levels)"
        )
    return passed(f"{len(solved)} of {len(solved) + undecided} levels were solved by search")


def _own_answers(context: Context, env: AuditedEnv) -> Outcome:
    worst: tuple[float, Any, Any] = (float("inf"), None, None)
    for seed in context.within_time(context.some_seeds()):
        env.reset(seed)
        answer = env.oracle() or []
        total = float(sum(float(env.step(action).reward) for action in answer))
        worst = min(worst, (total, seed, answer), key=lambda each: each[0])
    if worst[0] < 1:
        raise context.fault(
            f"the environment's own answer earns {worst[0]:g} on seed {worst[1]}",
            f"e = new(); start(e, {worst[1]}); a = [act(e, x) for x in {worst[2]!r}]",
            "assert sum(x[1] for x in a) >= 1",
        )
    return passed(f"the environment's own answer earns {worst[0]:g} or more on {context.tried} seeds")


def search(context: Context, env: AuditedEnv, seed: int) -> tuple[list[Any] | None, int]:
    """Breadth-first: (a solution, 0), or (None, the number of states) where there is none, or (None, 0) if undecided.

    The solution is a shortest one unless observations hide the state.
    """
    observation, _ = env.reset(seed)
    start = _place(observation, env.state())
    leads: dict[tuple[str, str], str] = {}
    seen, queue = {start}, deque([(env, start, list[Any]())])
    cut = False
    while queue:
        at, place, path = queue.popleft()
        for action in at.actions():
            if len(seen) > _STATES or context.late:
                return None, 0
            following = at.clone()
            step = following.step(action)
            outcome = env.won(step)
            if outcome:
                return [*path, action], 0
            new = leads[place, key(action)] = _place(step.observation, following.state())
            if outcome is not None:
                cut = cut or step.truncated
            elif new not in seen:
                seen.add(new)
                queue.append((following, new, [*path, action]))
    return None, 0 if cut or not _are_states(context, seed, leads) else len(seen)


def _are_states(context: Context, seed: int, leads: Mapping[tuple[str, str], str]) -> bool:
    """True if random walks find that an action leads from a place to the one that the search found, and to no other.

    An observation of a part of the board is the same in many states, and the search goes on from the first alone.
    """
    chosen, env = random.Random(seed), context.make()
    for _ in range(_WALKS):
        if context.late:
            return False
        observation, _ = env.reset(seed)
        place = _place(observation, env.state())
        for _ in range(_WALK):
            action = chosen.choice(env.actions())
            step = env.step(action)
            if env.won(step) is not None:  # at a limit of turns, maybe
                break
            new = _place(step.observation, env.state())
            if leads.get((place, key(action))) != new:
                return False
            place = new
    return True


def _place(observation: Any, state: Any) -> str:
    """Where an episode is, whatever the number of the turn."""
    shown = re.sub(_TURN, "", observation) if isinstance(observation, str) else observation
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if not re.search("turn|step", str(name))}
    return key((shown, state))


_SEARCH = """\
import copy, re; e = new(); place = lambda o: re.sub({turn!r}, '', repr(o)); seen = {{place(start(e, {seed}))}}; queue = [e]; solved = False
for f, x in ((copy.deepcopy(at), x) for at in queue for x in {actions}):
    a = act(f, x); solved |= bool(a[2] and a[1] > 0); new_place = not a[2] and place(a[0]) not in seen; seen.add(place(a[0])); new_place and queue.append(f)
assert solved"""
