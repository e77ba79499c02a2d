"""The rules that training chooses from by name, one row each, with the traits that planning and checks read.

A row is the only place where a rule is declared: the choices of its setting, the help, the plan of a run and the
tables of ``ragen_agent.algo`` are derived from it. Functions are named as ``module:name`` and imported when they are
used, so that settings can be read without torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FilterRule:
    """Rule that chooses the groups of episodes to train on."""

    doc: str  # what is kept
    function: (
        str  # module:name of f(uncertainty, amount) -> Tensor: float (groups,) and training.keep to bool (groups,)
    )
    #: whether it keeps the share training.keep of all groups; else how many depends on the returns
    fixed_share: bool = False
    ranks_groups: bool = True  # whether it reads how much the episodes of a group differ, so that a group needs two
    random: bool = False  # whether its function takes a torch.Generator as third argument
    orders: bool = False  # whether only the order of the groups counts, not by how much they differ
    counts: bool = False  # whether training.keep is a number of groups instead of a part of something

    def planned_groups(self, groups: int, amount: float) -> int:
        """Most groups that an iteration trains on."""
        if self.counts:
            return min(groups, int(amount))
        return max(1, int(amount * groups + 1e-9)) if self.fixed_share else groups


@dataclass(frozen=True)
class FilterStatistic:
    """Number by which a filter ranks the groups."""

    doc: str
    function: str  # module:name of f(returns, counted) -> Tensor: (groups, group size) each to float (groups,)
    order_only: bool = False  # whether the numbers are places in an order, which have no sum and no ratio


@dataclass(frozen=True)
class AdvantageRule:
    """Rule that turns an episode's return into its advantage."""

    doc: str  # what it does, and its paper
    across: str = ""  # what an episode is compared with: "group", "game" or "batch"; empty: nothing
    function: str = ""  # module:name of f(returns, algo.advantages.Peers) -> Tensor, where episodes are compared
    critic: bool = False  # whether a critic estimates the advantages
    divides: bool = False  # whether it divides by the std of what an episode is compared with

    @property
    def divides_by_group_std(self) -> bool:
        """True if each group is divided by its own std, so that groups with a small one weigh more."""
        return self.divides and self.compares_groups

    @property
    def compares_groups(self) -> bool:
        """True if the episodes of a group are compared with each other, so that a group needs two."""
        return self.across == "group"


@dataclass(frozen=True)
class AggregationRule:
    """Rule that turns the terms of a minibatch's tokens into one number."""

    doc: str  # what it does, and its paper
    #: what the sum is divided by: "tokens" in the loss, "rows" of the minibatch, or "rows with tokens" in the loss
    divisor: str


@dataclass(frozen=True)
class CreditRule:
    """Over what a critic's advantages are estimated, from which rewards."""

    doc: str  # what it does, and its paper
    recursion: str  # "tokens" of the episode, "turns", whose tokens share an advantage, or "both", one after the other
    #: whether the turns' rewards are shaped by the exact values of the states, which the environment must then give
    shaped: bool = False


@dataclass(frozen=True)
class Grouping:
    """Rule of what is compared within a group of episodes on one level."""

    doc: str  # what it does, and its paper
    states: bool = False  # whether turns that begin in the same state are compared too
    #: most states before it that a turn's state is compared together with; above 0 the groups of turns replace the
    #: episode's own advantage
    before: int = 0
    tree: bool = False  # whether the episodes branch from each other, and the branches of a turn are compared

    @property
    def turns(self) -> bool:
        """True if each turn has an advantage of its own."""
        return self.states or self.tree


@dataclass(frozen=True)
class PolicyLoss:
    """Loss at each token of a step."""

    doc: str  # its formula and paper
    function: str  # module:name of f(log_probs, old_log_probs, advantages, mask, **options) -> algo.TokenTerms
    clips: tuple[str, ...] = ()  # the bounds of the ratio among its options: clip_low, clip_high
    sequences: bool = False  # whether its terms are of whole rows, which are averaged: training.aggregation
    batch_statistics: bool = False  # whether it compares the tokens of a minibatch, which then is not divided
    random: bool = False  # whether its function takes a torch.Generator, as ``generator``


_FILTERS = "ragen_agent.algo.filters:"

FILTER_RULES: dict[str, FilterRule] = {
    "none": FilterRule("every group", f"{_FILTERS}keep_all", ranks_groups=False),
    "top": FilterRule(
        "the share of the groups with the largest return std (StarPO-S)",
        f"{_FILTERS}keep_top",
        fixed_share=True,
        orders=True,
    ),
    "top_k": FilterRule(
        "this number of groups, those with the largest return std (RAGEN's code: top_k_abs)",
        f"{_FILTERS}keep_top_k",
        fixed_share=True,
        orders=True,
        counts=True,
    ),
    "top_p": FilterRule(
        "the fewest groups that hold this share of the sum of return stds (RAGEN-2: 0.9, of variances)",
        f"{_FILTERS}keep_top_p",
    ),
    "softmax_top_p": FilterRule(
        "the fewest groups that hold this share of a softmax of the return stds, most of them (RAGEN-2's runs: 0.9)",
        f"{_FILTERS}keep_softmax_top_p",
    ),
    "min_p": FilterRule("the groups with at least this part of the largest return std", f"{_FILTERS}keep_min_p"),
    "reverse": FilterRule(
        "the share of the groups with the smallest return std above 0",
        f"{_FILTERS}keep_bottom",
        fixed_share=True,
        orders=True,
    ),
    "random": FilterRule(
        "the share of the groups, drawn at random",
        f"{_FILTERS}keep_random",
        fixed_share=True,
        ranks_groups=False,
        random=True,
    ),
    "random_std": FilterRule(
        "as many as top keeps, drawn at random from the groups whose returns differ",
        f"{_FILTERS}keep_random_std",
        fixed_share=True,
        random=True,
    ),
}

FILTER_STATISTICS: dict[str, FilterStatistic] = {
    "std": FilterStatistic("the standard deviation of the returns", f"{_FILTERS}group_std"),
    "variance": FilterStatistic("its square (RAGEN-2)", f"{_FILTERS}group_variance"),
    "mean": FilterStatistic(
        "the mean return, of groups whose returns differ (RAGEN's code: reward)",
        f"{_FILTERS}group_mean_order",
        order_only=True,
    ),
}

#: With s the kept share of the groups: a filter also changes how far the policy moves against the regularisers.
FILTER_LOSS_SCALINGS: dict[str, str] = {
    "none": "not at all",
    "linear": "times s: with episodes of equal length, as if dropped groups were kept without advantages",
    "sqrt": "times the square root of s",
}

_ADVANTAGES = "ragen_agent.algo.advantages:"

ADVANTAGE_RULES: dict[str, AdvantageRule] = {
    "grpo": AdvantageRule(
        "(R - mean) / std of the group (DeepSeekMath, arXiv 2402.03300, section 4.1)",
        "group",
        f"{_ADVANTAGES}mean_std",
        divides=True,
    ),
    "ppo": AdvantageRule("generalised advantage estimation with a critic (arXiv 1707.06347, 1506.02438)", critic=True),
    # Dividing by the std favours groups that are nearly decided.
    "dr_grpo": AdvantageRule(
        "R - mean of the group (arXiv 2503.20783, section 3.2)", "group", f"{_ADVANTAGES}less_mean"
    ),
    # One bad episode in a good group weighs at most 1.
    "asymmetric_clip": AdvantageRule(
        "as grpo, clamped to [-1, 3] (RAGEN's code, reward normalisation asym_clip)",
        "group",
        f"{_ADVANTAGES}asymmetric_clip",
        divides=True,
    ),
    # An unbiased baseline for each episode.
    "rloo": AdvantageRule(
        "R - mean of the rest of the group (arXiv 2402.14740, section 2.2)", "group", f"{_ADVANTAGES}leave_one_out"
    ),
    "brpo": AdvantageRule(
        "(R - mean) / std of the batch (RAGEN's BRPO)", "batch", f"{_ADVANTAGES}mean_std", divides=True
    ),
    # In a mixture the widest returns would set the scale of all games.
    "brpo_per_game": AdvantageRule(
        "(R - mean) / std of the game's episodes in the batch; brpo without a mixture (RAGEN's code: inductive)",
        "game",
        f"{_ADVANTAGES}mean_std",
        divides=True,
    ),
    "arpo": AdvantageRule("the return itself (RAGEN's ARPO)"),
    "reinforce": AdvantageRule("R - mean of the batch (Williams 1992)", "batch", f"{_ADVANTAGES}less_mean"),
}

AGGREGATIONS: dict[str, AggregationRule] = {
    "token_mean": AggregationRule(
        "the sum over all tokens, divided by their number (DAPO, arXiv 2503.14476, section 3.3)", "tokens"
    ),
    # A row without a token in the loss has no mean, but its sum is 0.
    "sequence_mean": AggregationRule(
        "each row's token mean, averaged over the rows that have a token in the loss (GRPO, arXiv 2402.03300, "
        "equation 3)",
        "rows with tokens",
    ),
    # REINFORCE on whole trajectories: the log-probability of a trajectory is the sum over its tokens.
    "sequence_sum": AggregationRule("each row's sum, averaged over all rows (REINFORCE)", "rows"),
    "constant": AggregationRule(
        "each row's sum, averaged over all rows and divided by turns.max_tokens_per_episode "
        "(Dr. GRPO, arXiv 2503.20783, section 3.2)",
        "rows",
    ),
}

_LOSSES = "ragen_agent.algo.losses:"
_BOTH = ("clip_low", "clip_high")

#: With r = pi / pi_old of a token, A its advantage and sg a value without gradient.
POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo": PolicyLoss(
        "min(r A, clip(r) A) (arXiv 1707.06347, equation 7)",
        f"{_LOSSES}ppo",
        _BOTH,
    ),
    "gspo": PolicyLoss(
        "as ppo with the geometric mean of r over the episode; the paper clips at 3e-4 and 4e-4 (arXiv 2507.18071)",
        f"{_LOSSES}gspo",
        _BOTH,
        sequences=True,
    ),
    "cispo": PolicyLoss(
        "sg(min(r, 1 + clip_high)) A log pi: no token loses its gradient (arXiv 2506.13585, equations 4 and 5)",
        f"{_LOSSES}cispo",
        ("clip_high",),
    ),
    "sapo": PolicyLoss(
        "(4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0, else 1.05 (arXiv 2511.20347)",
        f"{_LOSSES}sapo",
    ),
    "clip_cov": PolicyLoss(
        "as ppo, but 0 at 0.2 % of the tokens, drawn from those whose covariance of log pi and A is from 1 to 5 "
        "(arXiv 2505.22617)",
        f"{_LOSSES}clip_cov",
        _BOTH,
        batch_statistics=True,
        random=True,
    ),
    "kl_cov": PolicyLoss(
        "r A, less |log r| at the 0.2 % of the tokens with the highest covariance of log pi and A (arXiv 2505.22617)",
        f"{_LOSSES}kl_cov",
        batch_statistics=True,
    ),
}

CREDITS: dict[str, CreditRule] = {
    "trajectory": CreditRule("one recursion over all sampled tokens of the episode", "tokens"),
    "turn": CreditRule(
        "one recursion over the turns, from the values before their first tokens; the tokens of a turn share its "
        "advantage",
        "turns",
    ),
    "bi_level": CreditRule(
        "over the turns first, then within each turn over its tokens (VAGEN, arXiv 2510.16907)", "both"
    ),
    "regret": CreditRule(
        "as turn, from rewards shaped by the oracle's values, r + gamma_turn V*' - V*: with gamma_turn=1 what chance "
        "added less what the turn gave away (potential-based shaping, Ng et al. 1999). With gae_lambda=1 they sum to "
        "the return less V*, so that V* is but another baseline",
        "turns",
        shaped=True,
    ),
}

GROUPINGS: dict[str, Grouping] = {
    "level": Grouping("the episodes of a level, one advantage for all turns of an episode"),
    "state": Grouping(
        "the same, plus the turns that begin in the same state of the game (GiGPO, arXiv 2505.10978)", states=True
    ),
    "history": Grouping(
        "only the turns that begin in the same state, after the same 0, 1 and 2 states before it: the more are the "
        "same, the more a comparison weighs (HGPO, arXiv 2602.22817, with K = 2 and alpha = 1)",
        states=True,
        before=2,
    ),
    "tree": Grouping(
        "the turns of episodes that branch from each other: several replies from every state that a group reaches "
        "(a full tree; Tree-GRPO, arXiv 2509.21240, expands random nodes); needs training.branches",
        tree=True,
    ),
}

#: With d = log policy - log reference, of a sampled token; see ``ragen_agent.algo.regularisers``.
KL_ESTIMATES: dict[str, str] = {
    "k1": "d: unbiased, of either sign",
    "k2": "d^2 / 2: biased, low variance",
    "k3": "exp(-d) - 1 + d: unbiased, at least 0 (GRPO)",
}

TOKEN_PARTS: dict[str, str] = {
    "all": "all sampled tokens",
    "reasoning": "those of the thinking",
    "answer": "those of the answer",
}
