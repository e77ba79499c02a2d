"""The policy's step in OpenRLHF's actor, with the loss of ``ragen_agent.update.loss``.

OpenRLHF's trainer of the actor cuts an iteration into steps and micro-batches; the terms of the loss, their divisors
and the figures of a step are ours, in place of its ``training_step``. Unlike in the local backend, losses that compare
tokens (Clip-Cov, KL-Cov) compare the rows of one micro-batch, and the entropy reported is a mean over M_loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from openrlhf.trainer.ray import ppo_actor, ppo_critic
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Config, Training
from ragen_agent.config.algorithms import AGGREGATIONS, POLICY_LOSSES
from ragen_agent.openrlhf.experience import AVERAGE_ENTROPY, EPISODE_SHARE, EPISODE_TOKENS
from ragen_agent.update.loss import Divisors, Targets, loss_terms

_STOCK_STEPS: Callable[..., Iterator[Any]] = ppo_critic.iter_grad_accum_global_norm
NO_WEIGHT = 1e-12  # of the figures of rows without a token: OpenRLHF divides by the number of tokens


def install(trainer: Any, config: Config) -> None:
    """Gives OpenRLHF's trainer of the actor our steps; this process has no other trainer."""
    trainer.generator = None  # what draws tokens; of an iteration's steps, which draw on with it
    trainer.training_step = partial(_training_step, trainer, config)
    ppo_actor.iter_grad_accum_global_norm = partial(_steps, AGGREGATIONS[config.training.aggregation].divisor)


def install_critic() -> None:
    """Gives the critic's steps that have no token in its loss the gradient 0; this process has no other trainer."""
    ppo_critic.iter_grad_accum_global_norm = _divisible_steps


def count_episodes(experience: Any) -> float:
    """The episodes among these rows that the loss is divided by, each row counted as its share of its episode."""
    return float(_per_row(experience, EPISODE_SHARE).float().sum())


def _training_step(trainer: Any, config: Config, experience: Any, kl: float, step: int, count: float) -> dict[str, Any]:
    """As OpenRLHF's ``training_step``: one micro-batch forward and backward, and a step where it is a step's last."""
    trainer.actor.train()
    terms, figures = _terms(trainer, config, experience, count)
    counted = [term for name, term in terms.items() if name != "entropy" or config.training.entropy_bonus]
    trainer.strategy.backward(torch.stack(counted).sum(), trainer.actor, trainer.actor_optim)
    trainer.strategy.optimizer_step(trainer.actor_optim, trainer.actor, trainer.actor_scheduler, name="actor")
    # OpenRLHF adds up the processes' figures one by one, so all need the same ones in the same order.
    metrics = {name: figures[name].detach() for name in _figure_names(config.training)}
    weights: dict[str, str | None] = dict.fromkeys(metrics, "token")
    if config.training.kl_place == "loss":  # a part of the minibatch's, not a mean over these rows
        weights["kl"] = "sample"
    metrics |= {
        "policy_loss": terms["policy"].detach(),
        "actor_grad_norm": trainer.strategy.get_grad_norm(trainer.actor),
    }
    weights |= {"policy_loss": "sample", "actor_grad_norm": None}
    return {
        "metrics": metrics,
        "weights": weights,
        "num_samples": float(len(experience.action_mask)),
        "num_action_tokens": float(experience.action_mask.sum()) or NO_WEIGHT,
    }


def _terms(trainer: Any, config: Config, experience: Any, count: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """``loss_terms`` of some rows; ``count`` divides the sums of the minibatch."""
    mask, training = experience.action_mask.bool(), config.training
    log_probs, output = trainer.actor(
        experience.sequences,
        experience.action_mask,
        attention_mask=experience.attention_mask,
        return_output=True,
        ring_attn_group=trainer.strategy.ring_attn_group,
        return_entropy=True,
        **_pictures(experience),
    )
    if not bool(mask.any()):  # padding, or masked rows, alone: no loss, but a gradient of 0, for which others wait
        nothing = torch.where(mask, log_probs, 0.0).sum()
        return {"policy": nothing}, dict.fromkeys(_figure_names(training), nothing)
    tokens = float(mask.sum())
    return loss_terms(
        log_probs.float(),
        output.entropy[:, -mask.shape[1] :].float(),
        mask,
        _targets(experience, config),
        training,
        Divisors(tokens, tokens, count, _per_row(experience, EPISODE_TOKENS).to(mask.device)),
        length=config.turns.max_tokens_per_episode,
        average_entropy=_shared(experience, AVERAGE_ENTROPY),
        generator=trainer.generator,
    )


def _targets(experience: Any, config: Config) -> Targets:
    """See ``Targets``; ``old`` are the trainer's own log-probs, from before the first step.

    A loss of whole rows compares with the policy that sampled, as in the local backend, so nothing is corrected.
    """
    training, mask = config.training, experience.action_mask.bool()
    old, rollout = experience.action_log_probs.float(), experience.rollout_log_probs.float()
    whole = POLICY_LOSSES[training.policy_loss].sequences
    targets = {"mask": mask, "old": rollout if whole else old, "advantages": experience.advantages.float()}
    if _corrects(training):
        targets["weights"], targets["corrected"] = algo.mismatch_weights(
            old, rollout, mask, **training.correction_options
        )
    if training.kl_estimate != "none" and training.kl_place == "loss":
        targets["reference"] = experience.base_action_log_probs.float()
    return targets


def _pictures(experience: Any) -> dict[str, Any]:
    given = experience.mm_train_inputs
    return merge_mm_train_inputs(given, experience.sequences.device) if given else {}


def _figure_names(training: Training) -> list[str]:
    """The figures of a micro-batch; a KL term in the reward is measured where that is computed."""
    names = ["entropy", "clip_fraction", "approx_kl"] + ["kl"] * (training.kl_place == "loss")
    return names + ["corrected"] * _corrects(training) + ["entropy_deviation"] * bool(training.entropy_smoothing)


def _corrects(training: Training) -> bool:
    return training.correction != "none" and not POLICY_LOSSES[training.policy_loss].sequences


def _per_row(experience: Any, name: str) -> Tensor:
    """A number of each row, on the CPU, which OpenRLHF keeps as one tensor or as a list of them."""
    return torch.stack([torch.as_tensor(value).cpu() for value in experience.info[name]])


def _shared(experience: Any, name: str) -> float:
    return float(_per_row(experience, name)[0]) if name in experience.info else 0.0


def _count(experience: Any, divisor: str) -> float:
    return float(experience.action_mask.sum()) if divisor == "tokens" else count_episodes(experience)


def _steps(
    divisor: str, data: Iterable[Any], strategy: Any, micro_batches: int, mask_of: Callable[[Any], Tensor]
) -> Iterator[tuple[Any, float]]:
    """As ``iter_grad_accum_global_norm``: each micro-batch with the divisor of its sums.

    DeepSpeed takes the mean over the micro-batches of a step and over the processes, so the divisor is the mean too. A
    step without a token in the loss, which masks can leave, has the gradient 0, not 0 / 0.
    """
    window: list[Any] = []
    for rows in data:
        window.append(rows)
        if len(window) == micro_batches:
            count = strategy.all_reduce(sum(_count(each, divisor) for each in window)) / micro_batches
            yield from ((each, count or 1.0) for each in window)
            window.clear()
    assert not window, "an iteration has whole minibatches"


def _divisible_steps(
    data: Iterable[Any], strategy: Any, micro_batches: int, mask_of: Callable[[Any], Tensor]
) -> Iterator[Any]:
    """As ``iter_grad_accum_global_norm``; but a step without a token in the loss has the gradient 0, not 0 / 0."""
    for rows, batch in _STOCK_STEPS(data, strategy, micro_batches, mask_of):
        tokens = batch["batch_num_tokens"]
        yield rows, batch | {"batch_num_tokens": tokens + (tokens == 0)}
