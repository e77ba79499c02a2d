"""Episodes played on the vLLM engines: whole groups, side by side, of the weights as they are now.

OpenRLHF's generator keeps what an iteration did not need and serves it later, from weights that have moved on. Here an
iteration plays its rows of the seed list and nothing waits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from ragen_agent.openrlhf.episode import tokens_of
from ragen_agent.openrlhf.prompt_dataset import PromptRow
from ragen_agent.token_mdp import Trajectory

__all__ = ["EpisodeGenerator", "EpisodeSample"]


@dataclass(frozen=True)
class EpisodeSample:
    """One episode: what our code reads, and the rows that OpenRLHF trains on; `member` counts within its group.

    There is a row for each part of `trajectory.as_read()`.
    """

    row: PromptRow
    member: int
    trajectory: Trajectory
    experiences: tuple[Any, ...]


class EpisodeGenerator(SamplesGenerator):  # type: ignore[misc]
    """Plays rows of the seed list on the vLLM engines."""

    def play(self, rows: Sequence[PromptRow], members: int, temperature: float, **generate: Any) -> list[EpisodeSample]:
        """`members` episodes of each row, side by side in the order of `rows`.

        Raises:
            ContractError: wrapped by Ray; see `AgentExecutor.execute`.
        """
        settings = {**generate, "temperature": temperature, "n_samples_per_prompt": members}
        names = [f"{row.game}, level seed {row.seed}" for row in rows]
        self._engines("wake_up")
        refs = self._dispatch_prompts_to_vllm(names, [row.label for row in rows], **settings)
        answers = ray.get(refs)
        self._engines("sleep")
        return [
            self._played(row, response, settings)
            for row, responses in zip(rows, answers, strict=True)
            for response in responses
        ]

    def _engines(self, method: str) -> None:
        """Engines that share their GPUs with the models sleep while those work; here they wake and go back to sleep."""
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, method)

    def _played(self, row: PromptRow, response: dict[str, Any], settings: dict[str, Any]) -> EpisodeSample:
        told = json.loads(response["label"])
        trajectory = Trajectory.from_dict(told["trajectory"])
        experiences = []
        for part in trajectory.as_read():
            experience = self._process_response_into_experience({**response, **tokens_of(part)}, **settings)
            experience.response_length = torch.tensor([int(part.sampled.sum())])  # not what the environment said
            experiences.append(experience)
        return EpisodeSample(row, told["member"], trajectory, tuple(experiences))
