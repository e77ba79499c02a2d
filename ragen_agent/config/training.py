"""Settings of reinforcement learning: sampling, filtering, advantages and losses."""

from __future__ import annotations

from math import cos, inf, pi
from typing import Any

from pydantic.dataclasses import dataclass

from ragen_agent.config.algorithms import (
    ADVANTAGE_RULES,
    AGGREGATIONS,
    CREDITS,
    FILTER_LOSS_SCALINGS,
    FILTER_RULES,
    FILTER_STATISTICS,
    GROUPINGS,
    KL_ESTIMATES,
    POLICY_LOSSES,
    TOKEN_PARTS,
)
from ragen_agent.config.config_checks import check_training
from ragen_agent.config.table import Table
from ragen_gym.core.settings import setting

PRESET = "as training.starpo_s says"


@dataclass(frozen=True)
class Training(Table):
    """Reinforcement learning by StarPO-S, or by StarPO with ``starpo_s = false`` (RAGEN, arXiv 2504.20073, section 3).

    Each iteration plays ``groups`` levels with ``group_size`` episodes each. StarPO-S keeps the share ``keep`` of the
    groups with the largest return std, clips ratios to [1 - clip_low, 1 + clip_high] and has no KL term; StarPO keeps
    all groups, clips to 1 -+ clip_low and subtracts ``kl`` times the k1 estimate of the divergence from the starting
    model. Each of the three parts can be set separately: ``filter``, ``clip`` and ``kl_kind``.
    """

    algo: str = setting("grpo", "advantage estimator", choices=ADVANTAGE_RULES)
    starpo_s: bool = setting(True, "the preset of filter, clip and kl_kind: StarPO-S if true, else StarPO")
    iterations: int = setting(60, "rollouts and updates of the whole run", low=0)
    groups: int = setting(32, "levels played in an iteration", low=1, unit="levels")
    group_size: int = setting(8, "episodes on each of these levels", low=1, unit="episodes")
    shared_noise: bool = setting(
        False, "episodes of a group share the transition noise, as in the paper's code, not only the level"
    )
    groups_by: str = setting("level", "unit of comparison within a group", choices=GROUPINGS)
    branches: list[int] = setting(
        [], "replies drawn from each state of turn 1, 2, ... of a tree, one after the last; their product is group_size"
    )
    filter: str = setting("", "rule that selects the groups to train on", choices=FILTER_RULES, empty=PRESET)
    filter_statistic: str = setting(
        "std", "number of each group by which the filter chooses", choices=FILTER_STATISTICS
    )
    keep: float = setting(
        0.25, "the filter's amount: the share, mass or part of the groups, up to 1; with top_k their number", above=0
    )
    filter_loss_scaling: str = setting(
        "none", "scaling of the advantages by the share s of the groups that are kept", choices=FILTER_LOSS_SCALINGS
    )
    advantage_length_weight: bool = setting(
        False, "an episode's advantage is divided by its length relative to the batch's mean length"
    )
    zero_task_advantage: bool = setting(
        False, "a control: advantages are 0 in the loss, so that the entropy bonus and the KL term act alone"
    )
    refills: int = setting(
        0,
        "maximum rounds of further levels that replace levels whose episodes all earn the same "
        "(dynamic sampling: DAPO, arXiv 2503.14476, section 3.2)",
        low=0,
        unit="rounds",
    )
    minibatch: int = setting(64, "episodes in an optimiser step", low=1, unit="episodes")
    updates: int = setting(1, "passes over one batch of rollouts (Online-k)", low=1)
    learning_rate: float = setting(5e-4, "of the policy's AdamW", above=0, high=1e3)
    critic_learning_rate: float = setting(1e-3, "of the critic's AdamW", above=0, high=1e3)
    schedule: str = setting(
        "constant",
        "schedule of both rates after the warm-up, by iteration",
        choices={"constant": "unchanged", "linear": "down to 0 along a line", "cosine": "down to 0 along a cosine"},
    )
    warm_up: float = setting(0.0, "share of the iterations over which both rates rise from 0", low=0, high=1)
    policy_loss: str = setting("ppo", "the policy's objective per token", choices=POLICY_LOSSES)
    clip: str = setting(
        "", "upper clip of ratios: at clip_low or at clip_high", choices=("symmetric", "higher"), empty=PRESET
    )
    clip_low: float = setting(0.2, "ratios are clipped at 1 minus this", low=0, below=1)
    clip_high: float = setting(0.28, "ratios are clipped at 1 plus this (clip-higher: DAPO, arXiv 2503.14476)", low=0)
    correction: str = setting(
        "",
        "correction for the rollouts' probabilities: weights pi_trainer / pi_rollout of tokens, before the step",
        choices={
            "none": "nothing",
            "clip": "clipped to correction_bounds (TIS)",
            "mask": "a token outside correction_bounds is left out (IcePop, arXiv 2510.18855)",
        },
        empty="clip with OpenRLHF, none in the local trainer, which samples from the weights that it trains",
    )
    correction_bounds: list[float] = setting([0.0, 2.0], "lower and upper bound of these weights (IcePop: 0.5 and 5)")
    aggregation: str = setting("token_mean", "aggregation of token terms into one loss", choices=AGGREGATIONS)
    kl_kind: str = setting(
        "",
        "estimate of the divergence from the starting model",
        choices={"none": "no KL term"} | KL_ESTIMATES,
        empty=PRESET,
    )
    kl_place: str = setting(
        "reward",
        "place of the KL term",
        choices={"reward": "a cost of each token", "loss": "part of the loss; needs kl_kind=k2 or k3"},
    )
    kl: float = setting(0.001, "weight of the KL term", low=0)
    entropy_bonus: float = setting(0.001, "weight of the policy's entropy", low=0, unit="per nat")
    entropy_smoothing: float = setting(
        0.0,
        "weight, within the entropy bonus, of the distance of an episode's entropy from 0.5 to 1.5 times the rollouts' "
        "mean over the iterations so far (EPO, arXiv 2509.22576); 0 for none",
        low=0,
    )
    credit: str = setting("trajectory", "unit of a critic's advantages", choices=CREDITS)
    gamma: float = setting(1.0, "discount between tokens", low=0, high=1)
    gamma_turn: float = setting(0.95, "discount between turns", low=0, high=1)
    gae_lambda: float = setting(1.0, "trace parameter of generalised advantage estimation", low=0, high=1)
    loss_tokens: str = setting("all", "tokens in the loss (VAGEN's M_loss)", choices=TOKEN_PARTS)
    advantage_tokens: str = setting("all", "tokens for a critic's advantages (VAGEN's M_adv)", choices=TOKEN_PARTS)
    overlong_buffer: int = setting(
        0,
        "tokens before turns.max_tokens_per_turn over which a turn's reward falls by 1 (overlong shaping: DAPO, arXiv "
        "2503.14476, section 3.4); 0 for none",
        low=0,
        unit="tokens",
    )
    budget_reward: str = setting(
        "",
        "reward of the stated budgets by the moves that the episode then took, the mean over its turns",
        choices={
            "score": "a proper score: 1 minus the interval score relative to the interval of every number",
            "bagen": "BAGEN's (arXiv 2606.00198): up to 1.8 for an interval that holds, 0.2 for a right impossible",
        },
        empty="none",
    )
    budget_weight: float = setting(1.0, "weight of this reward beside the game's", above=0, needs="budget_reward")
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this norm", above=0, high=inf)
    temperature: float = setting(1.0, "of sampling in rollouts", above=0, high=10)
    save_every: int = setting(1, "iterations between saved states", low=1, unit="iterations")

    def __post_init__(self) -> None:
        check_training(self)

    def rate_factor(self, iteration: int) -> float:
        """Factor of the learning rates at an iteration, counted from 0; always above 0."""
        warm_up = round(self.warm_up * self.iterations)
        if iteration < warm_up:
            return (iteration + 1) / (warm_up + 1)
        done = (iteration - warm_up) / max(1, self.iterations - warm_up)
        return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}[self.schedule]

    @property
    def critic(self) -> bool:
        """True if a critic estimates the advantages."""
        return ADVANTAGE_RULES[self.algo].critic

    @property
    def policy_loss_options(self) -> dict[str, float]:
        """The options of the policy loss's function."""
        bounds = {"clip_low": self.clip_low, "clip_high": self.upper_clip}
        return {name: bounds[name] for name in POLICY_LOSSES[self.policy_loss].clips}

    @property
    def correction_options(self) -> dict[str, Any]:
        """The options of ``algo.mismatch_weights`` if there is a correction."""
        return {"mode": self.correction or "clip", "bounds": tuple(self.correction_bounds)}

    @property
    def filter_rule(self) -> str:
        """The filter with the preset resolved."""
        return self.filter or ("top" if self.starpo_s else "none")

    @property
    def kl_estimate(self) -> str:
        """The estimate of the divergence with the preset resolved; none if its weight is 0."""
        return (self.kl_kind or ("none" if self.starpo_s else "k1")) if self.kl else "none"

    @property
    def upper_clip(self) -> float:
        """The upper clip of the ratio minus 1, with the preset resolved."""
        return self.clip_high if self.clips_higher else self.clip_low

    @property
    def clips_higher(self) -> bool:
        """True if the clip has a separate upper bound, with the preset resolved."""
        return self.clip == "higher" if self.clip else self.starpo_s
