"""What a turn earns for its form alone.

RAGEN (arXiv 2504.20073, section on the reply format) takes 0.1 from a turn whose reply is malformed or names an
unknown action; VAGEN gives 0.5 to a turn whose reply is well formed. The penalty leaves a perfect run's return as the
game has it; the bonus pays for every turn, and so also for taking many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.config.rules import FORMAT_REWARDS

__all__ = ["format_reward"]


def format_reward(well_formed: Tensor, rule: str = "ragen") -> Tensor:
    """The format's part of each turn's reward.

    Args:
        well_formed: bool, any shape: whether the turn's reply was of the form asked for and named known actions only.
        rule: a key of ``FORMAT_REWARDS``.

    Returns:
        float32, the shape of `well_formed`.

    Raises:
        ValueError: an unknown rule.
    """
    if rule not in FORMAT_REWARDS:
        raise ValueError(f"rule is {rule!r}; it must be one of {', '.join(FORMAT_REWARDS)}")
    row = FORMAT_REWARDS[rule]
    malformed, formed = (torch.tensor(amount, device=well_formed.device) for amount in (row.malformed, row.well_formed))
    return torch.where(well_formed, formed, malformed)
