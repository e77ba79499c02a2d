"""The functions of trainers that compute a published rule, each called on a ``Batch`` as its own trainer calls it.

Settings are a library's defaults but for the bounds of the clip and the way to average, which the rule names. A library
is looked at in the environment that has it; none is needed by another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ragen_agent.conform.batches import CONSTANT, GAMMA, LAMBDA, Batch
from ragen_agent.conform.formulas import CLIP
from ragen_gym.bench.agents.python import find

REWARDS = (-10.0, 10.0)
"""Bounds to which OpenRLHF and Molt clip rewards by default."""

ALONE = ("a group of one",)


@dataclass(frozen=True)
class Function:
    """A library's function: of a batch, its advantages (rows, LENGTH), or its loss, a scalar with gradient."""

    name: str
    call: Callable[[Batch], Tensor]
    refused: tuple[str, ...] = ()
    """Batches that the library refuses before it trains."""


@dataclass(frozen=True)
class Library:
    """A trainer's functions, by the rules of ``ragen_agent.conform.formulas.RULES`` that they compute."""

    name: str
    version: str
    functions: dict[str, Function]


def load(name: str) -> Library:
    """A key of ``LIBRARIES``, or ``module:attribute`` of a ``Library`` of your own, in the current folder too.

    Raises:
        ValueError: neither, or its module cannot be imported.
        ImportError: the library is not installed here.
    """
    if name in LIBRARIES:
        return LIBRARIES[name]()
    if ":" not in name:
        raise ValueError(
            f"{name!r} is not a library; give one of {', '.join(LIBRARIES)}, or module:attribute of a Library"
        )
    found = find(name)
    if not isinstance(found, Library):
        raise ValueError(
            f"{name} has the type {type(found).__name__}; it must be a ragen_agent.conform.libraries.Library"
        )
    for rule, function in found.functions.items():
        if not isinstance(function, Function):
            raise ValueError(
                f"{name} has a {type(function).__name__} for {rule!r}; it must be a "
                "ragen_agent.conform.libraries.Function"
            )
    return found


def _ragen_agent() -> Library:
    from ragen_agent import algo
    from ragen_gym import __version__

    def grouped(rule: str) -> Callable[[Batch], Tensor]:
        def advantages(batch: Batch) -> Tensor:
            each = [algo.normalised(batch.rewards[rows][None], rule)[0] for rows in batch.ids]
            return algo.broadcast_to_tokens(torch.cat(each), batch.mask)

        return advantages

    def loss(rule: str, how: str, **options: Any) -> Callable[[Batch], Tensor]:
        def policy_loss(b: Batch) -> Tensor:
            return algo.policy_loss(
                b.log_probs, b.old, b.advantages, b.mask, rule, how=how, length=CONSTANT, **options
            )[0]

        return policy_loss

    def divergence(kind: str) -> Callable[[Batch], Tensor]:
        return lambda b: algo.kl_loss(b.log_probs, b.reference, b.mask, kind, "token_mean")

    bounds = {"clip_low": CLIP[0], "clip_high": CLIP[1]}
    functions = {
        "GRPO": Function("algo.normalised", grouped("grpo")),
        "Dr. GRPO": Function("algo.normalised", grouped("dr_grpo")),
        "RLOO": Function("algo.normalised", grouped("rloo")),
        "GAE": Function("algo.gae", lambda b: algo.gae(b.token_rewards, b.values, b.mask, gamma=GAMMA, lam=LAMBDA)[0]),
        "PPO, token mean": Function("algo.policy_loss", loss("ppo", "token_mean", **bounds)),
        "PPO, sequence mean": Function("algo.policy_loss", loss("ppo", "sequence_mean", **bounds)),
        "PPO, constant length": Function("algo.policy_loss", loss("ppo", "constant", **bounds)),
        "GSPO": Function("algo.policy_loss", loss("gspo", "sequence_mean", **bounds)),
        "CISPO": Function("algo.policy_loss", loss("cispo", "token_mean", clip_high=CLIP[1])),
        "SAPO": Function("algo.policy_loss", loss("sapo", "sequence_mean")),
    }
    functions |= {f"KL, {kind}": Function("algo.kl_loss", divergence(kind)) for kind in ("k1", "k2", "k3")}
    return Library("ragen_agent", __version__, functions)


def _trl() -> Library:
    from trl.trainer.grpo_trainer import GRPOTrainer

    def loss(kind: str, level: str = "token", beta: float = 0.0, high: float = CLIP[1]) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            ids = torch.zeros(b.mask.shape, dtype=torch.int64)
            # The fields of a trainer that the method reads; the model's log-probs are the batch's.
            trainer: Any = SimpleNamespace(
                _get_per_token_logps_and_entropies=lambda *_, **__: (b.log_probs, torch.zeros_like(b.old), None),
                _metrics=defaultdict(lambda: defaultdict(list)),
                _entropy_bonus_enabled=False,
                accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
                args=SimpleNamespace(
                    delta=None,
                    use_bias_correction_kl=True,
                    sapo_temperature_pos=1.0,
                    sapo_temperature_neg=1.05,
                    steps_per_generation=1,
                ),
                aux_loss_enabled=False,
                beta=beta,
                current_gradient_accumulation_steps=1,
                epsilon_high=high,
                epsilon_low=CLIP[0],
                importance_sampling_level=level,
                loss_type=kind,
                max_completion_length=CONSTANT,
                model=SimpleNamespace(training=True),
                off_policy_mask_threshold=None,
                top_entropy_quantile=1.0,
                use_vllm=False,
            )
            inputs = {
                "prompt_ids": ids[:, :1],
                "prompt_mask": ids[:, :1] + 1,
                "completion_ids": ids,
                "completion_mask": torch.ones_like(ids),
                "tool_mask": b.mask.long(),
                "advantages": torch.zeros_like(b.old[:, 0]) if beta else b.advantages[:, 0],
                "old_per_token_logps": b.old,
                "ref_per_token_logps": b.reference,
                "num_items_in_batch": b.mask.sum(),
            }
            found: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
            return found

        return compute

    name = "GRPOTrainer._compute_loss"
    functions = {
        "PPO, token mean": Function(f"{name}, dapo", loss("dapo")),
        "PPO, sequence mean": Function(f"{name}, grpo", loss("grpo")),
        "PPO, constant length": Function(f"{name}, dr_grpo", loss("dr_grpo")),
        "GSPO": Function(f"{name}, grpo, sequence", loss("grpo", "sequence")),
        "CISPO": Function(f"{name}, cispo", loss("cispo", high=1 + CLIP[1])),  # its setting is the bound itself
        "SAPO": Function(f"{name}, sapo", loss("sapo")),
        "KL, k3": Function(f"{name}, beta", loss("dapo", beta=1.0)),
    }
    return Library("TRL", version("trl"), functions)


def _verl() -> Library:
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    def advantages(estimator: str, **options: Any) -> Callable[[Batch], Tensor]:
        function = core_algos.get_adv_estimator_fn(estimator)

        def compute(b: Batch) -> Tensor:
            found: Tensor = function(b.token_rewards, b.mask.to(b.rewards.dtype), b.groups.numpy(), **options)[0]
            return found

        return compute

    def gae(b: Batch) -> Tensor:
        found: Tensor = core_algos.compute_gae_advantage_return(
            b.token_rewards, b.values, b.mask.double(), torch.tensor(GAMMA), torch.tensor(LAMBDA)
        )[0]
        return found

    def loss(kind: str, mean: str) -> Callable[[Batch], Tensor]:
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=4,
            ppo_micro_batch_size_per_gpu=4,
            clip_ratio_low=CLIP[0],
            clip_ratio_high=CLIP[1],
        )

        def compute(b: Batch) -> Tensor:
            function = core_algos.get_policy_loss_fn(kind)
            # As its trainer does, which counts all rows of a minibatch.
            config.global_batch_info.update(
                dp_size=1,
                batch_num_tokens=int(b.mask.sum()),
                global_batch_size=len(b.mask),
                loss_scale_factor=config.loss_scale_factor,
            )
            found: Tensor = function(b.old, b.log_probs, b.advantages, b.mask.double(), mean, config)[0]
            return found

        return compute

    def divergence(kind: str) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            found: Tensor = core_algos.agg_loss(
                core_algos.kl_penalty(b.log_probs, b.reference, kind), b.mask.double(), "token-mean"
            )
            return found

        return compute

    functions = {
        "GRPO": Function("compute_grpo_outcome_advantage", advantages("grpo")),
        "Dr. GRPO": Function("compute_grpo_outcome_advantage", advantages("grpo", norm_adv_by_std_in_grpo=False)),
        "RLOO": Function("compute_rloo_outcome_advantage", advantages("rloo")),
        "GAE": Function("compute_gae_advantage_return", gae),
        "PPO, token mean": Function("compute_policy_loss_vanilla", loss("vanilla", "token-mean")),
        "PPO, sequence mean": Function("compute_policy_loss_vanilla", loss("vanilla", "seq-mean-token-mean")),
        "PPO, constant length": Function("compute_policy_loss_vanilla", loss("vanilla", "seq-mean-token-sum-norm")),
        "GSPO": Function("compute_policy_loss_gspo", loss("gspo", "seq-mean-token-mean")),
        "CISPO": Function("compute_policy_loss_cispo", loss("cispo", "token-mean")),
        "SAPO": Function("compute_policy_loss_sapo", loss("sapo", "seq-mean-token-mean")),
    }
    functions |= {f"KL, {kind}": Function("kl_penalty", divergence(kind)) for kind in ("k1", "k2", "k3")}
    return Library("verl", version("verl"), functions)


def _openrlhf() -> Library:
    from ragen_agent.openrlhf.patches import stand_in

    stand_in()
    from openrlhf.models.loss import PolicyLoss
    from openrlhf.models.utils import compute_approx_kl, masked_mean
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker as Maker

    def advantages(estimator: str) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            rows = SimpleNamespace(
                action_mask=b.mask.double(),
                index=list(range(len(b.rewards))),
                info={},
                kl=torch.zeros_like(b.old),
                rewards=b.rewards.clone(),
                values=b.values,
            )
            # The fields of a trainer and its settings that the method reads.
            settings = SimpleNamespace(
                algo=SimpleNamespace(
                    advantage=SimpleNamespace(
                        estimator=estimator,
                        gamma=GAMMA if estimator == "gae" else 1.0,
                        lambd=LAMBDA,
                        no_std_norm=False,
                    )
                ),
                reward=SimpleNamespace(clip_range=REWARDS, overlong_buffer_len=None, stop_properly_penalty_coef=None),
                rollout=SimpleNamespace(n_samples_per_prompt=len(b.ids[0])),
            )
            maker: Any = SimpleNamespace(
                advantage_estimator=estimator,
                get_advantages_and_returns=partial(Maker.get_advantages_and_returns, None),
                get_cumulative_returns=partial(Maker.get_cumulative_returns, None),
                kl_ctl=SimpleNamespace(value=0.0),
                strategy=SimpleNamespace(args=settings),
            )
            found: Tensor = Maker.compute_advantages_and_returns(maker, [rows])[0].advantages
            return found

        return compute

    def loss(kind: str, *, tokens: bool) -> Callable[[Batch], Tensor]:
        module = PolicyLoss(*CLIP, token_level_loss=tokens, policy_loss_type=kind)

        def compute(b: Batch) -> Tensor:
            found: Tensor = module(b.log_probs, b.old, b.advantages, b.mask.double())[0]
            return found

        return compute

    def divergence(kind: str) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            found: Tensor = masked_mean(
                compute_approx_kl(b.log_probs, b.reference, kl_estimator=kind), b.mask.double(), dim=None
            )
            return found

        return compute

    name = "compute_advantages_and_returns"
    functions = {
        "GRPO": Function(f"{name}, group_norm", advantages("group_norm"), refused=ALONE),
        "Dr. GRPO": Function(f"{name}, dr_grpo", advantages("dr_grpo"), refused=ALONE),
        "RLOO": Function(f"{name}, rloo", advantages("rloo"), refused=ALONE),
        "GAE": Function(f"{name}, gae", advantages("gae")),
        "PPO, token mean": Function("PolicyLoss", loss("ppo", tokens=True)),
        "PPO, sequence mean": Function("PolicyLoss", loss("ppo", tokens=False)),
        "GSPO": Function("PolicyLoss, gspo", loss("gspo", tokens=False)),
    }
    functions |= {f"KL, {kind}": Function("compute_approx_kl", divergence(kind)) for kind in ("k1", "k2", "k3")}
    return Library("OpenRLHF", version("openrlhf"), functions)


def _molt() -> Library:
    from molt.models.loss import PolicyLoss, agg_loss
    from molt.models.utils import compute_approx_kl
    from molt.trainer.algorithm.advantage import AdvantageContext, get_advantage_estimator

    def advantages(estimator: str, **options: Any) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            rows = len(b.rewards)
            context = AdvantageContext(
                sample_to_rollout=torch.arange(rows),
                exp_len=[rows],
                action_masks=[b.mask.to(b.rewards.dtype)],
                kl_coef=0.0,
                gamma=GAMMA,
                lam=LAMBDA,
                kls=[torch.zeros_like(b.old)],
                values=[b.values],
                **options,
            )
            rewards = b.rewards.clamp(*REWARDS)  # as its trainer does before
            found: Tensor = get_advantage_estimator(estimator)(rewards, b.ids, context)[0][0]
            return found

        return compute

    def loss(kind: str, mean: str, high: float = CLIP[1]) -> Callable[[Batch], Tensor]:
        module = PolicyLoss(CLIP[0], high, loss_mode=kind, loss_agg_mode=mean)

        def compute(b: Batch) -> Tensor:
            # Its trainer counts all rows of a minibatch.
            counts = {} if mean == "token-mean" else {"global_batch_size": len(b.mask)}
            found: Tensor = module(b.log_probs, b.old, b.advantages, b.mask.double(), **counts)[0]
            return found

        return compute

    def divergence(kind: str) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            each = compute_approx_kl(b.log_probs, b.reference, kind, kl_ref="model")
            found: Tensor = agg_loss(each, b.mask.double(), "token-mean")
            return found

        return compute

    functions = {
        "GRPO": Function("advantage.grpo", advantages("grpo"), ALONE),
        "Dr. GRPO": Function("advantage.dr_grpo", advantages("dr_grpo"), ALONE),
        "RLOO": Function("advantage.rloo", advantages("rloo"), ALONE),
        "GAE": Function("advantage.gae", advantages("gae")),
        "PPO, token mean": Function("PolicyLoss", loss("ppo", "token-mean")),
        "PPO, sequence mean": Function("PolicyLoss", loss("ppo", "seq-mean-token-mean")),
        "GSPO": Function("PolicyLoss, gspo", loss("gspo", "seq-mean-token-mean")),
        "CISPO": Function("PolicyLoss, cispo", loss("cispo", "token-mean", 1 + CLIP[1])),
    }
    functions |= {f"KL, {kind}": Function("compute_approx_kl", divergence(kind)) for kind in ("k1", "k2", "k3")}
    return Library("Molt", version("molt-rl"), functions)


def _skyrl() -> Library:
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import AlgorithmConfig

    def advantages(estimator: str, **options: Any) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            function = ppo_utils.AdvantageEstimatorRegistry.get(estimator)
            found: Tensor = function(
                token_level_rewards=b.token_rewards,
                values=b.values,
                response_mask=b.responses.to(b.rewards.dtype),  # its trainer masks observations in the loss alone
                index=b.groups.numpy(),
                gamma=GAMMA,
                lambd=LAMBDA,
                **options,
            )[0]
            return found

        return compute

    def loss(kind: str, mean: str) -> Callable[[Batch], Tensor]:
        config = AlgorithmConfig(policy_loss_type=kind, eps_clip_low=CLIP[0], eps_clip_high=CLIP[1])
        config.cispo.cispo_eps_clip_high = CLIP[1]

        def compute(b: Batch) -> Tensor:
            function = ppo_utils.PolicyLossRegistry.get(kind)
            mask = b.mask.double()
            weighed = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
                b.advantages, mask, mean, len(mask), CONSTANT
            )
            found: Tensor = function(b.log_probs, b.old, weighed, config, mask)[0]
            return found

        return compute

    def divergence(kind: str) -> Callable[[Batch], Tensor]:
        def compute(b: Batch) -> Tensor:
            mask = b.mask.double()
            each: Tensor = ppo_utils.compute_approx_kl(b.log_probs, b.reference, mask, kind)
            return each.sum() / mask.sum()

        return compute

    functions = {
        "GRPO": Function("compute_grpo_outcome_advantage", advantages("grpo")),
        "Dr. GRPO": Function("compute_grpo_outcome_advantage", advantages("grpo", grpo_norm_by_std=False)),
        "RLOO": Function("compute_rloo_outcome_advantage", advantages("rloo")),
        "GAE": Function("compute_gae_advantage_return", advantages("gae")),
        "PPO, token mean": Function("ppo_policy_loss", loss("regular", "token_mean")),
        "PPO, sequence mean": Function("ppo_policy_loss", loss("regular", "sequence_mean")),
        "PPO, constant length": Function("ppo_policy_loss", loss("regular", "seq_mean_token_sum_norm")),
        "GSPO": Function("gspo_policy_loss", loss("gspo", "sequence_mean")),
        "CISPO": Function("compute_policy_loss_cispo", loss("cispo", "token_mean")),
        "SAPO": Function("sapo_policy_loss", loss("sapo", "sequence_mean")),
    }
    functions |= {f"KL, {kind}": Function("compute_approx_kl", divergence(kind)) for kind in ("k1", "k2", "k3")}
    return Library("SkyRL", version("skyrl"), functions)


LIBRARIES: dict[str, Callable[[], Library]] = {
    "ragen_agent": _ragen_agent,
    "trl": _trl,
    "verl": _verl,
    "openrlhf": _openrlhf,
    "skyrl": _skyrl,
    "molt": _molt,
}
