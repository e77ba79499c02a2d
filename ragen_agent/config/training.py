"""The settings of reinforcement: what is sampled, filtered, compared and minimised."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

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
from ragen_gym.core.settings import check_settings, declared, setting

__all__ = ["Training", "check_bounds"]

PRESET = "as training.starpo_s says"


@dataclass(frozen=True)
class Training:
    """Reinforcement learning by StarPO-S, or by StarPO with ``starpo_s = false`` (RAGEN, arXiv 2504.20073, section 3).

    Each iteration plays ``groups`` levels with ``group_size`` episodes each. StarPO-S keeps the share ``keep`` of the
    groups with the largest return std, clips ratios to [1 - clip_low, 1 + clip_high] and has no KL term; StarPO keeps
    all groups, clips to 1 -+ clip_low and subtracts ``kl`` times the k1 estimate of the divergence from the starting
    model. Each of the three parts may be chosen by itself: ``filter``, ``clip`` and ``kl_kind``.
    """

    algo: str = setting("grpo", "how returns become advantages", choices=ADVANTAGE_RULES)
    starpo_s: bool = setting(True, "the preset of filter, clip and kl_kind: StarPO-S, or StarPO where false")
    iterations: int = setting(60, "rollouts and updates of the whole run", low=0)
    groups: int = setting(32, "levels played in an iteration", low=1, unit="levels")
    group_size: int = setting(8, "episodes on each of these levels", low=1, unit="episodes")
    shared_noise: bool = setting(
        False, "whether the episodes of a group share the transition noise, as in the paper's code, or only the level"
    )
    groups_by: str = setting("level", "what is compared within a group", choices=GROUPINGS)
    step_weight: float = setting(
        1.0,
        "with groups_by=state and branch: weight of a turn's advantage in its state, next to its episode's (GiGPO)",
        low=0,
    )
    branches: int = setting(3, "with groups_by=branch: how many branch off each base episode", low=1, unit="episodes")
    branch_at: str = setting(
        "pivot",
        "with groups_by=branch: the turn that branches begin with",
        choices={"pivot": "where the level was lost, by exact values", "entropy": "where the reply was most uncertain"},
    )
    filter: str = setting("", "which groups are trained on", choices=FILTER_RULES, empty=PRESET)
    filter_by: str = setting(
        "reward", "the number of an episode that the filter compares", choices=("reward", "entropy", "length")
    )
    filter_statistic: str = setting(
        "std", "how the filter measures how much a group's episodes differ", choices=("std", "variance")
    )
    keep: float = setting(0.25, "the filter's amount: the share, mass or part of the groups", above=0, high=1)
    refills: int = setting(
        0,
        "rounds of further levels at most, in place of those whose episodes all earn the same, which are left out "
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
        "how both rates go on after the warm-up, by the iteration",
        choices={"constant": "unchanged", "linear": "down to 0 along a line", "cosine": "down to 0 along a cosine"},
    )
    warm_up: float = setting(0.0, "share of the iterations over which both rates rise from 0", low=0, high=1)
    policy_loss: str = setting("ppo", "what the policy's step goes down, of each token", choices=POLICY_LOSSES)
    clip: str = setting(
        "", "how ratios are clipped above 1: at clip_low or at clip_high", choices=("symmetric", "higher"), empty=PRESET
    )
    clip_low: float = setting(0.2, "ratios are clipped at 1 minus this", low=0, below=1)
    clip_high: float = setting(0.28, "ratios are clipped at 1 plus this (clip-higher: DAPO, arXiv 2503.14476)", low=0)
    dual_clip: float = setting(
        0.0, "bound above 1 on the ratio where the advantage is negative (arXiv 1912.09729); 0 for none", low=0
    )
    sapo_temperatures: list[float] = setting(
        [1.0, 1.05], "policy_loss sapo: of the gate where the advantage is positive, and where not; above 0"
    )
    cov_share: float = setting(
        0.002,
        "policy_loss clip_cov and kl_cov: share of the tokens that they restrain, one at least (the paper: 0.0002 and "
        "0.002)",
        above=0,
        high=1,
    )
    cov_band: list[float] = setting([1.0, 5.0], "policy_loss clip_cov: covariances of the tokens that it draws from")
    cov_kl: float = setting(1.0, "policy_loss kl_cov: weight of its penalty", low=0)
    correction: str = setting(
        "",
        "what the correction for the rollouts' probabilities, pi_trainer / pi_rollout before the step, is about "
        "(TIS, IcePop)",
        choices={
            "none": "nothing",
            "token": "each token",
            "sequence": "each episode's mean; needs correction_mode=mask",
        },
        empty="token with OpenRLHF, none in the local trainer, which samples from the weights that it trains",
    )
    correction_mode: str = setting(
        "clip",
        "what becomes of a token outside correction_bounds",
        choices={"clip": "its weight is the bound (TIS)", "mask": "it is left out (IcePop, arXiv 2510.18855)"},
    )
    correction_gating: str = setting(
        "ratio",
        "what correction_bounds are about, with p = pi_rollout and q = pi_trainer",
        choices={
            "ratio": "q / p",
            "binary_kl": "p log(p / q) + (1 - p) log((1 - p) / (1 - q)); needs correction_mode=mask",
            "tv": "|p - q|; needs correction_mode=mask",
        },
    )
    correction_bounds: list[float] = setting(
        [0.0, 2.0], "lower and upper bound of the correction (IcePop: 0.5 and 5); the lower is 0 of a divergence"
    )
    aggregation: str = setting("token_mean", "how the terms of many tokens become one loss", choices=AGGREGATIONS)
    kl_kind: str = setting(
        "",
        "estimate of the divergence from the starting model",
        choices={"none": "no KL term"} | KL_ESTIMATES,
        empty=PRESET,
    )
    kl_place: str = setting(
        "reward", "whether the KL term is a cost of each token or part of the loss", choices=("reward", "loss")
    )
    kl: float = setting(0.001, "weight of the KL term", low=0)
    entropy_bonus: float = setting(0.001, "weight of the policy's entropy", low=0, unit="per nat")
    entropy_smoothing: float = setting(
        0.0,
        "weight, within the entropy bonus, of how far an episode's entropy is outside entropy_band (EPO, arXiv "
        "2509.22576); 0 for none",
        low=0,
    )
    entropy_band: list[float] = setting(
        [0.5, 1.5],
        "the band of entropy_smoothing, in parts of the rollouts' mean entropy over the iterations so far",
        needs="entropy_smoothing",
    )
    entropy_schedule: str = setting(
        "constant",
        "how the weight entropy_smoothing goes on over the iterations",
        choices={
            "constant": "unchanged",
            "epo": "falling slowly to 0.83 of it by the half, then fast to 0.04 (EPO's code)",
        },
        needs="entropy_smoothing",
    )
    credit: str = setting("trajectory", "over what a critic's advantages are estimated", choices=CREDITS)
    gamma: float = setting(1.0, "discount between tokens", low=0, high=1)
    gamma_turn: float = setting(0.95, "discount between turns", low=0, high=1)
    gae_lambda: float = setting(1.0, "trace parameter of generalised advantage estimation", low=0, high=1)
    loss_tokens: str = setting("all", "tokens in the loss (VAGEN's M_loss)", choices=TOKEN_PARTS)
    advantage_tokens: str = setting(
        "all", "tokens that a critic's advantages are estimated over (VAGEN's M_adv)", choices=TOKEN_PARTS
    )
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
    overlong_penalty: float = setting(1.0, "what a reply of that length costs", low=0, needs="overlong_buffer")
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this norm", above=0, high=inf)
    temperature: float = setting(1.0, "of sampling in rollouts", above=0, high=10)
    save_every: int = setting(1, "iterations between saved states", low=1, unit="iterations")

    def __post_init__(self) -> None:
        check_settings(self, "training.")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"training.dual_clip is {self.dual_clip}; it must be 0 (none) or above 1.")
        self._check_policy_loss()
        self._check_correction()
        self._check_unread()
        check_bounds("training.entropy_band", self.entropy_band, "[0.5, 1.5]")
        if self.entropy_smoothing and not self.entropy_bonus:
            raise ValueError(
                f"training.entropy_smoothing is {self.entropy_smoothing:g}, a part of the entropy bonus, whose weight "
                "training.entropy_bonus is 0; raise it, for example to 0.001, or use training.entropy_smoothing=0."
            )
        if self.group_size < 2:
            if ADVANTAGE_RULES[self.algo].compares_groups:
                single = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if not rule.compares_groups)
                raise ValueError(
                    f"training.group_size is {self.group_size}; it must be at least 2, since {self.algo} compares the "
                    f"episodes of a group. With 1 use one of {single}."
                )
            if FILTER_RULES[self.filter_rule].ranks_groups:
                raise ValueError(
                    f"training.group_size is {self.group_size}; it must be at least 2, since the filter ranks groups "
                    "by how much their episodes differ. With 1 use training.filter=none."
                )
            if self.refills:
                raise ValueError(
                    f"training.group_size is {self.group_size}; it must be at least 2, since training.refills replaces "
                    "levels whose episodes all earn the same. With 1 use training.refills=0."
                )
        if GROUPINGS[self.groups_by].states and not ADVANTAGE_RULES[self.algo].compares_groups:
            rules = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if rule.compares_groups)
            raise ValueError(
                f"training.groups_by is {self.groups_by!r}, which compares turns as training.algo compares the "
                f"episodes of a group, and {self.algo} compares none; use one of {rules}, or training.groups_by=level."
            )
        if GROUPINGS[self.groups_by].branches and self.group_size % (1 + self.branches):
            raise ValueError(
                f"training.group_size is {self.group_size}; with groups_by={self.groups_by} it must be a multiple of "
                f"{1 + self.branches}: a base episode and its {self.branches} branches (training.branches)."
            )
        if self.credit != "trajectory" and not self.critic:
            raise ValueError(
                f"training.credit is {self.credit!r}, which needs a critic's values; use training.algo=ppo, or "
                "training.credit=trajectory."
            )
        loss, estimated = self.loss_tokens, self.advantage_tokens
        if estimated != "all" and not self.critic:
            raise ValueError(
                f"training.advantage_tokens is {estimated!r}, which needs a critic's values; use training.algo=ppo, or "
                "training.advantage_tokens=all (training.loss_tokens restricts the loss without a critic too)."
            )
        if "all" not in (loss, estimated) and loss != estimated:
            raise ValueError(
                f"training.loss_tokens is {loss!r} and training.advantage_tokens is {estimated!r}, which have no token "
                "in common: no token in the loss would have an advantage. Make them equal, or one of them all."
            )

    def _check_policy_loss(self) -> None:
        rule = self.policy_loss
        if POLICY_LOSSES[rule].sequences and self.aggregation != "sequence_mean":
            raise ValueError(
                f"training.policy_loss is {rule!r}, whose terms are of whole episodes, which weigh alike; "
                f"training.aggregation is {self.aggregation!r}: make it sequence_mean."
            )
        if self.dual_clip and "dual_clip" not in POLICY_LOSSES[rule].options:
            have = ", ".join(name for name, row in POLICY_LOSSES.items() if "dual_clip" in row.options)
            raise ValueError(
                f"training.dual_clip is {self.dual_clip:g}, but the policy loss {rule!r} has none; use "
                f"training.dual_clip=0, or one of {have}."
            )
        for name, asked, plain in (
            ("groups_by", GROUPINGS[self.groups_by].states, "level"),
            ("credit", CREDITS[self.credit].recursion != "tokens", "trajectory"),
        ):
            if asked and POLICY_LOSSES[rule].sequences:
                raise ValueError(
                    f"training.policy_loss is {rule!r}, with which all tokens of an episode learn from the mean of its "
                    f"advantages, so those of single turns, which training.{name}={getattr(self, name)} estimates, "
                    f"would be lost; use training.policy_loss=ppo, or training.{name}={plain}."
                )
        temperatures = self.sapo_temperatures
        if len(temperatures) != 2 or not all(_is_number(each) and 0 < each < inf for each in temperatures):
            raise ValueError(
                f"training.sapo_temperatures is {temperatures}; give two numbers above 0, such as [1.0, 1.05]."
            )
        check_bounds("training.cov_band", self.cov_band, "[1.0, 5.0]")

    def _check_correction(self) -> None:
        check_bounds("training.correction_bounds", self.correction_bounds, "[0.0, 2.0]")
        level, mode, gating = self.correction, self.correction_mode, self.correction_gating
        if mode == "clip" and (level == "sequence" or gating != "ratio"):
            raise ValueError(
                "training.correction_mode is 'clip', which bounds the ratio of a token; with "
                f"training.correction={level or 'token'} and training.correction_gating={gating} use "
                "training.correction_mode=mask."
            )
        low, high = self.correction_bounds
        if gating == "ratio" and not low <= 1 <= high:
            raise ValueError(
                f"training.correction_bounds is {self.correction_bounds}, outside of which lies 1, the ratio of equal "
                "probabilities; make the lower bound at most 1 and the upper at least 1, such as [0.5, 5.0]."
            )
        if gating != "ratio" and low:
            raise ValueError(
                f"training.correction_bounds is {self.correction_bounds}, but {gating} is at least 0 and bounded from "
                "above alone; make the lower bound 0, such as [0.0, 0.01]."
            )
        if gating == "tv" and high >= 1:
            raise ValueError(
                f"training.correction_bounds is {self.correction_bounds}, but tv is at most 1, so no token would be "
                "outside; make the upper bound smaller, such as [0.0, 0.1]."
            )
        if level in ("token", "sequence") and POLICY_LOSSES[self.policy_loss].sequences:
            raise ValueError(
                f"training.correction is {level!r}, but the policy loss {self.policy_loss!r} compares with the policy "
                "that sampled as it is, so there is nothing to correct; use training.correction=none."
            )
        if level in ("token", "sequence") and self.replay:
            raise ValueError(
                f"training.correction is {level!r} and training.replay is {self.replay}: a replayed token is compared "
                "with the policy that sampled it, so there is nothing to correct. Use one of the two."
            )

    def _check_unread(self) -> None:
        """Raise a ValueError for a setting that differs from its default, but that no choice made elsewhere reads."""
        clip = "higher" if self._clips_higher else "symmetric"
        kl_kind = self.kl_kind or ("none" if self.starpo_s else "k1")
        branching = [name for name, row in GROUPINGS.items() if row.branches]
        by_state = [name for name, row in GROUPINGS.items() if row.states]
        ranking = [name for name, row in FILTER_RULES.items() if row.ranks_groups]
        lower = ["clip_low", *(["upper_clip"] if clip == "symmetric" else [])]
        for name, choice, made, readers in (
            ("branches", "groups_by", self.groups_by, branching),
            ("branch_at", "groups_by", self.groups_by, branching),
            ("step_weight", "groups_by", self.groups_by, by_state),
            ("filter_by", "filter", self.filter_rule, ranking),
            ("filter_statistic", "filter", self.filter_rule, ranking),
            ("clip_low", "policy_loss", self.policy_loss, _losses_with(*lower)),
            ("clip_high", "policy_loss", self.policy_loss, _losses_with("upper_clip")),
            ("clip_high", "clip", clip, ["higher"]),
            *((name, "policy_loss", self.policy_loss, _losses_with(name)) for name in _OPTIONS_OF_LOSSES),
            *((name, "kl_kind", kl_kind, [*KL_ESTIMATES]) for name in ("kl", "kl_place") if self.kl),
        ):
            value, default = getattr(self, name), declared(type(self))[name].default
            if value != default and made not in readers:
                others = f" ({', '.join(readers[1:])})" if readers[1:] else ""
                raise ValueError(
                    f"training.{name} is {value!r}, which has no effect with training.{choice}={made}; leave it at "
                    f"{default!r}, or use training.{choice}={readers[0]}{others}."
                )

    @property
    def critic(self) -> bool:
        """Whether a critic estimates the advantages."""
        return ADVANTAGE_RULES[self.algo].critic

    @property
    def policy_loss_options(self) -> dict[str, Any]:
        """The options of the policy loss's function."""
        return {option: getattr(self, name) for option, name in POLICY_LOSSES[self.policy_loss].options.items()}

    @property
    def correction_options(self) -> dict[str, Any]:
        """The options of ``algo.mismatch_weights`` where there is a correction."""
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
        """The estimate of the divergence with the preset resolved; none where its weight is 0."""
        return (self.kl_kind or ("none" if self.starpo_s else "k1")) if self.kl else "none"

    @property
    def upper_clip(self) -> float:
        """How far the ratio may rise above 1, with the preset resolved."""
        return self.clip_high if self._clips_higher else self.clip_low

    @property
    def _clips_higher(self) -> bool:
        return self.clip == "higher" if self.clip else self.starpo_s


#: Settings that are options of policy losses and of nothing else.
_OPTIONS_OF_LOSSES = ("sapo_temperatures", "cov_share", "cov_band", "cov_kl")


def _losses_with(*options: str) -> list[str]:
    """The policy losses that have one of these options, by the property of ``Training`` that it is."""
    return [name for name, row in POLICY_LOSSES.items() if {*options} & {*row.options.values()}]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_bounds(name: str, bounds: list[float], example: str) -> None:
    """Raise a ValueError unless these are two ascending finite numbers from 0 on."""
    if len(bounds) != 2 or not all(map(_is_number, bounds)) or not 0 <= bounds[0] < bounds[1] < inf:
        raise ValueError(f"{name} is {bounds}; give a lower and a higher bound, at least 0: {example}.")
