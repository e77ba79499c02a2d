"""Advantages of turns and tokens, by comparison or from a critic, and their weights in the loss.

GiGPO (Group-in-Group Policy Optimization, arXiv 2505.10978, section 4), ``training.groups_by=state``, compares twice.
A^E compares the episodes of a level, as usual. A^S compares the turns of these episodes that begin in the same *anchor
state*, by their discounted returns R_t = r_t + gamma R_{t+1}. A turn's advantage is

    A = A^E + omega A^S,

with gamma = ``training.gamma_turn`` (0.95 in the paper), omega = 1, and both normalised by
``training.algo`` (``grpo`` with the std, the paper's F_norm = std; ``dr_grpo`` without, its F_norm = 1).

HGPO (Hierarchy-of-Groups Policy Optimization, arXiv 2602.22817), ``training.groups_by=history``, compares the turns
alone, also by the states before them: see ``algo.context_advantages``.

A rollout tree, ``training.groups_by=tree``, compares the turns of episodes that ``ragen_agent.tokens.rollout_tree``
played, by their discounted returns too: see ``algo.tree_advantages``. A reply that several episodes share stands in
each of them, so it weighs as much as they do. The statistics of a group (return std, the filter's, ``undecided``) take
the leaves as episodes too. Leaves share replies and noise, so the variance of their returns is in the mean at most that
of as many independent episodes, and depends on ``branches``: compare it, and the levels that a filter keeps, only
between runs of equal branches.

**State.** The paper compares the texts of observations. Here the state is exact: the level, the board and the integers
of the game's state (``TurnEnv.state_id``). The remaining turns and moves are *not* part of it, although the optimum
depends on them: no two turns of an episode would share a state. So, as in the paper, a turn that leads in a circle or
wastes moves returns to its state with a more discounted return. Malformed replies count as turns.

**Weights.** RAGEN's code weighs finished advantages by the filter's kept share, by length, or not at all
(``filter_loss_scaling``, ``grpo_advantage_length_weight``, ``zero_task_advantage``). The other terms of the loss keep
their weight, so the factors set how strongly the task acts against the regularisers. AdamW divides by the gradient's
size: without a regulariser a constant factor hardly changes its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import NamedTuple

import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.algo.advantages import Comparison
from ragen_agent.config import Training
from ragen_agent.config.algorithms import ADVANTAGE_RULES, CREDITS, GROUPINGS
from ragen_agent.tokens.trajectory import Trajectory


def with_turn_advantages(
    trajectories: Sequence[Trajectory], advantages: Tensor, settings: Training
) -> list[Trajectory]:
    """The episodes with an advantage of each of their own turns, if ``Training.groups_by`` compares turns.

    Args:
        trajectories: the episodes of an iteration, grouped in order.
        advantages: float (groups, group size), of the whole episodes.
        settings: the algorithm's settings.

    Raises:
        ValueError: an environment that does not report its turns or, to compare them by it, the state before each.
    """
    grouping = GROUPINGS[settings.groups_by]
    if not grouping.turns:
        return list(trajectories)
    compare = resolve_name(ADVANTAGE_RULES[settings.algo].function)
    changed, size = list(trajectories), settings.group_size
    for first in range(0, len(changed), size):
        group = changed[first : first + size]
        returns = [
            [] if t.failure is not None else algo.discounted_returns(t.turn_rewards, settings.gamma_turn) for t in group
        ]
        if grouping.tree:
            found = algo.tree_advantages(returns, settings.branches, compare)
        else:
            found = _by_state(group, returns, advantages[first // size].tolist(), settings, compare)
        for row, values in enumerate(found, first):
            if values:
                infos = changed[row].turn_infos
                if not infos:
                    raise _unreported("the reply's problem and moves (reply in info", settings)
                own = tuple(replace(info, advantage=value) for info, value in zip(infos, values, strict=True))
                changed[row] = replace(changed[row], turn_infos=own)
    return changed


def _by_state(
    group: Sequence[Trajectory],
    returns: Sequence[Sequence[float]],
    wholes: Sequence[float],
    settings: Training,
    compare: Comparison,
) -> list[list[float]]:
    """The advantages of the turns of each episode; ``returns`` are empty for those that failed."""
    before = GROUPINGS[settings.groups_by].before
    states = [_states(t, settings) if t.failure is None else [] for t in group]
    turns = [(row, turn) for row, each in enumerate(returns) for turn in range(len(each))]
    earned = [returns[row][turn] for row, turn in turns]
    if before:
        steps = algo.context_advantages([states[row][: turn + 1] for row, turn in turns], earned, before, compare)
    else:
        steps = algo.step_advantages([states[row][turn] for row, turn in turns], earned, compare)
    found: list[list[float]] = [[] for _ in group]
    for step, (row, _) in zip(steps.tolist(), turns, strict=True):
        found[row].append(step if before else wholes[row] + step)
    return found


def turn_advantages(trajectory: Trajectory) -> tuple[float, ...]:
    """The advantage of each turn; empty if all have the episode's advantage."""
    return tuple(turn.advantage for turn in trajectory.turn_infos if turn.advantage is not None)


def token_advantages(
    episodes: Tensor, turns: Sequence[Sequence[float]], turn_ends: Sequence[Sequence[int]], sampled: Tensor
) -> Tensor:
    """The advantage of each sampled token, float (rows, T), 0 at all others: of its turn, or of the whole episode.

    Args:
        episodes: float (rows,).
        turns: for each row, the advantages of its turns; empty if its tokens have the episode's.
        turn_ends: for each row, the column of each turn's last sampled token.
        sampled: bool (rows, T).
    """
    tokens = algo.broadcast_to_tokens(episodes, sampled)
    rows = [row for row, values in enumerate(turns) if values]
    if rows:
        found = algo.turns_to_tokens([turns[row] for row in rows], [turn_ends[row] for row in rows], sampled[rows])
        tokens[torch.tensor(rows, device=tokens.device)] = found.to(tokens.dtype)
    return tokens


def task_scale(kept: int, settings: Training) -> float:
    """Factor of all advantages of an iteration, in [0, 1].

    ``kept`` is the number of groups that the filter keeps; the share is of ``Training.groups``, which dynamic sampling
    does not exceed. A critic's advantages take it after their whitening.
    """
    if settings.zero_task_advantage:
        return 0.0
    share = kept / settings.groups
    return {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[settings.filter_loss_scaling]


def weighted(
    trajectories: Sequence[Trajectory], advantages: Tensor, scale: float, settings: Training
) -> tuple[list[Trajectory], Tensor]:
    """The episodes and their advantages, float (rows,), times the scale and with it, if set, ``algo.length_weights``.

    The turns' own advantages, if there are any, get the weight of their episode.
    """
    weights = torch.full_like(advantages, scale)
    if settings.advantage_length_weight and len(trajectories):
        weights *= algo.length_weights(torch.tensor([int(t.sampled.sum()) for t in trajectories]))
    if bool((weights == 1).all()):
        return list(trajectories), advantages
    changed = []
    for trajectory, weight in zip(trajectories, weights.tolist(), strict=True):
        infos = [
            turn if turn.advantage is None else replace(turn, advantage=turn.advantage * weight)
            for turn in trajectory.turn_infos
        ]
        changed.append(replace(trajectory, turn_infos=tuple(infos)))
    return changed, advantages * weights


class CriticEstimates(NamedTuple):
    """Advantages and returns from a critic's values, each (rows, T)."""

    advantages: Tensor
    """float, 0 outside M_adv; not whitened yet."""
    returns: Tensor
    """float, 0 outside M_adv."""
    compared: Tensor
    """bool: the entries for the mean and variance of the whitening: M_adv, or the turns' ends if all tokens of a turn
    hold its advantage (VAGEN)."""


def critic_estimates(
    turn_ends: Sequence[Sequence[int]],
    turn_rewards: Sequence[Sequence[float]],
    values: Tensor,
    cost: Tensor,
    mask: Tensor,
    settings: Training,
) -> CriticEstimates:
    """Advantages and returns from a critic's values by ``Training.credit``; see ``algo.critic_advantages``.

    ``mask`` is VAGEN's M_adv; a turn ends at its last token in the mask.
    """
    if settings.advantage_tokens != "all":
        turn_ends, turn_rewards = algo.narrowed_turns(turn_ends, turn_rewards, mask)
    estimated = algo.critic_advantages(
        turn_ends,
        turn_rewards,
        values,
        cost,
        mask,
        settings.credit,
        gamma=settings.gamma,
        gamma_turn=settings.gamma_turn,
        lam=settings.gae_lambda,
    )
    compared = algo.turn_end_mask(turn_ends, mask) if CREDITS[settings.credit].recursion == "turns" else mask
    return CriticEstimates(*estimated, compared)


def _states(trajectory: Trajectory, settings: Training) -> list[str]:
    states = [turn.state for turn in trajectory.turn_infos if turn.state is not None]
    if len(states) != len(trajectory.turn_ends):
        raise _unreported("the state of the game at the start of a turn (state_id", settings)
    return states


def _unreported(what: str, settings: Training) -> ValueError:
    return ValueError(
        f"training.groups_by is {settings.groups_by!r}, but the environment does not report {what}, of a "
        "ragen_gym.TurnEnv), or an agent program does not play each reply as one turn; use training.groups_by=level."
    )
