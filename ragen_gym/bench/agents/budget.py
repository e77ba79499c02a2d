"""``budget:POLICY``: random, blind or optimal moves, each reply with a stated budget.

They are the scale on which stated budgets are read. ``own`` is honest: the exact quantiles of the agent's own play. The
other statements ignore the board.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragen_gym.bench.agent import Message, Task
from ragen_gym.core.seeding import mix
from ragen_gym.core.validation import check_number, shown
from ragen_gym.envs.budget import IMPOSSIBLE, Budget, honest_budget
from ragen_gym.envs.policies import POLICIES, hashed_draw, moves_to_go, reply_for
from ragen_gym.envs.turn import TurnEnv

__all__ = ["STATEMENTS", "BudgetAgent"]

_WORD = 0xFFFFFFFFFFFFFFFF

#: Budgets that are stated, by name: a function of the environment and of the policy's name.
STATEMENTS: dict[str, Callable[[TurnEnv, str], Budget]] = {
    "own": lambda env, policy: honest_budget(moves_to_go(env.env, env.actions_left, policy)),
    "wide": lambda env, policy: (1, 20),
    "possible": lambda env, policy: (1, env.actions_left),
    "impossible": lambda env, policy: IMPOSSIBLE,
}


class BudgetAgent:
    """One move a reply, and a budget if the split asks for one. It looks into the environment.

    Args:
        policy: ``"random"``, ``"blind"`` or ``"oracle"``.
        states: its budgets: ``"own"``; or whatever the board, ``"wide"`` [1, 20], ``"possible"`` [1, actions left],
            ``"impossible"``.
        seed: another one gives other random moves.

    Raises:
        ValueError: an unknown policy or statement.
    """

    def __init__(self, policy: str, *, states: str = "own", seed: int = 0) -> None:
        known = ("random", "blind", "oracle")
        if policy not in known:
            raise ValueError(f"budget:{policy} has no such policy: choose one of {', '.join(known)}.")
        if states not in STATEMENTS:
            raise ValueError(f"budget:{policy}: states={shown(states)} must be one of {', '.join(STATEMENTS)}.")
        self.name = f"budget:{policy}"
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"states": states, "seed": seed}
        self._policy, self._states, self._seed = policy, STATEMENTS[states], mix(seed & _WORD)

    async def reply(self, messages: Sequence[Message], task: Task) -> str:
        """The next move and the budget.

        Raises:
            ValueError: a text task, or a split whose replies may hold several moves, of which this would waste some.
        """
        env = task.env
        if not isinstance(env, TurnEnv) or env.max_actions_per_turn != 1:
            raise ValueError(
                f"{self.name} plays games of one action a turn: use --suite budget-v1, or a split like it."
            )
        choose = POLICIES[self._policy](hashed_draw(mix((self._seed + task.seed) & _WORD)))
        stated = self._states(env, self._policy) if env.config.budget else None
        return reply_for(env, [choose(env.env, env.actions_left)], budget=stated)
