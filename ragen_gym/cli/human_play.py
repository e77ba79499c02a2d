"""A person's run through level after level of one environment, whatever shows it."""

from __future__ import annotations

from typing import Any

from ragen_gym.cli.baselines import budget
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.recorder import key_names, what_happened

__all__ = ["Session"]


class Session:
    """The environment, the budget of the level in play, and how the levels so far ended.

    Args:
        spec: the environment.
        chosen: arguments of `StepEnv`.
        seed: seed of the levels and their noise.
    """

    def __init__(self, spec: GameSpec, chosen: dict[str, Any], seed: int) -> None:
        self.env = StepEnv(spec.name, **chosen)
        self.budget = budget(self.env)
        self.keys = key_names(self.env.game)
        self.ended: list[bool] = []
        self.next_level(seed)

    def next_level(self, seed: int | None = None) -> None:
        """Start the next level, or the first one of a seed."""
        self.env.reset(seed=seed)
        self.played, self.total, self.over = 0, 0.0, False

    def play(self, action: int) -> str:
        """Play one action; a line on what it did, and how the level ended if it did."""
        before = self.env.state[0]
        _, reward, terminated, _, info = self.env.step(action)
        self.played, self.total = self.played + 1, self.total + reward
        self.over = terminated or self.played == self.budget
        said = what_happened(self.env.game, before, action, self.env.state[0], reward)
        said += f"  (action {self.played} of {self.budget}, reward {reward:g}, sum {self.total:g})"
        if self.over:
            self.ended.append(bool(info["success"]))
            ending = "The level is over." if terminated else "No actions are left."
            said += "\n" + ("Success!" if info["success"] else ending)
        return said

    def advice(self) -> str:
        """What the oracle would play."""
        action = self.env.oracle_action(self.budget - self.played)
        chance = self.env.solution().success(*self.env.state, self.budget - self.played)
        return f"The oracle plays {self.env.action_names[action]}: success {100 * chance:.0f} % from here."

    def action_of(self, word: str) -> int | None:
        """The action that a name or key, in small letters, stands for."""
        for table in (self.env.action_names, self.keys, [action.name for action in self.env.game.Action]):
            words = [entry.lower() for entry in table]
            if word in words:
                return words.index(word)
        return None

    @property
    def menu(self) -> str:
        """The actions and their keys."""
        actions = ", ".join(f"{key} {name}" for key, name in zip(self.keys, self.env.action_names, strict=True))
        return f"Play: {actions}. Also: ? hint, n next level, q quit."

    @property
    def summary(self) -> str:
        """How the levels ended."""
        return f"{sum(self.ended)} of {len(self.ended)} levels solved."
