"""The algorithms as pure functions of tensors: no state, no model, no tokenizer.

They cover StarPO and StarPO-S (RAGEN, arXiv 2504.20073; RAGEN-2, arXiv 2604.06268) and TRICO (VAGEN): returns
compared within groups (``advantages``), token advantages with a critic and token masks (``gae``), the
choice of groups to learn from (``filters``), the losses (``losses``), their regularisers (``regularisers``), and
loss aggregation (``aggregation``). A *row* is one episode's token sequence, ``sampled`` marks the tokens that the
policy sampled, and a *group* is the set of episodes that share one level. Everything runs on the device of its
arguments. Shapes that do not fit, unknown names and numbers out of range are a ``ValueError``.

| method | advantages | loss |
|---|---|---|
| PPO with critic | ``gae``, ``turn_wise_gae`` or ``bi_level_gae``, then ``whiten`` | ``policy_loss``, ``value_loss`` |
| GRPO | ``normalised(..., "grpo")``, ``broadcast_to_tokens`` | ``policy_loss``; as published ``how="sequence_mean"`` |
| GiGPO | ``normalised(...)`` + omega ``step_advantages``, ``turns_to_tokens`` | ``policy_loss`` |
| HGPO | ``context_advantages(..., before=2)``, ``turns_to_tokens`` | ``policy_loss`` |
| rollout tree | ``tree_advantages``, ``turns_to_tokens`` | ``policy_loss`` |
| Dr. GRPO | ``normalised(..., "dr_grpo")`` | ``policy_loss(..., how="constant", length=...)`` |
| RLOO, BRPO, ARPO, asymmetric clip | ``normalised(..., name)``, a mixture with ``games=`` | ``policy_loss`` |
| REINFORCE with baseline | ``normalised(..., "reinforce")`` | ``policy_loss(..., how="sequence_sum")``, one update |
| clip-higher | any | ``policy_loss(..., clip_high=0.28)`` |
| DAPO | ``normalised(..., "grpo")``, ``length_penalty`` in the rewards | the same, only groups whose returns differ |
| GSPO, CISPO, SAPO, Clip-Cov, KL-Cov | any | ``policy_loss(..., name)``; GSPO with ``how="sequence_mean"`` |
| TIS, IcePop | any | ``policy_loss(..., weights=mismatch_weights(...)[0])`` |
| EPO | any | ``policy_loss`` and the bonus ``entropy - beta * entropy_deviation(...)`` |
| RAGEN-2's filter | any | of groups that ``keep_groups(group_variance(returns), "top_p", 0.9)`` leaves |
| RAGEN-2's released runs | any | the same with ``keep_groups(group_std(returns), "softmax_top_p", 0.9)`` |
"""

from ragen_agent.algo.advantages import (
    asymmetric_clip,
    broadcast_to_tokens,
    context_advantages,
    discounted_returns,
    group_normalised,
    leave_one_out,
    length_penalty,
    length_weights,
    less_mean,
    mean_std,
    normalised,
    step_advantages,
    tree_advantages,
    turns_to_tokens,
    whiten,
)
from ragen_agent.algo.aggregation import aggregate, loss_count, masked_mean
from ragen_agent.algo.filters import (
    MIN_UNCERTAINTY,
    group_std,
    group_variance,
    keep_groups,
)
from ragen_agent.algo.gae import (
    bi_level_gae,
    critic_advantages,
    gae,
    narrowed_turns,
    part_mask,
    rewards_at,
    shaped_rewards,
    turn_end_mask,
    turn_wise_gae,
)
from ragen_agent.algo.losses import (
    PolicyStats,
    TokenTerms,
    log_ratio,
    mismatch_weights,
    policy_loss,
    token_terms,
    value_loss,
)
from ragen_agent.algo.regularisers import entropy_deviation, kl_loss, kl_penalty

__all__ = [
    "MIN_UNCERTAINTY",
    "PolicyStats",
    "TokenTerms",
    "aggregate",
    "asymmetric_clip",
    "bi_level_gae",
    "broadcast_to_tokens",
    "context_advantages",
    "critic_advantages",
    "discounted_returns",
    "entropy_deviation",
    "gae",
    "group_normalised",
    "group_std",
    "group_variance",
    "keep_groups",
    "kl_loss",
    "kl_penalty",
    "leave_one_out",
    "length_penalty",
    "length_weights",
    "less_mean",
    "log_ratio",
    "loss_count",
    "masked_mean",
    "mean_std",
    "mismatch_weights",
    "narrowed_turns",
    "normalised",
    "part_mask",
    "policy_loss",
    "rewards_at",
    "shaped_rewards",
    "step_advantages",
    "token_terms",
    "tree_advantages",
    "turn_end_mask",
    "turn_wise_gae",
    "turns_to_tokens",
    "value_loss",
    "whiten",
]
