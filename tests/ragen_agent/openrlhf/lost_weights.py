"""The agent executor with an engine that loses the weights it is sent, as vLLM does without NCCL.

`LOST_WEIGHTS` says how: "stale" keeps those of the start, "garbage" loads whatever the memory holds.
"""

from __future__ import annotations

import os
from typing import Any

from ragen_agent.openrlhf.executor import AgentExecutor as Sound

__all__ = ["AgentExecutor"]


class AgentExecutor(Sound):
    async def execute(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        engine = kwargs["llm_engine"].llm
        if not hasattr(engine, "sound_rpc"):
            engine.sound_rpc, engine.collective_rpc = engine.collective_rpc, lossy(engine.collective_rpc)
        return await super().execute(*args, **kwargs)


def lossy(sound: Any) -> Any:
    async def collective_rpc(method: str, args: Any = (), **more: Any) -> Any:
        if method != "update_weight":
            return await sound(method, args=args, **more)
        if os.environ["LOST_WEIGHTS"] == "garbage":
            return await sound(load_garbage, args=args)
        return [None]

    return collective_rpc


def load_garbage(worker: Any, name: str, dtype: Any, shape: Any, empty_cache: bool) -> None:
    import torch

    weight = torch.full(shape, float("nan"), dtype=dtype)  # torch.empty need not be wrong, though it mostly is
    worker.model_runner.model.load_weights(weights=[(name, weight)])
