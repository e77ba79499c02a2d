"""The algorithms as pure functions of tensors: no state, no model, no tokenizer.

Advantages (`advantages`), the choice of groups to learn from (`filters`) and the losses (`losses`) of
StarPO and StarPO-S (RAGEN, arXiv 2504.20073). A *row* is one episode's token sequence, `sampled` says which
of its tokens the policy sampled, and a *group* is the set of episodes that share one level.
"""

from ragen_agent.algo.advantages import broadcast_to_tokens, gae, group_normalised, whiten
from ragen_agent.algo.filters import keep_random, keep_top, spread
from ragen_agent.algo.losses import entropy_of, kl_penalty, masked_mean, policy_loss, value_loss

__all__ = [
    "broadcast_to_tokens",
    "entropy_of",
    "gae",
    "group_normalised",
    "keep_random",
    "keep_top",
    "kl_penalty",
    "masked_mean",
    "policy_loss",
    "spread",
    "value_loss",
    "whiten",
]
