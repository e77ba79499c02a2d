"""The trainer's end of the rollouts: whole groups played on the vLLM engines, always with the current weights.

OpenRLHF's generator keeps surplus samples of an iteration and trains on them later, when they are off-policy. Here an
iteration plays exactly its rows of the prompt dataset.
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
    """One sample of a prompt.

    Attributes:
        row: the prompt.
        member: its number in the group.
        trajectory: the episode, which our code reads.
        experiences: the rows that OpenRLHF trains on, one for each part of ``trajectory.split_contexts()``.
    """

    row: PromptRow
    member: int
    trajectory: Trajectory
    experiences: tuple[Any, ...]


class EpisodeGenerator(SamplesGenerator):  # type: ignore[misc]
    """Plays rows of the prompt dataset on the vLLM engines."""

    def play(
        self, rows: Sequence[PromptRow], group_size: int, temperature: float, **generate: Any
    ) -> list[EpisodeSample]:
        """``group_size`` episodes of each row, in the order of ``rows``.

        Raises:
            ContractError: wrapped by Ray; see ``AgentExecutor.execute``.
        """
        settings = {**generate, "temperature": temperature, "n_samples_per_prompt": group_size}
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
        """Wakes engines that share their GPUs with the models, or sends them back to sleep."""
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, method)

    def _played(self, row: PromptRow, response: dict[str, Any], settings: dict[str, Any]) -> EpisodeSample:
        label = json.loads(response["label"])
        trajectory = Trajectory.from_dict(label["trajectory"])
        experiences = []
        for part in trajectory.split_contexts():
            experience = self._process_response_into_experience({**response, **tokens_of(part)}, **settings)
            experience.response_length = torch.tensor(
                [int(part.sampled.sum())]
            )  # without the tokens of the environment
            experiences.append(experience)
        return EpisodeSample(row, label["member"], trajectory, tuple(experiences))
