"""The games as an environment of Atropos (0.4): ``serve``, ``process`` and ``evaluate`` of its command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from atroposlib.envs.base import BaseEnv, BaseEnvConfig, ScoredDataGroup
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from pydantic import Field

from ragen_gym.integrations.rollout import METRICS, Rollout, noise_seed_of

_EMPTY = ("advantages", "ref_logprobs", "overrides", "images")


class GameEnvConfig(BaseEnvConfig):  # type: ignore[misc, unused-ignore]
    """A game, its options and those of a turn; ``max_token_length`` bounds an episode.

    Levels are counted from ``first_seed``, so that several processes play other levels only if each has another one.
    """

    game: str = "FrozenLake"
    options: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it
    first_seed: int = 0
    max_reply_tokens: int = Field(512, ge=1)
    eval_levels: int = Field(256, ge=1)


class GameEnv(BaseEnv):  # type: ignore[misc, unused-ignore]
    """An item is a level; the episodes of its group differ in the transition noise. The score is the return."""

    name = "ragen_gym"
    env_config_cls = GameEnvConfig

    @classmethod
    def config_init(cls) -> tuple[GameEnvConfig, list[APIServerConfig]]:
        """One server of Atropos' vLLM API, which gives the ids and log-probs that training needs."""
        server = APIServerConfig(model_name="Qwen/Qwen3-0.6B", base_url="http://localhost:9001/v1", server_type="vllm")
        return cls.env_config_cls(tokenizer_name="Qwen/Qwen3-0.6B"), [server]

    async def setup(self) -> None:  # noqa: D102
        self._seeds, self._episodes = count(self.config.first_seed), count()
        self._played: list[dict[str, float]] = []
        self._evaluated: dict[str, float] = {}

    async def get_next_item(self) -> dict[str, int]:  # noqa: D102
        return {"seed": next(self._seeds)}

    async def collect_trajectories(self, item: dict[str, int]) -> tuple[ScoredDataGroup, list[Any]]:
        """Play the group; the ids are those sampled, and an episode whose prompts do not extend has several rows."""
        played = await asyncio.gather(*(self._trained(item["seed"]) for _ in range(self.config.group_size)))
        self._played += [rollout.metrics() | {"return": rollout.total} for rollout, _ in played]
        rows = [(rollout, node) for rollout, nodes in played for node in nodes]
        group: dict[str, Any] = {key: [] for key in _EMPTY} | {"group_overrides": {}}
        group |= {"tokens": [node.tokens for _, node in rows], "masks": [node.masked_tokens for _, node in rows]}
        group |= {"scores": [rollout.total for rollout, _ in rows], "messages": [each.messages for each, _ in rows]}
        return ScoredDataGroup(**group, inference_logprobs=[node.logprobs for _, node in rows]), []

    async def _trained(self, seed: int) -> tuple[Rollout, list[Any]]:
        noise_seed = noise_seed_of(f"{self.config.first_seed} {next(self._episodes)}")
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            rollout = await self._play("train", seed, noise_seed, managed.chat_completion, managed.get_state)
            return rollout, list(managed.get_state()["nodes"])

    async def _play(
        self,
        split: str,
        seed: int,
        noise_seed: int,
        complete: Callable[..., Any],
        state: Callable[[], Any] | None = None,
    ) -> Rollout:
        rollout = Rollout(self.config.game, split=split, **self.config.options)
        rollout.begin(seed, noise_seed)
        most, limit = self.config.max_reply_tokens, self.config.max_token_length
        while not rollout.over and not (state and sum(len(node.tokens) for node in state()["nodes"]) >= limit):
            answer = await complete(messages=rollout.messages, n=1, max_tokens=most)
            rollout.reply_message(answer.choices[0].message)
        return rollout

    async def evaluate(self, *_: Any, **__: Any) -> None:
        """The metrics on levels of the test split."""
        start, complete = time.time(), lambda **call: self.server.chat_completion(**call, split="eval")
        played = await asyncio.gather(*(self._play("test", n, n, complete) for n in range(self.config.eval_levels)))
        found = [rollout.metrics() | {"return": rollout.total} for rollout in played]
        self._evaluated = {f"eval/{name}": sum(each[name] for each in found) / len(found) for name in found[0]}
        await self.evaluate_log(self._evaluated, task_name=self.config.game, start_time=start, end_time=time.time())

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:  # noqa: D102
        logged, played = {**(wandb_metrics or {}), **self._evaluated}, self._played
        if played:
            logged |= {f"train/{name}": sum(e[name] for e in played) / len(played) for name in (*METRICS, "return")}
        self._played, self._evaluated = [], {}
        await super().wandb_log(logged)
