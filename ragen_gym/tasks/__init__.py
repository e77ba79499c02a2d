"""Built-in text tasks, each one file and an example of ``ragen_gym.envs.task``'s protocol.

They are named like your own tasks: ``ragen-agent train --game ragen_gym.tasks:Countdown``.
"""

from __future__ import annotations

from ragen_gym.envs.trial import TrialEnv
from ragen_gym.tasks.calculator import Calculator
from ragen_gym.tasks.countdown import Countdown
from ragen_gym.tasks.reasoning_gym import ReasoningGym

__all__ = ["Calculator", "Countdown", "ReasoningGym", "TrialEnv"]
