"""Advantages of single turns, from groups of turns that begin in the same state of the game (``training.groups_by``).

GiGPO (Group-in-Group Policy Optimization, arXiv 2505.10978, section 4) compares twice. The episodes of a level are
compared with each other, as without it: A^E. The turns of these episodes that begin in the same *anchor state* are
compared with each other by their discounted returns R_t = r_t + gamma R_{t+1}: A^S. A turn's advantage is

    A = A^E + omega A^S,

with gamma = ``training.gamma_turn`` (0.95 in the paper), omega = ``training.step_weight`` (1), and both normalised as
``training.algo`` says (``grpo`` with the std, the paper's F_norm = std; ``dr_grpo`` without, its F_norm = 1).

**What is a state.** The paper compares the texts of observations. Here the state is exact: the level, the board and the
integers of the game's state (``TurnEnv.state_id``). The turns and moves that are left are *not* in it, although the
optimum depends on them: as in the paper, a turn is then compared with later ones of its own episode, and one that leads
in a circle, or wastes moves, comes back to its state with a return that is discounted more. With the moves left in it
two turns of one episode would never meet. Malformed replies count as turns: they stay in the state that they began in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import ADVANTAGE_RULES, GROUPINGS
from ragen_agent.trajectory import Trajectory

__all__ = ["token_advantages", "turn_advantages", "with_turn_advantages"]


def with_turn_advantages(
    trajectories: Sequence[Trajectory], advantages: Tensor, weights: Tensor, settings: Training
) -> list[Trajectory]:
    """The episodes with an advantage of each turn, where ``Training.groups_by`` compares turns.

    Args:
        trajectories: the episodes of an iteration, those of a group next to each other.
        advantages: float (groups, group size), of the whole episodes, times their group's weight.
        weights: float (groups,), of the groups.
        settings: the algorithm's.

    Raises:
        ValueError: an environment that does not say in which state of the game a turn begins.
    """
    if not GROUPINGS[settings.groups_by].states:
        return list(trajectories)
    changed, size = list(trajectories), settings.group_size
    for first in range(0, len(changed), size):
        group = [row for row in range(first, first + size) if changed[row].failure is None]
        turns = [(row, turn) for row in group for turn in range(len(changed[row].turn_ends))]
        returns = {row: algo.discounted_returns(changed[row].turn_rewards, settings.gamma_turn) for row in group}
        states = [_states(changed[row], settings) for row in group]
        steps = algo.step_advantages(
            [state for each in states for state in each],
            [returns[row][turn] for row, turn in turns],
            ADVANTAGE_RULES[settings.algo].method,
        )
        weight = settings.step_weight * float(weights[first // size])
        found = dict(zip(turns, (weight * steps).tolist(), strict=True))
        for row in group:
            whole = float(advantages[first // size, row - first])
            infos = enumerate(changed[row].turn_infos)
            own = tuple(replace(info, advantage=whole + found[row, turn]) for turn, info in infos)
            changed[row] = replace(changed[row], turn_infos=own)
    return changed


def turn_advantages(trajectory: Trajectory) -> tuple[float, ...]:
    """The advantage of each turn; empty where all have that of the episode."""
    return tuple(turn.advantage for turn in trajectory.turn_infos if turn.advantage is not None)


def token_advantages(
    episodes: Tensor, turns: Sequence[Sequence[float]], turn_ends: Sequence[Sequence[int]], sampled: Tensor
) -> Tensor:
    """The advantage of each sampled token, float (rows, T), 0 at all others: of its turn, or of the whole episode.

    Args:
        episodes: float (rows,).
        turns: of each row's turns; empty for a row whose tokens have the episode's.
        turn_ends: of each row, the column of each turn's last sampled token.
        sampled: bool (rows, T).
    """
    tokens = algo.broadcast_to_tokens(episodes, sampled)
    rows = [row for row, values in enumerate(turns) if values]
    if rows:
        found = algo.turns_to_tokens([turns[row] for row in rows], [turn_ends[row] for row in rows], sampled[rows])
        tokens[torch.tensor(rows, device=tokens.device)] = found.to(tokens.dtype)
    return tokens


def _states(trajectory: Trajectory, settings: Training) -> list[str]:
    states = [turn.state for turn in trajectory.turn_infos if turn.state is not None]
    if len(states) != len(trajectory.turn_ends):
        raise ValueError(
            f"training.groups_by is {settings.groups_by!r}, but the environment does not say in which state of the "
            "game a turn begins (state_id, of a ragen_gym.TurnEnv); use training.groups_by=level."
        )
    return states
