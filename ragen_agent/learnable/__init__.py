"""Learnability of an audited environment: a small model trained on it for a minute, beside controls.

``task`` makes the audited environment a text task, ``train`` trains the model and its controls, and ``answers`` reads
the measured returns. ``ragen-gym audit --learnable`` finds ``learn`` by name.
"""

from ragen_agent.learnable.answers import VERDICTS, Answer, Report
from ragen_agent.learnable.train import CONTROLS, LearnSettings, learn

__all__ = ["CONTROLS", "VERDICTS", "Answer", "LearnSettings", "Report", "learn"]
