# Shows:    an advantage rule of your own: one function and one row; figures and resuming work as with the others.
# Install:  pip install 'ragen-gym[agent]'
# Run:      python examples/own_rule.py --game Bandit    takes the arguments of ragen-agent train.
from __future__ import annotations

import sys

from torch import Tensor

from ragen_agent.algo.advantages import Peers
from ragen_agent.cli import main
from ragen_agent.config.algorithms import ADVANTAGE_RULES, AdvantageRule


def less_median(returns: Tensor, peers: Peers) -> Tensor:
    """R - median of the group, which a single lucky episode does not move.

    Args:
        returns: float (groups, group size).
        peers: mean, std and number of each group, each (groups, 1).
    """
    return returns - returns.median(dim=1, keepdim=True).values


# The row is all that the trainer reads: name, help, what an episode is compared with, and the function as module:name.
ADVANTAGE_RULES["median"] = AdvantageRule("R - median of the group", "group", "own_rule:less_median")

if __name__ == "__main__":
    raise SystemExit(main(["train", "--set", "training.algo=median", *sys.argv[1:]]))
