"""Which tokens take part: the selective masks of VAGEN (TRICO, arXiv 2510.16907), and where turns end on them.

VAGEN masks twice: M_loss, the tokens in the policy, value and KL losses, and M_adv, the tokens over which the
advantage recursion runs. Both are subsets of the sampled tokens; without a choice both are all of them. The losses
take their mask as an argument, and so does the recursion (``ragen_agent.algo.gae``). Rewards belong to turns, so a
mask that leaves out a turn's last token moves the turn's end to the last token that is left: ``narrowed_turns``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["narrowed_turns", "part_mask", "rewards_at", "turn_end_mask"]


def part_mask(spans: Sequence[Sequence[tuple[int, int]]], sampled: Tensor) -> Tensor:
    """The sampled tokens within some spans, such as the reasoning or the answer of each turn.

    Args:
        spans: for each row the (first, end) of each span of token indices, end excluded.
        sampled: bool (rows, T).

    Returns:
        bool (rows, T).

    Raises:
        ValueError: another number of rows, or a span outside the row.
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
    turn_ends: Sequence[Sequence[int]], turn_rewards: Sequence[Sequence[float]], mask: Tensor
) -> tuple[list[list[int]], list[list[float]]]:
    """The turns as they appear on a selective mask (VAGEN, M_adv).

    A turn ends at the last of its tokens that the mask keeps. A turn of which nothing is kept gives its reward to the
    turn before it, or to the next where none is before it; a row of which nothing is kept has no turn.

    Args:
        turn_ends: for each row the index of each turn's last sampled token, ascending.
        turn_rewards: for each row the reward of each turn.
        mask: bool (rows, T).

    Returns:
        ends and rewards, in the form of the arguments. The rewards of a row keep their sum, unless nothing is left.
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


def rewards_at(turn_ends: Sequence[Sequence[int]], turn_rewards: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Each turn's reward at its last sampled token, 0 elsewhere.

    Args:
        turn_ends: for each row the index of each turn's last sampled token.
        turn_rewards: for each row the reward of each turn.
        like: float (rows, T); shape, type and device of the result.

    Returns:
        float (rows, T).
    """
    rewards = torch.zeros_like(like)
    for row, (ends, earned) in enumerate(zip(turn_ends, turn_rewards, strict=True)):
        if len(ends) != len(earned):
            raise ValueError(f"row {row} has {len(ends)} turns and {len(earned)} rewards")
        rewards[row, list(ends)] += torch.tensor(list(earned), dtype=like.dtype, device=like.device)
    return rewards


def turn_end_mask(turn_ends: Sequence[Sequence[int]], mask: Tensor) -> Tensor:
    """The turns' ends as a mask.

    Args:
        turn_ends: for each row the index of each turn's last masked token, ascending.
        mask: bool (rows, T), the tokens that take part.

    Returns:
        bool (rows, T).

    Raises:
        ValueError: another number of rows; ends that do not ascend or stand outside the mask; or masked tokens after
            the last end, which would belong to no turn.
    """
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
