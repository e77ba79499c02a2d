"""A bench agent without a model that makes mistakes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.envs.policies import plan_moves

__all__ = ["ImperfectAgent"]


class ImperfectAgent:
    """Writes replies such as a model writes: most moves are the oracle's, some are random, some replies are malformed.

    Args:
        name: of the agent.
        skill: chance that a move is the oracle's.
        care: chance that a reply is well-formed.
        seed: of its random moves.
    """

    def __init__(self, name: str, skill: float, care: float, seed: int = 0) -> None:
        self.name = name
        self.settings = {"skill": skill, "care": care, "seed": seed}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """One to three moves, with a thought."""
        env, settings = task.env, self.settings
        rng = np.random.default_rng([int(settings["seed"]), task.seed, len(messages)])
        number = min(int(rng.integers(1, 4)), env.max_actions_per_turn, env.actions_left)
        mistakes = [rng.random() > settings["skill"] for _ in range(number)]
        moves = [
            int(rng.integers(len(env.action_names))) if mistake else move
            for mistake, move in zip(mistakes, plan_moves(env, number), strict=False)
        ]
        names = [env.action_names[move] for move in moves]
        care = "I am sure of this." if not any(mistakes) else "I am not sure of all of it, so I will look again."
        thought = (
            f"{env.actions_left} actions are left. From where I stand I would go {', then '.join(names)}: that should "
            f"bring me closer to the goal. {care}"
        )
        answer = (
            f"<answer>{' || '.join(names)}</answer>" if rng.random() < settings["care"] else f"Let us try {names[0]}."
        )
        text = f"<think>{thought}</think>{answer}"
        read = sum(len(message["content"]) for message in messages)
        return Answer(text, prompt_tokens=read // 4, completion_tokens=len(text) // 4, finish_reason="stop")
