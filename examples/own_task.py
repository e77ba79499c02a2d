# Shows:    a text task of your own, without a board: class, check, one episode, and the rate of chance.
# Install:  pip install ragen-gym hypothesis
# Run:      python examples/own_task.py    checks the task and prints an episode and two rates.
from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym import TaskEnv
from ragen_gym.envs.policies import play_turns
from ragen_gym.testing import check_task

WORDS = ("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jungle")


class Spelling(gymnasium.Env[str, str]):
    """Spell two joined words backwards, in at most ``attempts`` replies."""

    instructions = "Spell the word backwards. Reply with <answer>word</answer>."
    observation_space = action_space = spaces.Text(100, min_length=0, charset=string.printable)

    def __init__(self, attempts: int = 2) -> None:
        self.attempts = attempts

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a word; equal seeds give equal words."""
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(WORDS, size=2))
        self.left = self.attempts
        return f"Word: {self.word}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Read a reply: reward 1 for the right one."""
        self.left -= 1
        right = action.strip() == self.optimal_reply()
        return "Right." if right else "Wrong.", float(right), right or not self.left, False, {"success": right}

    def optimal_reply(self) -> str:
        """The best reply: optional; it gives an optimal rate and demonstrations."""
        return f"<answer>{self.word[::-1]}</answer>"

    def random_reply(self, rng: np.random.Generator) -> str:
        """A random reply: optional; it gives the rate of chance."""
        return f"<answer>{''.join(rng.permutation(list(self.word)))}</answer>"


def rates(name: str, episodes: int = 100) -> tuple[float, float]:
    """The shares of problems of the test split that random and optimal replies solve."""
    env, rng = TaskEnv(name, split="test"), np.random.default_rng(0)
    solved = {"random": 0, "optimal": 0}
    for seed in range(episodes):
        env.reset(seed=seed)
        solved["random"] += play_turns(env, lambda task: task.random_reply(rng))["success"]
        env.reset(seed=seed)
        solved["optimal"] += play_turns(env, lambda task: task.optimal_reply())["success"]
    return solved["random"] / episodes, solved["optimal"] / episodes


if __name__ == "__main__":
    # The name is module:Class, so the same words work on every command line: ragen-gym check own_task:Spelling
    check_task("own_task:Spelling")
    env = TaskEnv("own_task:Spelling", split="test")
    message, info = env.reset(seed=0)
    message, reward, terminated, truncated, info = env.step("<answer>?</answer>")
    for said in info["messages"]:
        print(f"[{said['role']}]\n{said['content']}\n")
    chance, best = rates("own_task:Spelling")
    print(f"random replies solve {chance:.0%}, optimal replies {best:.0%} of 100 test problems")
