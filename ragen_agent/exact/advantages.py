"""True advantages of tokens, and the exact policy gradient.

With the distribution over replies of every state known, no advantage is estimated:

    A(s, prefix, token) = E[return | s, prefix, token] - E[return | s, prefix]

where the return is the sum of all rewards from the state on, and the policy goes on by itself after the token. The
gradient of the expected return follows by the policy gradient theorem (Sutton et al., NIPS 12, 1999), as a sum over all
tokens that the trees hold instead of a mean over samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.exact.level import QUANTITIES
from ragen_agent.exact.policy_value import LevelValue, StateValue
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores

_ROWS = 1024  # of a batch


def prefix_values(state: StateValue) -> NDArray[np.float64]:
    """E[quantity | prefix] of every node of a state's tree, float64 (nodes, 3, 2); rows as in ``QUANTITIES``.

    The last axis is the lower and the upper end. Node 0, the prompt, has the state's own value.
    """
    tree = state.tree
    sums = tree.closed[:, None, None] * state.bounds
    over = tree.outcome >= 0
    sums[over] += tree.reach[over, None, None] * state.outcome_values[tree.outcome[over]]
    for node in range(len(sums) - 1, 0, -1):  # a node comes after its parent
        sums[tree.parent[node]] += sums[node]
    found: NDArray[np.float64] = sums / tree.reach[:, None, None]
    return found


def token_advantages(state: StateValue, ids: Sequence[int], quantity: str = "return") -> NDArray[np.float64]:
    """The true advantage of each token of a reply, float64 (tokens, 2): the lower and the upper end.

    Args:
        state: the state that the reply was given in.
        ids: the sampled tokens of the reply, its stop token included.
        quantity: one of ``QUANTITIES``.

    A token that the tree leaves out has the widest interval that the state's bounds allow: solve again with a smaller
    ``mass``.
    """
    row = QUANTITIES.index(quantity)
    values, nodes = prefix_values(state)[:, row], state.tree.find(ids)
    along = [values[node] for node in nodes] + [state.bounds[row]] * (len(ids) + 1 - len(nodes))
    return np.array([[now[0] - before[1], now[1] - before[0]] for before, now in pairwise(along)])


def return_variance(found: LevelValue) -> tuple[float, float]:
    """The variance of an episode's return: the part of the policy's replies, and the part of the transition noise.

    An episode's return is V(start) plus Q(s, reply) - V(s) and r + V(s') - Q(s, reply), summed over its turns. Each of
    these has mean 0 given all that came before it, so they are uncorrelated, and their variances add up to the
    variance of the return (the law of total variance, in the order of play):

        Var(R) = E[sum of Var(Q(s, reply) | s)] + E[sum of Var(r + V(s') | s, reply)].

    Where values are intervals their middles count, and replies that a tree leaves out have no part: solve with a small
    ``mass``.
    """
    row = QUANTITIES.index("return")
    replies = noise = 0.0
    for state in found.states:
        chances, worth = state.tree.chances, state.outcome_values[:, row].mean(1)
        replies += state.weight * float(chances @ (worth - state.value[row].mean()) ** 2)
        for chance, mean, results, after in zip(chances, worth, state.transitions, state.after, strict=True):
            for result, then in zip(results, after, strict=True):
                total = result.reward + (0.0 if then is None else then.value[row].mean())
                noise += state.weight * float(chance * result.chance * (total - mean) ** 2)
    return replies, noise


def exact_gradient(
    model: PreTrainedModel, bias: Tensor, temperature: float, found: Sequence[LevelValue]
) -> list[Tensor]:
    """The gradient of the mean exact return, for each parameter that requires one.

    It is the gradient of a weighted sum of log-probs of tokens. The weight of a token is P(state)
    P(prefix, token | state) A / number of levels; where intervals are not points, of their middles.

    Args:
        model: the model that ``found`` was solved with, its weights unchanged.
        bias: ``TreeReader.bias``.
        temperature: the one that ``found`` was solved at.
        found: the levels, each counted alike.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    total = [torch.zeros_like(each) for each in parameters]
    states = ((state, state.weight / len(found)) for level in found for state in level.states)
    rows = (row for state, weight in states for row in _weighted_rows(state, weight))
    while some := [*islice(rows, _ROWS)]:
        batch, weights = _batch(some, bias.device)
        scores = sampled_scores(model, batch, bias, temperature).log_probs
        objective = (weights.to(scores.dtype) * scores).sum()
        for sum_, part in zip(total, torch.autograd.grad(objective, parameters, allow_unused=True), strict=True):
            if part is not None:
                sum_ += part
    return total


def _weighted_rows(state: StateValue, weight: float) -> list[tuple[list[int], NDArray[np.float64]]]:
    """(ids, weights) of the paths of a tree; a token's weight stands in one path that holds it, and is 0 in others."""
    tree, values = state.tree, prefix_values(state)[:, QUANTITIES.index("return")].mean(1)
    advantages = np.append(0.0, values[1:] - values[tree.parent[1:]])
    weights = weight * tree.reach * advantages
    rows, last = [], np.ones(len(values), bool)
    last[tree.parent[1:]] = False
    for leaf in np.flatnonzero(last).tolist():
        nodes = [leaf] if leaf else []
        while nodes and tree.parent[nodes[-1]] > 0:
            nodes.append(int(tree.parent[nodes[-1]]))
        if nodes:
            path = np.array(nodes[::-1])
            rows.append(
                ([*state.prompt, *tree.token[path].tolist()], np.append(np.zeros(len(state.prompt)), weights[path]))
            )
            weights[path] = 0.0  # each token counts once
    return rows


def _batch(rows: Sequence[tuple[list[int], NDArray[np.float64]]], device: torch.device | str) -> tuple[Batch, Tensor]:
    """Rows padded on the right."""
    shape = len(rows), max(len(ids) for ids, _ in rows)
    ids, attention = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    weights = torch.zeros(shape, dtype=torch.float64)
    for row, (tokens, weight) in enumerate(rows):
        ids[row, : len(tokens)], attention[row, : len(tokens)] = torch.tensor(tokens), 1
        weights[row, : len(tokens)] = torch.from_numpy(weight)
    sampled, recorded = weights != 0, torch.zeros(shape)
    return Batch(ids.to(device), sampled.to(device), attention.to(device), recorded.to(device)), weights.to(device)
