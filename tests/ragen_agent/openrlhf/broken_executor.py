"""The agent executor in a run that must stop in its second iteration: half of the environments raise."""

from __future__ import annotations

from typing import Any

import gymnasium

from ragen_agent.openrlhf.executor import AgentExecutor as Sound
from ragen_agent.openrlhf.prompt_dataset import PromptRow

__all__ = ["AgentExecutor"]


class AgentExecutor(Sound):
    def env(self, row: PromptRow) -> Any:
        return Torn(super().env(row)) if row.iteration == 1 else super().env(row)

    async def _process(self, row: PromptRow, chat: Any) -> Any:
        if row.iteration == 1:
            self.idle.clear()  # else the environments of the first iteration are used again
        return await super()._process(row, chat)


class Torn(gymnasium.Wrapper[str, str, str, str]):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if (options or {})["noise_seed"] % 2:
            raise RuntimeError("the lake thawed")
        return super().reset(seed=seed, options=options)
