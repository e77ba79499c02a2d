"""Settings of reinforcement learning: sampling, filtering, advantages and losses."""

from __future__ import annotations

from math import cos, inf, pi
from typing import Any

from pydantic.dataclasses import dataclass

from ragen_agent.config.algorithms import (
    ADVANTAGE_RULES,
    AGGREGATIONS,
    CREDITS,
    FILTER_RULES,
    FORMAT_REWARDS,
    GROUPINGS,
    KL_ESTIMATES,
    POLICY_LOSSES,
    TOKEN_PARTS,
)
from ragen_agent.config.config_checks import check_training
from ragen_agent.config.table import Table
from ragen_gym.core.settings import setting

__all__ = ["Training"]

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
    step_weight: float = setting(
        1.0,
        "with groups_by=state and branch: weight of a turn's advantage in its state, next to its episode's (GiGPO)",
        low=0,
    )
    branches: int = setting(3, "with groups_by=branch: number of branches of each base episode", low=1, unit="episodes")
    branch_at: str = setting(
        "pivot",
        "with groups_by=branch: the turn that branches begin with",
        choices={"pivot": "where the level was lost, by exact values", "entropy": "where the reply was most uncertain"},
    )
    filter: str = setting("", "rule that selects the groups to train on", choices=FILTER_RULES, empty=PRESET)
    filter_by: str = setting(
        "reward", "the number of an episode that the filter compares", choices=("reward", "entropy", "length")
    )
    filter_statistic: str = setting(
        "std", "the filter's measure of the differences within a group", choices=("std", "variance")
    )
    keep: float = setting(0.25, "the filter's amount: the share, mass or part of the groups", above=0, high=1)
    refills: int = setting(
        0,
        "maximum rounds of further levels that replace levels whose episodes all earn the same "
        "(dynamic sampling: DAPO, arXiv 2503.14476, section 3.2)",
        low=0,
        unit="rounds",
    )
    reweight: float = setting(0.0, "weigh groups by this power of their return std; 0 weighs them alike", low=0)
    minibatch: int = setting(64, "episodes in an optimiser step", low=1, unit="episodes")
    updates: int = setting(1, "passes over one batch of rollouts (Online-k)", low=1)
    replay: int = setting(0, "earlier iterations whose kept episodes are trained on again", low=0, unit="iterations")
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
    dual_clip: float = setting(
        0.0, "bound above 1 on the ratio if the advantage is negative (arXiv 1912.09729); 0 for none", low=0
    )
    sapo_temperatures: list[float] = setting(
        [1.0, 1.05], "policy_loss sapo: temperatures of the gate for positive and other advantages; above 0"
    )
    cov_share: float = setting(
        0.002,
        "policy_loss clip_cov and kl_cov: share of restrained tokens, at least one token (the paper: 0.0002 and 0.002)",
        above=0,
        high=1,
    )
    cov_band: list[float] = setting([1.0, 5.0], "policy_loss clip_cov: covariance range of the drawn tokens")
    cov_kl: float = setting(1.0, "policy_loss kl_cov: weight of its penalty", low=0)
    correction: str = setting(
        "",
        "unit of the correction for the rollouts' probabilities, pi_trainer / pi_rollout before the step (TIS, IcePop)",
        choices={
            "none": "nothing",
            "token": "each token",
            "sequence": "each episode's mean over its tokens in the loss; needs correction_mode=mask",
        },
        empty="token with OpenRLHF, none in the local trainer, which samples from the weights that it trains",
    )
    correction_mode: str = setting(
        "clip",
        "treatment of a token outside correction_bounds",
        choices={"clip": "its weight is the bound (TIS)", "mask": "it is left out (IcePop, arXiv 2510.18855)"},
    )
    correction_gating: str = setting(
        "ratio",
        "quantity that correction_bounds bound, with p = pi_rollout and q = pi_trainer",
        choices={
            "ratio": "q / p",
            "binary_kl": "p log(p / q) + (1 - p) log((1 - p) / (1 - q)); needs correction_mode=mask",
            "tv": "|p - q|; needs correction_mode=mask",
        },
    )
    correction_bounds: list[float] = setting(
        [0.0, 2.0], "lower and upper bound of the correction (IcePop: 0.5 and 5); the lower is 0 for a divergence"
    )
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
        "weight, within the entropy bonus, of the distance of an episode's entropy from entropy_band (EPO, arXiv "
        "2509.22576); 0 for none",
        low=0,
    )
    entropy_band: list[float] = setting(
        [0.5, 1.5],
        "the band of entropy_smoothing, relative to the rollouts' mean entropy over the iterations so far",
        needs="entropy_smoothing",
    )
    entropy_schedule: str = setting(
        "constant",
        "schedule of the weight entropy_smoothing",
        choices={
            "constant": "unchanged",
            "epo": "falls slowly to 0.83 of it by half-time, then fast to 0.04 (EPO's code)",
        },
        needs="entropy_smoothing",
    )
    credit: str = setting("trajectory", "unit of a critic's advantages", choices=CREDITS)
    gamma: float = setting(1.0, "discount between tokens", low=0, high=1)
    gamma_turn: float = setting(0.95, "discount between turns", low=0, high=1)
    gae_lambda: float = setting(1.0, "trace parameter of generalised advantage estimation", low=0, high=1)
    loss_tokens: str = setting("all", "tokens in the loss (VAGEN's M_loss)", choices=TOKEN_PARTS)
    advantage_tokens: str = setting("all", "tokens for a critic's advantages (VAGEN's M_adv)", choices=TOKEN_PARTS)
    format_reward: str = setting(
        "none", "reward of a turn's form, added to the game's and to turns.format_penalty", choices=FORMAT_REWARDS
    )
    overlong_buffer: int = setting(
        0,
        "tokens before turns.max_tokens_per_turn over which a turn's reward falls by overlong_penalty (overlong "
        "shaping: DAPO, arXiv 2503.14476, section 3.4); 0 for none",
        low=0,
        unit="tokens",
    )
    overlong_penalty: float = setting(1.0, "cost of a reply at the length limit", low=0, needs="overlong_buffer")
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
    def policy_loss_options(self) -> dict[str, Any]:
        """The options of the policy loss's function."""
        return {option: getattr(self, name) for option, name in POLICY_LOSSES[self.policy_loss].options.items()}

    @property
    def correction_options(self) -> dict[str, Any]:
        """The options of ``algo.mismatch_weights`` if there is a correction."""
        return {
            "level": self.correction or "token",
            "mode": self.correction_mode,
            "gating": self.correction_gating,
            "bounds": (self.correction_bounds[0], self.correction_bounds[1]),
        }

    @property
    def entropy_limits(self) -> tuple[float, float]:
        """The entropy band as a pair."""
        return self.entropy_band[0], self.entropy_band[1]

    @property
    def dual_bound(self) -> float | None:
        """The bound of the dual clip, or None."""
        return self.dual_clip or None

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
