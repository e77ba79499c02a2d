"""Learnability of an audited environment: a small model trained on it for a minute, beside controls.

``task`` makes the environment a text task, ``train`` trains and measures, ``answers`` judges the returns.
"""

from ragen_agent.learnable.answers import VERDICTS, Answer, Report
from ragen_agent.learnable.train import CONTROLS, LearnSettings, learn

__all__ = ["CONTROLS", "VERDICTS", "Answer", "LearnSettings", "Report", "learn"]
