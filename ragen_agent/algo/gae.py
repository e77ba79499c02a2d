"""Token advantages with a critic, and their token masks.

``gae`` runs over the tokens of the whole trajectory, as if it were one long reply (StarPO with PPO: RAGEN, arXiv
2504.20073). ``turn_wise_gae`` runs over turns and gives every token of a turn the turn's advantage, over the critic's
value before the turn's first token. ``bi_level_gae`` first runs over turns and then, within each turn, over its tokens
(TRICO of VAGEN, arXiv 2510.16907, section on bi-level advantage estimation), so turns and tokens have separate
discounts; its turn pass reads the values at the turns' ends, which its token pass adds back.

VAGEN masks twice: M_loss, the tokens in the policy, value and KL losses, and M_adv, the tokens that the recursion runs
over. Both are subsets of the sampled tokens, by default all of them. Tokens outside the mask (prompt, observations,
template, or tokens dropped by a selective mask) are skipped and not discounted. ``turn_ends`` holds, for each row, the
index of each turn's last masked token, ascending; it is not derived from the rewards, since a turn may earn exactly 0.
If a mask drops a turn's last token, the turn ends at its last remaining token: ``narrowed_turns``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ragen_agent.algo.aggregation import as_float
from ragen_agent.config.algorithms import CREDITS

TurnEnds = Sequence[Sequence[int]]


def part_mask(spans: Sequence[Sequence[tuple[int, int]]], sampled: Tensor) -> Tensor:
    """The sampled tokens, bool (rows, T), within some spans, such as the reasoning or the answer of each turn.

    ``spans`` holds for each row the (first, end) of each span of token indices, end excluded.
    """
    if len(spans) != len(sampled):
        raise ValueError(f"{len(spans)} rows of spans do not fit {len(sampled)} rows of tokens")
    mask = torch.zeros_like(sampled)
    for row, pairs in enumerate(spans):
        for first, end in pairs:
            if not 0 <= first <= end <= sampled.shape[1]:
                raise ValueError(f"the span ({first}, {end}) of row {row} is outside its {sampled.shape[1]} tokens")
            mask[row, first:end] = True
    return mask & sampled


def narrowed_turns(
    turn_ends: TurnEnds, turn_rewards: Sequence[Sequence[float]], mask: Tensor
) -> tuple[list[list[int]], list[list[float]]]:
    """The turns as they appear on a selective mask (VAGEN, M_adv).

    A turn ends at its last token in the mask. A turn without tokens in the mask gives its reward to the previous turn,
    or to the next if it is the first; a row without tokens in the mask has no turn.

    Returns:
        ends and rewards, in the form of the arguments. The rewards of a row keep their sum, unless no turn is left.
    """
    all_ends: list[list[int]] = []
    all_rewards: list[list[float]] = []
    for row, (ends, rewards) in enumerate(zip(turn_ends, turn_rewards, strict=True)):
        new_ends: list[int] = []
        new_rewards: list[float] = []
        waiting, start = 0.0, 0
        for end, reward in zip(ends, rewards, strict=True):
            inside = mask[row, start : end + 1].nonzero().flatten()
            if len(inside):
                new_ends.append(start + int(inside[-1]))
                new_rewards.append(reward + waiting)
                waiting = 0.0
            elif new_rewards:
                new_rewards[-1] += reward
            else:
                waiting += reward
            start = end + 1
        all_ends.append(new_ends)
        all_rewards.append(new_rewards)
    return all_ends, all_rewards


def rewards_at(turn_ends: TurnEnds, turn_rewards: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Each turn's reward at its last sampled token, 0 elsewhere: float, of the shape, type and device of ``like``."""
    rewards = torch.zeros_like(like)
    for row, (ends, earned) in enumerate(zip(turn_ends, turn_rewards, strict=True)):
        if len(ends) != len(earned):
            raise ValueError(f"row {row} has {len(ends)} turns and {len(earned)} rewards")
        rewards[row, list(ends)] += torch.tensor(list(earned), dtype=like.dtype, device=like.device)
    return rewards


def turn_end_mask(turn_ends: TurnEnds, mask: Tensor) -> Tensor:
    """The turns' ends on ``mask``, bool (rows, T), as a mask of its shape."""
    if len(turn_ends) != len(mask):
        raise ValueError(f"{len(turn_ends)} rows of turn ends do not fit {len(mask)} rows of tokens")
    marks = torch.zeros_like(mask)
    for row, ends in enumerate(turn_ends):
        ascending = list(ends) == sorted(set(ends)) and all(0 <= end < mask.shape[1] for end in ends)
        if not ascending or not bool(mask[row, list(ends)].all()):
            raise ValueError(
                f"the turn ends {list(ends)} of row {row} must ascend and stand at tokens of the mask; narrowed_turns "
                "moves them onto a selective mask"
            )
        if bool(mask[row, ends[-1] + 1 if ends else 0 :].any()):
            raise ValueError(f"row {row} has tokens of the mask after its last turn end; they would belong to no turn")
        marks[row, list(ends)] = True
    return marks


def gae(
    rewards: Tensor, values: Tensor, sampled: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the sampled tokens (arXiv 1506.02438, equation 16).

    delta_t = r_t + gamma V_t' - V_t and A_t = delta_t + gamma lam A_t', where t' is the next *sampled*
    token of the row, and V_t' = A_t' = 0 after the last one. Unsampled tokens (prompt, observations, template) are not
    decisions of the policy: they are skipped and not discounted. Truncation counts as termination, because the budgets
    belong to the task.

    Args:
        rewards: float (rows, T); a turn's reward is at its last sampled token.
        values: float (rows, T); values[t] is the critic's estimate before token t is sampled.
        sampled: bool (rows, T).
        gamma: discount per sampled token, in [0, 1].
        lam: the trace parameter lambda, in [0, 1].

    Returns:
        advantages and returns (advantages + values), both float (rows, T) and 0 where not sampled.
    """
    rewards, values = _checked(rewards, values, sampled)
    return _backwards(rewards, values, sampled, gamma, lam)


def turn_wise_gae(
    rewards: Tensor,
    values: Tensor,
    sampled: Tensor,
    turn_ends: TurnEnds,
    gamma_turn: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Advantages of whole turns (VAGEN, turn-level estimation), the same at every sampled token of a turn.

    With b_i the first sampled token of turn i and r_i the sum of the turn's rewards:
    delta_i = r_i + gamma_turn V(b_{i+1}) - V(b_i) and A_i = delta_i + gamma_turn lam A_{i+1}; nothing follows the
    last turn. The baseline V(b_i) does not depend on the turn's masked tokens: a baseline that depends on the action
    would cancel part of the advantage (Sutton and Barto, Reinforcement Learning, second edition, section 13.4). If the
    mask drops a turn's thinking, the thinking belongs to the state.

    Arguments as in ``gae``, with ``turn_ends`` (see the module) and a discount per turn; costs inside a turn, such as a
    KL penalty, count for the turn.

    Returns:
        advantages, A_i at every sampled token of turn i, and returns, A_i + V(b_i) there: the critic learns one value
        per turn. Both float (rows, T) and 0 where not sampled. VAGEN whitens them by the mean and variance over the
        turns' ends, so that turns count equally: ``whiten(..., over=...)``.
    """
    rewards, values = _checked(rewards, values, sampled)
    ends = turn_end_mask(turn_ends, sampled)
    turn = ends.cumsum(1) - ends.long()  # of each token, from 0
    places = torch.arange(values.shape[1], device=values.device).expand_as(turn)
    last = torch.full_like(places, values.shape[1] - 1)
    first = last.scatter_reduce(1, turn, torch.where(sampled, places, last), "amin")
    # By turn: its reward, and the value before its first token.
    earned, before = torch.zeros_like(rewards).scatter_add(1, turn, rewards), values.gather(1, first)
    found = _backwards(earned, before, places < ends.sum(1, keepdim=True), gamma_turn, lam)
    advantages, returns = (torch.where(sampled, x.gather(1, turn), torch.zeros_like(x)) for x in found)
    return advantages, returns


def bi_level_gae(
    rewards: Tensor,
    values: Tensor,
    sampled: Tensor,
    turn_ends: TurnEnds,
    gamma_turn: float = 0.95,
    gamma_token: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Advantages by turn, then by token within the turn (TRICO: VAGEN, bi-level advantage estimation).

    Turn pass, from the last turn: delta_i = r_i + gamma_turn V(e_{i+1}) - V(e_i) and
    A_i = delta_i + gamma_turn lam A_{i+1}, where e_i is the last sampled token of turn i and r_i the reward there.
    The turn's end then carries the future return: r'(e_i) = A_i + V(e_i). Token pass, within each turn, from its
    last token: A(e_i) = r'(e_i) - V(e_i) = A_i, and before it delta_t = r_t + gamma_token V_t' - V_t and
    A_t = delta_t + gamma_token lam A_t', where t' is the next sampled token of the turn.

    Arguments, result and errors as in ``turn_wise_gae``, with two discounts, per turn and per sampled token within a
    turn; values are read at every sampled token, and returns are advantages + values. VAGEN uses 0.95 to 0.99 between
    turns, and whitens the advantages over the mask: ``whiten``.
    """
    rewards, values = _checked(rewards, values, sampled)
    ends = turn_end_mask(turn_ends, sampled)
    _, following = _backwards(torch.where(ends, rewards, torch.zeros_like(rewards)), values, ends, gamma_turn, lam)
    return _backwards(torch.where(ends, following, rewards), values, sampled, gamma_token, lam, ends)


def critic_advantages(
    turn_ends: TurnEnds,
    turn_rewards: Sequence[Sequence[float]],
    values: Tensor,
    cost: Tensor,
    mask: Tensor,
    credit: str = "trajectory",
    *,
    gamma: float = 1.0,
    gamma_turn: float = 0.95,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Advantages by one of ``CREDITS``, from turn rewards and token costs.

    Args:
        turn_ends: see the module.
        turn_rewards: for each row the reward of each turn.
        values: float (rows, T), the critic's values; read within the mask.
        cost: float (rows, T), subtracted from a token's reward, such as a KL penalty; read within the mask.
        mask: bool (rows, T), the tokens that the recursion runs over (VAGEN's M_adv).
        credit: a key of ``ragen_agent.config.algorithms.CREDITS``.
        gamma: discount between tokens; unused by ``turn``.
        gamma_turn: discount between turns; unused by ``trajectory``.
        lam: the trace parameter lambda.

    Returns:
        advantages and returns, both float (rows, T) and 0 outside the mask.
    """
    values = as_float(values)
    rewards = rewards_at(turn_ends, turn_rewards, values) - torch.where(mask, cost, 0.0)
    if credit not in CREDITS:
        raise ValueError(f"credit is {credit!r}; it must be one of {', '.join(CREDITS)}")
    recursion = CREDITS[credit].recursion
    if recursion == "tokens":
        return gae(rewards, values, mask, gamma, lam)
    if recursion == "turns":
        return turn_wise_gae(rewards, values, mask, turn_ends, gamma_turn, lam)
    return bi_level_gae(rewards, values, mask, turn_ends, gamma_turn, gamma, lam)


def shaped_rewards(rewards: Sequence[float], potentials: Sequence[float], gamma: float = 1.0) -> list[float]:
    """The rewards of an episode's turns with potential-based shaping (Ng, Harada and Russell 1999, theorem 1).

    r_i + gamma phi(s_{i+1}) - phi(s_i), with phi = 0 after the last turn: the discounted return changes by the constant
    -phi(s_1), so the order of policies does not change. With phi = V* and gamma = 1 a shaped reward is the effect of
    chance minus the turn's regret. From a turn on, shaped rewards sum to the return minus phi(s): with lambda 1, phi is
    a second baseline beside the critic's. Other credits have no such guarantee.

    Args:
        rewards: reward of each turn.
        potentials: phi of the state before each turn.
        gamma: discount between turns.
    """
    if len(rewards) != len(potentials):
        raise ValueError(f"{len(potentials)} potentials do not fit {len(rewards)} turns; give one for each")
    following = [*potentials[1:], 0.0]
    turns = zip(rewards, potentials, following, strict=False)
    return [reward + gamma * after - before for reward, before, after in turns]


def _backwards(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, restarts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The backward recursion over the masked tokens; it restarts from 0 at ``restarts``, as at the row's end."""
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(next_value)
    zero = torch.zeros_like(next_value)
    for t in reversed(mask.any(0).nonzero().flatten().tolist()):
        here = mask[:, t]
        if restarts is not None:
            next_value = torch.where(restarts[:, t], zero, next_value)
            next_advantage = torch.where(restarts[:, t], zero, next_advantage)
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
        advantages[:, t] = torch.where(here, advantage, zero)
    return advantages, torch.where(mask, advantages + values, torch.zeros_like(values))


def _checked(rewards: Tensor, values: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards and values as float: integers would truncate discounted values."""
    if not rewards.shape == values.shape == sampled.shape or rewards.ndim != 2:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, sampled {tuple(sampled.shape)}; they "
            "must share one shape (rows, T)"
        )
    if bool((rewards.ne(0) & ~sampled).any()):
        raise ValueError("a reward is at an unsampled token; put it at its turn's last sampled token")
    return as_float(rewards), as_float(values)
