"""The policy's loss in its process: OpenRLHF's or ours, with our aggregations, and the gradient norms of its parts.

OpenRLHF's entropy bonus and KL term are token means under every aggregation; here all terms are aggregated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import openrlhf.models.loss
import torch
from openrlhf.models import PolicyLoss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ray import ppo_actor, ppo_critic
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor

from ragen_agent import algo
from ragen_agent.algo.losses import LOWEST_LOG_PROB
from ragen_agent.config import Config
from ragen_agent.config.algorithms import POLICY_LOSSES
from ragen_agent.openrlhf.experience import AVERAGE_ENTROPY, ENTROPY_PHASE, EPISODE_SHARE, EPISODE_TOKENS

__all__ = ["Aggregation", "MeasuredPolicyLoss", "count_episodes", "gradient_norms", "install", "install_critic"]

_STOCK: Callable[..., Tensor] = openrlhf.models.loss.aggregate_loss
_STOCK_STEPS: Callable[..., Iterator[Any]] = ppo_actor.iter_grad_accum_global_norm
NO_WEIGHT = 1e-12  # of the figures of rows without a token: OpenRLHF divides by the number of tokens


class MeasuredPolicyLoss(PolicyLoss):  # type: ignore[misc]
    """OpenRLHF's with our aggregation, or one of ours; ``approx_kl`` is the k3 estimate of the last rows.

    Losses that compare tokens (Clip-Cov, KL-Cov) compare those of the rows that a process reads at a time; the local
    trainer compares a whole minibatch.
    """

    approx_kl: Tensor
    aggregation: Aggregation
    rule: str
    options: dict[str, Any]
    generator: torch.Generator | None = None  # what draws tokens; of an iteration's steps, which draw on with it

    def forward(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, action_mask: Tensor, **named: Any
    ) -> Any:
        """As OpenRLHF's."""
        mask = action_mask.bool()
        with torch.no_grad():
            change = algo.log_ratio(log_probs.float(), old_log_probs.float(), mask)
            self.approx_kl = (change.exp() - 1 - change).sum() / action_mask.sum().clamp(min=1)
        if not POLICY_LOSSES[self.rule].openrlhf:
            return self._ours(log_probs, old_log_probs, advantages, action_mask, **named)
        log_probs, old_log_probs, named = self._bounded(log_probs, old_log_probs, mask, named)
        openrlhf.models.loss.aggregate_loss = self.aggregation  # for this loss alone: a critic's has its own
        try:
            *found, outside = super().forward(log_probs, old_log_probs, advantages, action_mask=action_mask, **named)
        finally:
            openrlhf.models.loss.aggregate_loss = _STOCK
        if outside is not None:  # of whole rows OpenRLHF's is a share of these, of padding too
            outside = _mean(self._mismatch(old_log_probs, named["rollout_log_probs"], mask)[1].float(), mask)
        return *found, outside

    def _bounded(
        self, log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, named: dict[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The arguments of OpenRLHF's loss, with the log-ratios of ``algo.log_ratio``: its GSPO does not bound them."""
        old_log_probs = old_log_probs.clamp(min=LOWEST_LOG_PROB)
        if named.get("rollout_log_probs") is not None:
            named = named | {"rollout_log_probs": named["rollout_log_probs"].clamp(min=LOWEST_LOG_PROB)}
        compared = old_log_probs
        if self.rule == "gspo" and self.is_correction_level != "off":
            compared = named["rollout_log_probs"]
        return compared + algo.log_ratio(log_probs, compared, mask), old_log_probs, named

    def _ours(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor,
        rollout_log_probs: Tensor | None = None,
        **counts: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """What OpenRLHF's loss returns, of a loss that it does not have."""
        mask, zero = action_mask.bool(), torch.zeros_like(log_probs, dtype=torch.float32)
        new, old = log_probs.float(), old_log_probs.float()
        terms = algo.TokenTerms(torch.where(mask, new, zero) * 0, mask)  # of rows without a token: 0, with a gradient
        if bool(mask.any()):
            drawing = {"generator": self.generator} if POLICY_LOSSES[self.rule].random else {}
            terms = algo.token_terms(self.rule, new, old, advantages.float(), mask, **self.options, **drawing)
        weights, difference, outside = torch.ones_like(zero), None, None
        if self.is_correction_level != "off" and rollout_log_probs is not None:
            weights, found = self._mismatch(old, rollout_log_probs, mask)
            difference = _mean(rollout_log_probs.float() - old, mask)
            outside = _mean(found.float(), mask)
        loss = self.aggregation(
            -torch.where(mask, terms.surrogate * weights, zero), action_mask, self.token_level_loss, **counts
        )
        return loss, _mean(terms.restrained.float(), mask), _mean((old - new).detach(), mask), difference, outside

    def _mismatch(self, old: Tensor, rollout: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``algo.mismatch_weights``."""
        return algo.mismatch_weights(
            old.float(),
            rollout.float(),
            mask,
            level="sequence" if self.is_correction_level == "seq" else "token",
            mode=self.is_correction_mode,
            gating=self.is_correction_gating,
            bounds=tuple(self.is_correction_threshold),
        )


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    """Over the masked entries; not a number where there are none, as of OpenRLHF's."""
    return torch.where(mask, x, 0.0).sum() / mask.sum()


class Aggregation:
    """Takes the place of OpenRLHF's ``aggregate_loss``: ``Training.aggregation`` over a step; its micro-batches add up.

    A sequence is an episode, also where its prompts leave out earlier turns, so that it is several rows.
    ``episode_tokens`` are those of the rows that are aggregated next, or None where each row is an episode.
    ``token_mean`` is that of what was aggregated last: in a step of OpenRLHF's that is the entropy, which is what
    ``entropy_call`` counts to: a step aggregates the loss, a KL term if it is part of the loss, and the entropy.
    ``smoothing`` and ``band`` are those of ``Training``, ``phase`` the part of ``smoothing`` that counts now;
    ``deviation`` is the token mean of the entropies' distance.
    """

    def __init__(
        self,
        how: str,
        length: int,
        smoothing: float = 0.0,
        band: tuple[float, float] = (0.5, 1.5),
        entropy_call: int = 0,
    ) -> None:
        self.how, self.length = how, length
        self.smoothing, self.band, self.entropy_call = smoothing, band, entropy_call
        self.average_entropy, self.phase = 0.0, 1.0
        self.calls = 0
        self.episode_tokens: Tensor | None = None
        self.token_mean = self.deviation = torch.zeros(())

    def __call__(
        self,
        loss: Tensor,
        loss_mask: Tensor,
        token_level_loss: bool = False,
        dp_size: int = 1,
        batch_num_tokens: Tensor | float | None = None,
        global_batch_size: Tensor | float | None = None,
    ) -> Tensor:
        """The arguments are those of ``aggregate_loss``; the divisors are by default those of these rows alone."""
        with torch.no_grad():
            self.token_mean = (loss * loss_mask).sum() / loss_mask.sum()
        self.calls += 1
        if self.smoothing and self.calls == self.entropy_call:
            outside = algo.entropy_deviation(loss.float(), loss_mask.bool(), self.average_entropy, self.band)
            self.deviation = _mean(outside.detach(), loss_mask.bool())
            loss = loss - self.smoothing * self.phase * outside
        if self.how == "token_mean":
            return _STOCK(loss, loss_mask, True, dp_size, batch_num_tokens)
        sums, tokens = (loss * loss_mask).sum(dim=-1), loss_mask.sum(dim=-1)
        if self.how == "sequence_mean":
            whole = tokens.clamp(min=1) if self.episode_tokens is None else self.episode_tokens.to(sums.device)
            sums = sums / whole
        elif self.how == "constant":
            sums = sums / self.length
        rows = algo.loss_count(loss_mask.bool(), self.how) if global_batch_size is None else global_batch_size
        return sums.sum() / rows * dp_size


def count_episodes(experience: Any) -> float:
    """The episodes among these rows that the loss is divided by, each row counted as its share of its episode."""
    return float(_per_row(experience, EPISODE_SHARE).float().sum())


def _per_row(experience: Any, name: str) -> Tensor:
    """A number of each row, on the CPU, which OpenRLHF keeps as one tensor or as a list of them."""
    return torch.stack([torch.as_tensor(value).cpu() for value in experience.info[name]])


def _divisible_steps(
    data: Iterable[Any], strategy: Any, micro_batches: int, mask_of: Callable[[Any], Tensor]
) -> Iterator[Any]:
    """As ``iter_grad_accum_global_norm``; but a step without a token in the loss has the gradient 0, not 0 / 0.

    Masks can leave none in the rows of a step, and the weights would be lost.
    """
    for rows, batch in _STOCK_STEPS(data, strategy, micro_batches, mask_of):
        tokens = batch["batch_num_tokens"]
        yield rows, batch | {"batch_num_tokens": tokens + (tokens == 0)}


def _steps(data: Iterable[Any], strategy: Any, micro_batches: int, mask_of: Callable[[Any], Tensor]) -> Iterator[Any]:
    """As ``_divisible_steps``; ``global_batch_size`` counts episodes here, not rows."""
    window: list[tuple[Any, dict[str, Any]]] = []
    for pair in _divisible_steps(data, strategy, micro_batches, mask_of):
        window.append(pair)
        if len(window) == micro_batches:
            mean = strategy.all_reduce(sum(count_episodes(rows) for rows, _ in window))  # over the processes
            mean += mean == 0  # as of the tokens
            for rows, batch in window:
                yield rows, batch | {"global_batch_size": mean * batch["dp_size"] / micro_batches}
            window.clear()
    assert not window, "an iteration has whole minibatches"


def install(trainer: Any, config: Config) -> None:
    """Gives every term of the loss the run's aggregation; this process has no other trainer."""
    training, loss = config.training, trainer.actor_loss_fn
    aggregation = Aggregation(
        training.aggregation,
        config.turns.max_tokens_per_episode,
        training.entropy_smoothing,
        training.entropy_limits,
        entropy_call=3 if trainer.args.algo.kl.use_loss else 2,
    )
    loss.__class__ = MeasuredPolicyLoss
    loss.rule, loss.options = training.policy_loss, training.policy_loss_options
    if training.correction == "none":
        loss.is_correction_level = "off"
    loss.aggregation = ppo_actor.aggregate_loss = aggregation
    ppo_actor.iter_grad_accum_global_norm = _steps
    ppo_actor.compute_approx_kl = _kl  # OpenRLHF's stops at a divergence of 10, where k2 has no gradient any more
    step = trainer.training_step

    def training_step(experience: Any, *args: Any, **kwargs: Any) -> Any:
        """Records what the local trainer records, under OpenRLHF's names: token means, and a KL term as in the loss."""
        aggregation.episode_tokens = _per_row(experience, EPISODE_TOKENS)
        _begin(aggregation, experience)
        status = step(experience, *args, **kwargs)
        metrics, weights = status["metrics"], status["weights"]
        if aggregation.smoothing:
            metrics["entropy_deviation"], weights["entropy_deviation"] = aggregation.deviation, "token"
        metrics |= {"approx_kl": trainer.actor_loss_fn.approx_kl, "entropy_loss": aggregation.token_mean}
        weights["approx_kl"] = "token"
        if trainer.args.algo.kl.use_loss:  # a part of the minibatch's, not a mean over these rows
            weights["kl"] = "sample"
        if not status["num_action_tokens"]:  # padding, or masked rows, alone: means are 0 / 0
            metrics = {name: torch.as_tensor(value).float() for name, value in metrics.items()}
            status["metrics"] = {name: value.nan_to_num() for name, value in metrics.items()}
            status["num_action_tokens"] = NO_WEIGHT
        return status

    trainer.training_step = training_step


def _kl(
    log_probs: Tensor, log_probs_base: Tensor, *, unbiased_gradient: bool, kl_estimator: str, **named: Any
) -> Tensor:
    """Takes the place of OpenRLHF's ``compute_approx_kl`` in the loss: the estimate of the local trainer."""
    if unbiased_gradient:  # of OpenRLHF alone
        named |= {"kl_estimator": kl_estimator, "unbiased_gradient": True}
        stock: Tensor = compute_approx_kl(log_probs, log_probs_base, **named)
        return stock
    return algo.kl_penalty(log_probs.float(), log_probs_base.float(), kl_estimator)


def install_critic() -> None:
    """Gives the critic's steps that have no token in its loss the gradient 0; this process has no other trainer."""
    ppo_critic.iter_grad_accum_global_norm = _divisible_steps


def _begin(aggregation: Aggregation, experience: Any) -> None:
    """Before the terms of the loss on some rows are aggregated in the order of OpenRLHF's step."""
    aggregation.calls = 0
    if aggregation.smoothing:
        aggregation.average_entropy = float(_per_row(experience, AVERAGE_ENTROPY).float().mean())
        aggregation.phase = float(_per_row(experience, ENTROPY_PHASE).float().mean())


def gradient_norms(trainer: Any, experiences: Sequence[Any], kl: float) -> dict[str, float]:
    """The gradient norms of the terms of the loss on some rows, which are one minibatch; nothing is changed.

    ``policy``, ``entropy`` and, with a KL term in the loss, ``kl``, each with its weight; empty where the loss has no
    token. The model of ``trainer`` must hold all its weights, and DeepSpeed must not see its passes.
    """
    trainer.actor_loss_fn.generator = None  # the same figures whatever was drawn before; a step's is set anew
    tokens = sum(float(e.action_mask.sum()) for e in experiences)
    episodes = sum(count_episodes(e) for e in experiences)
    batch = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": episodes}
    parameters = [parameter for parameter in trainer.actor.parameters() if parameter.requires_grad]
    found: dict[str, list[Tensor]] = {}
    for experience in experiences:
        if not bool(experience.action_mask.any()):
            continue
        experience.to_device(torch.cuda.current_device())
        for name, term in _terms(trainer, experience, kl, batch).items():
            parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            sums = found.setdefault(name, [torch.zeros(()) for _ in parameters])
            for index, part in enumerate(parts):
                if part is not None:
                    sums[index] = sums[index].to(part.device) + part.float()
    return {name: float(torch.stack([part.norm().cpu() for part in sums]).norm()) for name, sums in found.items()}


def _terms(trainer: Any, experience: Any, kl: float, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The terms of the loss that ``ActorPPOTrainer.training_step`` adds up, with gradient."""
    arguments, mask, old = trainer.args, experience.action_mask, experience.action_log_probs
    ppo_actor.aggregate_loss.episode_tokens = _per_row(experience, EPISODE_TOKENS)
    _begin(ppo_actor.aggregate_loss, experience)
    log_probs, output = trainer.actor(
        experience.sequences,
        mask,
        attention_mask=experience.attention_mask,
        return_output=True,
        ring_attn_group=trainer.strategy.ring_attn_group,
        return_entropy=True,
        **merge_mm_train_inputs(experience.mm_train_inputs, experience.sequences.device),
    )
    loss = trainer.actor_loss_fn(
        log_probs,
        old,
        experience.advantages,
        action_mask=mask,
        rollout_log_probs=experience.rollout_log_probs,
        **batch,
    )[0]
    divergence = None
    if arguments.algo.kl.use_loss:  # before the entropy, as in the step
        estimate = _kl(
            log_probs,
            experience.base_action_log_probs,
            log_probs_old=old,
            kl_estimator=arguments.algo.kl.estimator,
            unbiased_gradient=arguments.algo.kl.unbiased_gradient,
        )
        divergence = kl * ppo_actor.aggregate_loss(estimate, mask, **batch)
    entropy = ppo_actor.aggregate_loss(output.entropy[:, -mask.shape[1] :], mask, **batch)
    terms = {"policy": loss, "entropy": -arguments.actor.entropy_coef * entropy}
    if divergence is not None:
        terms["kl"] = divergence
    return terms
