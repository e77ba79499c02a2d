"""The update of StarPO: steps of the policy, and of PPO's critic, on kept episodes."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import POLICY_LOSSES
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.advantages import critic_estimates, token_advantages, turn_advantages
from ragen_agent.update.batches import Batch
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.loss import Divisors, Targets, loss_terms
from ragen_agent.update.metrics import reply_parts
from ragen_agent.update.prefix_tree import PrefixTree, shares_prefixes
from ragen_agent.update.scoring import passes, sampled_scores

if TYPE_CHECKING:
    from peft import PeftModel


class Critic(nn.Module):
    """Estimates the return still to come before each token is sampled. It starts at 0 everywhere."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        # Frozen weights are the same for both: with an adapter the critic has only an adapter of its own.
        frozen = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        self.backbone = copy.deepcopy(model.base_model, frozen)
        embeddings = model.get_input_embeddings().weight
        assert isinstance(embeddings, Tensor)
        self.head = nn.Linear(embeddings.shape[1], 1, device=model.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """float32 (rows, width): the value before each token, read where the token before it stands; 0 at the first.

        In rows that were read in several contexts, only the sampled tokens have a value.
        """
        read = batch.split_contexts()
        if shares_prefixes(self.backbone):
            tree = PrefixTree.of(read.ids, read.attention, read.images)
            with tree.attention(self.backbone) as inputs:
                hidden = self.backbone(**inputs, use_cache=False).last_hidden_state[0]
            values = self.head(hidden.float()).squeeze(-1)[tree.node]
        else:
            hidden = self.backbone(**read.inputs(self.backbone), use_cache=False).last_hidden_state
            values = self.head(hidden.float()).squeeze(-1)
        before: Tensor = torch.nn.functional.pad(values[:, :-1], (1, 0))
        if not batch.contexts:
            return before
        return torch.zeros(batch.ids.shape, device=before.device).masked_scatter(batch.sampled, before[read.sampled])


@dataclass
class Learner:
    """State that an update changes, with its inputs."""

    model: PreTrainedModel  # the policy's
    optimiser: torch.optim.Optimizer  # of the policy's weights, or of its adapter
    bias: Tensor  # float (vocabulary,), see ``sampled_scores``
    critic: Critic | None = None  # of PPO
    critic_optimiser: torch.optim.Optimizer | None = None
    reference_model: PreTrainedModel | None = None  # frozen, of a KL term; with LoRA ``model``, whose adapter is off
    piece: Callable[[int], str] | None = None  # the text of a token id, which only selective masks need
    longest: int = 1024  # the most tokens that an episode may have, for the aggregation ``constant``
    adapter: PeftModel | None = None  # with LoRA, peft's handle of the adapter in ``model``
    average_entropy: float = 0.0  # of the rollouts so far, in nats a token, for ``Training.entropy_smoothing``
    task_scale: float = 1.0  # factor of a critic's advantages, see ``ragen_agent.update.advantages``

    def observe(self, iteration: Iteration) -> None:
        """Takes over what the loss of an iteration needs beside its episodes."""
        self.average_entropy, self.task_scale = iteration.average_entropy, iteration.task_scale


def update(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    advantages: Tensor,
    settings: Training,
    seed: int,
    seen: Callable[[Targets], None] | None = None,
) -> dict[str, float]:
    """Gradient steps on trajectories, none of which failed.

    Args:
        learner: changed in place.
        trajectories: the rows.
        advantages: float (rows,), of whole trajectories, for those whose turns have none of their own; PPO estimates
            its own and does not read them.
        settings: the algorithm's.
        seed: of the minibatches.
        seen: called with the targets before the first step.

    Returns:
        Means over the steps of the figures of ``loss_terms``, grad_norm (before clipping) and, with a critic,
        value_loss; train_tokens, which went forward and backward (``Batch.tokens`` of each minibatch); updates, the
        steps taken; and, if there were any, skipped_steps, whose gradient was not finite or whose masks left no token.
        Where only one of policy and critic can take its step, its figures alone count.
    """
    batch = Batch.of(trajectories, learner.bias.device)
    targets = targets_of(learner, batch, trajectories, advantages, settings)
    if seen is not None:
        seen(targets)
    generator = torch.Generator().manual_seed(seed)
    sums: dict[str, float] = {}
    numbers: Counter[str] = Counter()
    steps = tokens = skipped = 0
    for _ in range(settings.updates):
        for chosen in torch.randperm(len(trajectories), generator=generator).split(settings.minibatch):
            part = batch.rows(chosen)
            measured = _step(learner, part, cut(targets, chosen, part), settings, generator)
            tokens += part.tokens * (1 if learner.critic is None else 2)
            if not measured:
                skipped += 1
                continue
            sums |= {name: sums.get(name, 0.0) + value for name, value in measured.items()}
            numbers.update(measured.keys())
            steps += 1
    counts = {"train_tokens": tokens, "updates": steps} | ({"skipped_steps": skipped} if skipped else {})
    return {name: value / numbers[name] for name, value in sums.items()} | counts


def targets_of(
    learner: Learner,
    batch: Batch,
    trajectories: Sequence[Trajectory],
    advantages: Tensor,
    settings: Training,
) -> Targets:
    """See ``Targets``; a KL penalty in the reward is a cost of each token's reward or, without a critic, advantage."""
    targets = {"mask": _mask(learner, batch, trajectories, settings.loss_tokens), "old": batch.log_probs}
    cost = torch.zeros_like(batch.log_probs)
    with torch.no_grad():
        if settings.correction not in ("", "none"):
            targets["old"] = _scored(learner, learner.model, batch, settings)
            targets["weights"], targets["corrected"] = algo.mismatch_weights(
                targets["old"], batch.log_probs, targets["mask"], **settings.correction_options
            )
        if learner.reference_model is not None:
            with nullcontext() if learner.adapter is None else learner.adapter.disable_adapter():
                reference = _scored(learner, learner.reference_model, batch, settings)
            if settings.kl_place == "loss":
                targets["reference"] = reference
            else:
                estimate = algo.kl_penalty(batch.log_probs, reference, settings.kl_estimate)
                targets["divergence"] = torch.where(batch.sampled, estimate, cost)
                cost = settings.kl * targets["divergence"]
        if learner.critic is None:
            turns, ends = [turn_advantages(t) for t in trajectories], [t.turn_ends for t in trajectories]
            found = token_advantages(advantages.to(cost.device), turns, ends, batch.sampled)
            return targets | {"advantages": found - cost}
        return targets | _estimated(learner, learner.critic, batch, trajectories, cost, settings)


def _scored(learner: Learner, model: PreTrainedModel, batch: Batch, settings: Training) -> Tensor:
    return _by_minibatch(
        batch, settings, lambda part: sampled_scores(model, part, learner.bias, settings.temperature).log_probs
    )


def _by_minibatch(batch: Batch, settings: Training, score: Callable[[Batch], Tensor]) -> Tensor:
    """What ``score`` makes of a batch, float32 (rows, width), a minibatch at a time: more may not fit into memory."""
    found = torch.zeros_like(batch.log_probs)
    for rows in torch.arange(len(batch.ids)).split(settings.minibatch):
        part = batch.rows(rows)
        found[rows, : part.ids.shape[1]] = score(part)
    return found


def cut(targets: Targets, rows: Tensor, part: Batch) -> Targets:
    """The targets of some rows, as wide as their batch."""
    return {name: target[rows, : part.ids.shape[1]] for name, target in targets.items()}


def policy_terms(
    learner: Learner,
    batch: Batch,
    targets: Targets,
    settings: Training,
    divisors: Divisors | None = None,
    generator: torch.Generator | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """``loss_terms`` of a batch under the learner's model; ``divisors`` by default its own."""
    log_probs, entropy, _ = sampled_scores(learner.model, batch, learner.bias, settings.temperature)
    return loss_terms(
        log_probs,
        entropy,
        batch.sampled,
        targets,
        settings,
        divisors or Divisors.of(batch.sampled, targets["mask"], settings),
        length=learner.longest,
        average_entropy=learner.average_entropy,
        generator=generator,
    )


def _estimated(
    learner: Learner,
    critic: Critic,
    batch: Batch,
    trajectories: Sequence[Trajectory],
    cost: Tensor,
    settings: Training,
) -> Targets:
    ends = [list(t.turn_ends) for t in trajectories]
    earned = [list(t.turn_rewards) for t in trajectories]
    mask = _mask(learner, batch, trajectories, settings.advantage_tokens)
    values = torch.where(mask, _by_minibatch(batch, settings, critic), 0.0)
    estimated, returns, compared = critic_estimates(ends, earned, values, cost, mask, settings)
    advantages = learner.task_scale * algo.whiten(estimated, mask, over=compared)
    # The critic learns only where the recursion ran: elsewhere there is no return.
    critic_mask = mask & _mask(learner, batch, trajectories, settings.loss_tokens)
    return {"advantages": advantages, "returns": returns, "values": values, "critic_mask": critic_mask}


def _mask(learner: Learner, batch: Batch, trajectories: Sequence[Trajectory], tokens: str) -> Tensor:
    if tokens == "all":
        return batch.sampled
    assert learner.piece is not None, "a selective mask needs the text of the tokens"
    spans = [reply_parts(trajectory, learner.piece, tokens) for trajectory in trajectories]
    return algo.part_mask(spans, batch.sampled)


def _step(
    learner: Learner, batch: Batch, targets: Targets, settings: Training, generator: torch.Generator
) -> dict[str, float]:
    """One step of the policy and one of its critic, each where it has a token and a finite gradient; their figures."""
    measured: dict[str, Tensor] = {}
    if bool(targets["mask"].any()):
        losses = _policy_losses(learner, batch, targets, settings, measured, generator)
        measured["grad_norm"] = _descend(learner.optimiser, losses, learner.model, settings)
        if not bool(measured["grad_norm"].isfinite()):
            measured.clear()
    if learner.critic is not None and learner.critic_optimiser is not None and bool(targets["critic_mask"].any()):
        critic_loss = algo.value_loss(
            learner.critic(batch), targets["values"], targets["returns"], targets["critic_mask"]
        )
        critic_norm = _descend(learner.critic_optimiser, [critic_loss], learner.critic, settings)
        if bool(critic_norm.isfinite()):
            measured["value_loss"] = critic_loss
    figures = {name: float(value.detach()) for name, value in measured.items()}
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def _policy_losses(
    learner: Learner,
    batch: Batch,
    targets: Targets,
    settings: Training,
    measured: dict[str, Tensor],
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """The losses of the parts of a minibatch, whose sum is its own; adds their figures to ``measured``."""
    parts, divisors = passes(learner.model, batch), Divisors.of(batch.sampled, targets["mask"], settings)
    compared = POLICY_LOSSES[settings.policy_loss].batch_statistics
    whole = compared or len(parts) == 1 or not all(bool(targets["mask"][rows].any()) for rows in parts)
    for rows in parts[:1] if whole else parts:
        part = batch if whole else batch.rows(rows)
        wanted = targets if whole else cut(targets, rows, part)
        terms, figures = policy_terms(learner, part, wanted, settings, divisors, generator)
        for name, figure in figures.items():
            measured[name] = measured.get(name, torch.zeros_like(figure)) + figure.detach()
        yield torch.stack(list(terms.values())).sum()


def _descend(
    optimiser: torch.optim.Optimizer, losses: Iterable[Tensor], module: torch.nn.Module, settings: Training
) -> Tensor:
    """Steps down the gradient of the sum; returns its norm before clipping.

    No step is taken where the gradient is not finite, or the weights were lost.
    """
    optimiser.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
    if bool(norm.isfinite()):
        optimiser.step()
    return norm
