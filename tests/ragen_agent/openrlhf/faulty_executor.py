"""The agent executor with two groups of episodes that break: one environment raises, another hangs."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from ragen_agent.openrlhf.executor import AgentExecutor as Sound
from ragen_agent.openrlhf.prompt_dataset import PromptRow

__all__ = ["AgentExecutor"]

RAISES, HANGS = (2, 1), (4, 0)  # (iteration, prompt)


class AgentExecutor(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[int, str] = {}

    async def execute(self, prompt: str, label: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        row = PromptRow.from_label(label)
        for where, how in ((RAISES, "raises"), (HANGS, "hangs")):
            if (row.iteration, row.prompt) == where:
                self.broken[row.seed] = how
        return await super().execute(prompt, label, *args, **kwargs)

    def env(self, row: PromptRow) -> Any:
        return Faulty(super().env(row), self.broken)


class Faulty(gymnasium.Wrapper[str, str, str, str]):
    def __init__(self, env: Any, broken: dict[int, str]) -> None:
        super().__init__(env)
        self.broken, self.how = broken, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.how = self.broken.get(seed or 0, "")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        if self.how == "raises":
            raise RuntimeError("the lake thawed")
        if self.how == "hangs":
            time.sleep(60)
        return super().step(action)
