"""Advantages from the returns of whole episodes and of turns.

The returns of one iteration stand as (groups, group size): the episodes of a group share a level. A rule says
*across* what an episode is compared, its group, its game or the whole batch, and by which function. RAGEN
(arXiv 2504.20073) calls these reward normalisations: ARPO keeps the return, BRPO normalises over the batch, GRPO over
the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from pkgutil import resolve_name

import torch
from torch import Tensor

from ragen_agent.algo.filters import finite_groups, group_std
from ragen_agent.config.algorithms import ADVANTAGE_RULES

LOWEST, HIGHEST = -1.0, 3.0  # the bounds of ``asymmetric_clip``


@dataclass(frozen=True)
class Peers:
    """Statistics, each (groups, 1), of the returns that a return is compared with."""

    mean: Tensor
    std: Tensor  # the sample standard deviation, over n - 1, as torch.std and the implementations of GRPO compute it
    number: Tensor
    eps: float  # added to a standard deviation that is divided by


Comparison = Callable[[Tensor, Peers], Tensor]
"""A method of comparison: returns (groups, group size) and their ``Peers`` to advantages of the same shape."""


def less_mean(returns: Tensor, peers: Peers) -> Tensor:
    """R - mean."""
    return returns - peers.mean


def mean_std(returns: Tensor, peers: Peers) -> Tensor:
    """(R - mean) / (std + eps)."""
    return (returns - peers.mean) / (peers.std + peers.eps)


def asymmetric_clip(returns: Tensor, peers: Peers) -> Tensor:
    """(R - mean) / (std + eps), clamped to [-1, 3]."""
    return mean_std(returns, peers).clamp(LOWEST, HIGHEST)


def leave_one_out(returns: Tensor, peers: Peers) -> Tensor:
    """R - the mean of the rest, R - (sum - R) / (n - 1) = (R - mean) n / (n - 1)."""
    return (returns - peers.mean) * peers.number / (peers.number - 1)


def normalised(
    returns: Tensor,
    rule: str = "grpo",
    eps: float = 1e-6,
    counted: Tensor | None = None,
    games: Sequence[str] | None = None,
) -> Tensor:
    """The advantage of each episode by one of the named rules.

    Args:
        returns: (groups, group size), float, or integers, which are read as float numbers.
        rule: a key of ``ragen_agent.config.algorithms.ADVANTAGE_RULES`` that needs no critic.
        eps: added to a standard deviation that is divided by.
        counted: bool (groups, group size) or None; episodes that failed are False: they take no part in the mean and
            the std, and their advantage is 0. None counts all.
        games: the game of each group, for a rule that compares within a game; None if all play the same.

    Returns:
        float (groups, group size).
    """
    rules = {name: row for name, row in ADVANTAGE_RULES.items() if not row.critic}
    if rule not in rules:
        raise ValueError(f"rule is {rule!r}; it must be one of {', '.join(rules)}")
    returns, counted = finite_groups(returns, counted)
    row = rules[rule]
    if not row.across:
        return returns
    compare = resolve_name(row.function)
    if row.compares_groups:
        return group_normalised(returns, compare, eps, counted)
    if games is not None and len(games) != len(returns):
        raise ValueError(f"{len(games)} games do not fit {len(returns)} groups; give the game of each group")
    played = list(games) if games is not None and row.across == "game" else [""] * len(returns)
    advantages = torch.zeros_like(returns)
    for game in set(played):
        own = torch.tensor([each == game for each in played])
        rows = returns[own].reshape(1, -1), compare, eps, counted[own].reshape(1, -1)
        advantages[own] = group_normalised(*rows).view(-1, returns.shape[1])
    return advantages


def group_normalised(
    returns: Tensor, compare: Comparison = mean_std, eps: float = 1e-6, counted: Tensor | None = None
) -> Tensor:
    """Each row's returns compared with one another; see ``normalised`` for the arguments.

    Returns:
        float (groups, group size); 0 where a row's counted returns are all equal.
    """
    returns, keep = finite_groups(returns, counted)
    deviation = group_std(returns, keep)[:, None]
    number = keep.sum(dim=1, keepdim=True)
    scaled = compare(returns, Peers(returns.sum(dim=1, keepdim=True) / number, deviation, number, eps))
    return torch.where(keep & (deviation > 0), scaled, torch.zeros_like(returns))


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """From each turn of an episode on: R_t = r_t + gamma R_{t+1}."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def step_advantages(
    states: Sequence[Hashable], returns: Sequence[float], compare: Comparison = mean_std, eps: float = 1e-6
) -> Tensor:
    """The step relative advantage A^S of each turn of one group of episodes (GiGPO, arXiv 2505.10978, section 4.2).

    The turns that begin in the same state are a step group, of whichever episode and at whatever time; their discounted
    returns (``discounted_returns``) are compared with each other: A^S = (R - mean of the step group) / F_norm, where
    F_norm is its std or 1, as ``compare`` has it. The paper adds it to the advantage of the whole episode.

    Returns:
        float32 (turns,); 0 where no other turn begins in the state, or all earn the same.
    """
    if len(states) != len(returns):
        raise ValueError(f"{len(returns)} returns do not fit {len(states)} states; give one of each for every turn")
    groups: dict[Hashable, list[int]] = {}
    for turn, state in enumerate(states):
        groups.setdefault(state, []).append(turn)
    values, found = torch.tensor(returns, dtype=torch.float32), torch.zeros(len(states))
    for turns in groups.values():
        if len(turns) > 1:
            found[turns] = group_normalised(values[turns][None], compare, eps)[0]
    return found


def context_advantages(
    histories: Sequence[Sequence[Hashable]],
    returns: Sequence[float],
    before: int,
    compare: Comparison = mean_std,
    alpha: float = 1.0,
) -> Tensor:
    """The advantage of each turn of one group of episodes, over contexts of several lengths (HGPO, arXiv 2602.22817).

    The turns that begin in the same state, after the same k states, are a group of depth k; the groups of depth k + 1
    divide those of depth k. With A_k as ``step_advantages`` makes it of a turn's group of depth k,

        A = sum of w_k A_k,  w_k = (k + 1)^alpha / sum of (k + 1)^alpha,

    where the sums run over k from 0 to ``before`` (the paper's K), without the depths at which the turn has no other
    turn to be compared with. The authors' released code weighs by k + 2, and also leaves out the depths at which A_k
    is 0.

    Args:
        histories: of each turn, the states of its episode in order, up to its own.
        returns: of each turn, its discounted return.
        before: most earlier states of a context, 0 or more; 0 compares by the state alone, as ``step_advantages``.
        compare: see ``step_advantages``.
        alpha: 0 weighs all depths alike; the larger, the more the deepest weighs.
    """
    if before < 0:
        raise ValueError(f"before is {before}; it is a number of earlier states, 0 or more")
    total, weights = torch.zeros(len(histories)), torch.zeros(len(histories))
    for depth in range(before + 1):
        # An episode without so many states before the turn has no context of this length: a key of its own.
        keys = [tuple(h[-1 - depth :]) if len(h) > depth else turn for turn, h in enumerate(histories)]
        sizes = Counter(keys)
        weight = torch.tensor([float(sizes[key] > 1) for key in keys]) * (depth + 1) ** alpha
        total += weight * step_advantages(keys, returns, compare)
        weights += weight
    return torch.where(weights > 0, total / weights.clamp(min=1e-9), 0.0)


def tree_advantages(
    returns: Sequence[Sequence[float]], branches: Sequence[int], compare: Comparison = leave_one_out
) -> list[list[float]]:
    """The advantage of each turn of a group of episodes that branch from each other, a full rollout tree.

    The episodes are the leaves of the tree, in order: from each state of turn t ``branches[t]`` replies are drawn, and
    an episode shares its first replies with its neighbours. With Q of a reply the mean, over the episodes that hold it,
    of the return from its turn on,

        A(reply) = Q(reply) compared with Q of its siblings.

    With ``leave_one_out`` the baseline is independent of the reply, so A is unbiased. A reply without siblings has the
    advantage of the reply before it.

    Args:
        returns: of each episode, its return from each of its turns on; empty for one that failed. An episode that ends
            before it branches stands in each of its places.
        branches: whole numbers from 1 on, the first at least 2; their product is the number of episodes.
        compare: see ``step_advantages``.

    Returns:
        A list like ``returns``.

    Raises:
        ValueError: other branches.
    """
    if not branches or min(branches) < 1 or branches[0] < 2:
        raise ValueError(
            f"branches are {list(branches)}; give the replies drawn from each state of turn 1, 2, ..., at least 2 "
            "in the first: without siblings there is nothing to compare"
        )
    sharing = len(returns)  # episodes with the same replies before this turn
    if prod(branches) != sharing:
        raise ValueError(f"branches are {list(branches)}, whose product is not {sharing}, the number of episodes")
    found: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns))):
        branch = branches[turn] if turn < len(branches) else 1
        shape = (-1, branch, sharing // branch)
        counted = torch.tensor([turn < len(each) for each in returns]).view(shape)
        earned = torch.tensor([each[turn] if turn < len(each) else 0.0 for each in returns]).view(shape)
        values = earned.sum(2) / counted.sum(2).clamp(min=1)
        advantages = group_normalised(values, compare, counted=counted.any(2))[:, :, None].expand_as(earned)
        for each, own, advantage in zip(found, returns, advantages.flatten().tolist(), strict=True):
            if turn < len(own):
                each.append(advantage if branch > 1 else each[-1])
        sharing //= branch
    return found


def turns_to_tokens(
    advantages: Sequence[Sequence[float]], turn_ends: Sequence[Sequence[int]], sampled: Tensor
) -> Tensor:
    """Each turn's advantage at its sampled tokens, 0 at all others, float32 (rows, T).

    ``turn_ends`` holds, for each row, the column of each turn's last sampled token; ``sampled`` is bool (rows, T).
    """
    if not len(advantages) == len(turn_ends) == len(sampled) or list(map(len, advantages)) != list(map(len, turn_ends)):
        raise ValueError(
            f"advantages of {len(advantages)} rows do not fit turn_ends of {len(turn_ends)} rows and sampled "
            f"{tuple(sampled.shape)}; give one advantage for each turn"
        )
    tokens = torch.zeros(sampled.shape, device=sampled.device)
    for row, (values, ends) in enumerate(zip(advantages, turn_ends, strict=True)):
        start = 0
        for value, end in zip(values, ends, strict=True):
            tokens[row, start : end + 1] = value
            start = end + 1
    return tokens * sampled.to(tokens.dtype)


def broadcast_to_tokens(advantages: Tensor, sampled: Tensor) -> Tensor:
    """Each row's advantage, float (rows,), at each of its sampled tokens, bool (rows, T), and 0 at all others."""
    if advantages.ndim != 1 or sampled.ndim != 2 or len(advantages) != len(sampled):
        raise ValueError(
            f"advantages {tuple(advantages.shape)} and sampled {tuple(sampled.shape)} do not fit; "
            "give (rows,) and (rows, T)"
        )
    return advantages[:, None] * sampled.to(advantages.dtype)


def whiten(x: Tensor, mask: Tensor, eps: float = 1e-8, *, over: Tensor | None = None) -> Tensor:
    """(x - mean) / sqrt(variance + eps) at the masked entries, 0 elsewhere.

    The usual last step on PPO's advantages (Huang et al., "The 37 Implementation Details of PPO", detail
    7). The variance divides by n - 1; with fewer than two entries to take it over the result is 0 everywhere.

    Args:
        x: float, any shape.
        mask: bool, the shape of x.
        eps: added to the variance.
        over: bool, the shape of x: the masked entries that mean and variance are taken over, such as one of each turn
            where all tokens of a turn hold its advantage; None takes every masked entry.
    """
    zero = torch.zeros_like(x)
    over = mask if over is None else over
    number = over.sum()
    if int(number) < 2:
        return zero
    mean = torch.where(over, x, zero).sum() / number
    centred = torch.where(mask, x - mean, zero)
    variance = (torch.where(over, centred, zero) ** 2).sum() / (number - 1)
    return centred * torch.rsqrt(variance + eps)


def length_weights(lengths: Tensor) -> Tensor:
    """The weight of each episode's advantage: the mean length of the batch over its own.

    RAGEN's code (``grpo_advantage_length_weight``): with a loss over tokens an episode then counts alike whatever its
    length, where otherwise long ones set the direction. ``lengths`` are sampled tokens, (rows,).
    """
    if bool((lengths < 1).any()):
        raise ValueError(f"lengths are {lengths.tolist()}; an episode in the loss has at least 1 sampled token")
    return lengths.float().mean() / lengths.float()


def length_penalty(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """0 up to ``limit - buffer`` tokens, from there down along a line to -1 at ``limit`` and beyond.

    The soft overlong punishment of DAPO (arXiv 2503.14476, section 3.4, equation 13), whose L_max is ``limit`` and
    whose L_cache is ``buffer``; float32, the shape of ``lengths``.
    """
    if not 1 <= buffer <= limit:
        raise ValueError(f"buffer is {buffer}; it must be from 1 to limit, {limit}")
    return ((limit - buffer - lengths) / buffer).clamp(-1, 0)
