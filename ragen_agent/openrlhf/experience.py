"""Advantages of the rows that are trained on, by the functions of `ragen_agent.algo` that the local trainer calls.

OpenRLHF's own estimators run through the tokens of the environment as if the policy had chosen them and know one reward
for an episode. Here turns keep their own rewards, and tokens that were not sampled are passed over.

OpenRLHF's tensors of actions are one shorter than a row: column t is about token t + 1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from math import isfinite
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from ragen_agent.algo import advantages as on_tokens
from ragen_agent.algo import credit, masks
from ragen_agent.openrlhf.generation import Played
from ragen_agent.openrlhf.settings import Workers

__all__ = ["StarPOExperience", "WeightsLostError", "agreement", "padded", "prepared"]


class WeightsLostError(RuntimeError):
    """vLLM does not sample from the weights that are trained."""


def prepared(played: Played, advantage: float) -> Any:
    """The row that is trained on, with what its advantages need: OpenRLHF carries ragged data in `labels` alone."""
    trajectory, experience = played.trajectory, copy(played.experience)
    note = {
        "advantage": advantage,
        "turn_ends": [end - 1 for end in trajectory.turn_ends],
        "turn_rewards": list(trajectory.turn_rewards),
    }
    experience.labels = [json.dumps(note)]
    return experience


def padded(rows: Sequence[Any], multiple: int) -> list[Any]:
    """The rows, filled up to a multiple of the minibatch with copies that have no sampled token, hence no loss.

    OpenRLHF steps when so many rows were seen, counted on from one iteration to the next, so a number of rows that is
    no multiple would leave gradients behind for weights that have moved on.
    """
    filled = list(rows)
    while len(filled) % multiple:
        blank = copy(rows[0])
        blank.action_mask = torch.zeros_like(blank.action_mask)
        blank.labels = [json.dumps({"advantage": 0.0, "turn_ends": [], "turn_rewards": []})]
        blank.info = dict(blank.info)
        filled.append(blank)
    return filled


def agreement(experiences: Sequence[Any]) -> tuple[float, float]:
    """How far vLLM's log-probs of the sampled tokens are from the trainer's, before any step is taken.

    Returns:
        `vllm_kl`, the mean of their difference (the k1 estimate of KL(vLLM || trainer)), and the mean of its absolute
        value, in nats a token.
    """
    parts = [(e.rollout_log_probs.float() - e.action_log_probs.float())[e.action_mask.bool()] for e in experiences]
    difference = torch.cat(parts)
    return float(difference.mean()), float(difference.abs().mean())


class StarPOExperience(RemoteExperienceMaker):  # type: ignore[misc]
    """Scores rows with the models, then gives every sampled token its advantage."""

    run: Workers
    vllm_kl = vllm_gap = 0.0

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """As OpenRLHF; then checks that the weights of the last synchronisation arrived.

        Raises:
            WeightsLostError: the log-probs of vLLM and of the trainer differ by more than `max_vllm_kl`, or are not
                finite.
        """
        experiences: list[Any] = super().make_experience(samples_list)
        self.vllm_kl, self.vllm_gap = agreement(experiences)
        most = self.run.settings.max_vllm_kl
        if not (isfinite(self.vllm_kl) and abs(self.vllm_kl) <= most):
            raise WeightsLostError(
                f"vllm_kl is {self.vllm_kl:.4g} nats a token, more than openrlhf.max_vllm_kl={most:g} from 0: "
                "vLLM does not sample from the weights that are trained. Most often those of the last synchronisation "
                "did not arrive: without NCCL vLLM drops them silently (on a CPU set openrlhf.accelerator=cpu). Else "
                "the two compute the model differently: compare their versions, dtypes and --ds.attn_implementation."
            )
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Fills in `advantages` and `returns`, both (rows, T - 1), by the run's estimator."""
        for experience in experiences:
            notes = [json.loads(label) for label in experience.labels]
            sampled = experience.action_mask.bool()
            cost = self.kl_ctl.value * torch.where(sampled, experience.kl.float(), 0.0)
            if self.run.config.training.critic:
                estimated = self._with_critic(experience, notes, sampled, cost)
            else:
                flat = torch.tensor([note["advantage"] for note in notes])
                advantages = on_tokens.broadcast_to_tokens(flat, sampled) - cost
                estimated = advantages, advantages.clone()
            experience.advantages, experience.returns = estimated
            experience.info["return"] = torch.tensor([float(sum(note["turn_rewards"])) for note in notes])
            experience.kl = None
            experience.labels = [""] * len(notes)  # read; the models' processes need not have it
        if self.run.config.training.critic:
            _whiten(experiences)
        return experiences

    def _with_critic(
        self, experience: Any, notes: list[dict[str, Any]], sampled: Tensor, cost: Tensor
    ) -> tuple[Tensor, Tensor]:
        training = self.run.config.training
        values = torch.where(sampled, experience.values.float(), 0.0)
        ends = [note["turn_ends"] for note in notes]
        rewards = masks.rewards_at(ends, [note["turn_rewards"] for note in notes], values) - cost
        gamma, between, lam = training.gamma, training.gamma_turn, training.gae_lambda
        if training.credit == "turn":
            return credit.turn_wise_gae(rewards, values, sampled, ends, between, lam)
        if training.credit == "bi_level":
            return credit.bi_level_gae(rewards, values, sampled, ends, between, gamma, lam)
        return credit.gae(rewards, values, sampled, gamma, lam)


def _whiten(experiences: list[Any]) -> None:
    """One mean and one deviation over the sampled tokens of all rows, however they are cut into batches."""
    chosen = [e.action_mask.bool() for e in experiences]
    flat = torch.cat([e.advantages[mask] for e, mask in zip(experiences, chosen, strict=True)])
    white = on_tokens.whiten(flat, torch.ones_like(flat, dtype=torch.bool))
    for experience, mask, part in zip(experiences, chosen, white.split([int(m.sum()) for m in chosen]), strict=True):
        experience.advantages = torch.zeros_like(experience.advantages).masked_scatter(mask, part)
