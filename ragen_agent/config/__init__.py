"""One declarative model of every setting, its files, and the rules and recipes to choose from."""

from __future__ import annotations

from ragen_agent.config.settings import (
    Config,
    Demonstrations,
    Diagnostics,
    Evaluation,
    Hub,
    Lora,
    Program,
    SmallModel,
    Stops,
    Turns,
    WarmStart,
)
from ragen_agent.config.table import Settings, merged, read_toml, to_toml, with_settings
from ragen_agent.config.training import Training

__all__ = [
    "Config",
    "Demonstrations",
    "Diagnostics",
    "Evaluation",
    "Hub",
    "Lora",
    "Program",
    "Settings",
    "SmallModel",
    "Stops",
    "Training",
    "Turns",
    "WarmStart",
    "merged",
    "read_toml",
    "to_toml",
    "with_settings",
]
