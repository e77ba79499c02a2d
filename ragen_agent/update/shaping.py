"""Rewards for learning beside the game's: of a reply's length, of its stated budget, and of the oracle's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import CREDITS
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import turn_spans
from ragen_gym.envs.budget import bagen_reward, score_reward


def overlong(trajectories: Sequence[Trajectory], settings: Training, limit: int) -> list[list[float]]:
    """Length penalty of each turn, at most 0: ``algo.length_penalty``; ``limit`` is ``turns.max_tokens_per_turn``."""
    found = []
    for trajectory in trajectories:
        lengths = torch.tensor([end - first for first, end in turn_spans(trajectory)])
        penalty = algo.length_penalty(lengths, limit, settings.overlong_buffer)
        found.append(penalty.tolist())
    return found


def budget_rewards(trajectories: Sequence[Trajectory], settings: Training) -> list[list[float]]:
    """Reward of each turn's stated budget by ``Training.budget_reward``, over the number of turns.

    Failed episodes earn nothing.
    """
    reward = {"score": score_reward, "bagen": bagen_reward}[settings.budget_reward]
    found = []
    for trajectory in trajectories:
        turns, earned = () if trajectory.failure else trajectory.turn_infos, list[float]()
        for number, turn in enumerate(turns):
            assert turn.budget is not None, "turns.budget asks for it"
            low, high, left = turn.budget
            to_go = sum(each.played for each in turns[number:]) if trajectory.success else left + 1
            earned.append(settings.budget_weight * reward((low, high), left, to_go) / len(turns))
        found.append(earned or [0.0] * len(trajectory.turn_rewards))
    return found


def shaped(trajectories: Sequence[Trajectory], settings: Training) -> list[Trajectory]:
    """The episodes with turn rewards shaped by ``Training.credit``; see ``algo.shaped_rewards``.

    Failed episodes stay unchanged. The potential of a state is the highest expected return in the remaining moves, 0 if
    unknown: any function of the state preserves the order of policies.

    Raises:
        ValueError: an environment that does not report the values of its states.
    """
    if not CREDITS[settings.credit].shaped:
        return list(trajectories)
    changed = []
    for trajectory in trajectories:
        if trajectory.failure is not None:
            changed.append(trajectory)
            continue
        values = [turn.value for turn in trajectory.turn_infos if turn.value is not None]
        if len(values) != len(trajectory.turn_ends):
            raise ValueError(
                f"training.credit is {settings.credit!r}, but the environment does not report the values of its states "
                '(info["turn_value"], of a ragen_gym.TurnEnv with regret=True); use another credit.'
            )
        potentials = [value if math.isfinite(value) else 0.0 for value in values]
        rewards = algo.shaped_rewards(trajectory.turn_rewards, potentials, settings.gamma_turn)
        changed.append(replace(trajectory, turn_rewards=tuple(rewards)))
    return changed


def with_rewards(trajectories: Sequence[Trajectory], extra: Sequence[Sequence[float]]) -> list[Trajectory]:
    """The episodes with something added to the reward of each turn."""
    return [
        replace(t, turn_rewards=tuple(reward + more for reward, more in zip(t.turn_rewards, turns, strict=True)))
        for t, turns in zip(trajectories, extra, strict=True)
    ]
