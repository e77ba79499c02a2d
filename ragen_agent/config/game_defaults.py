"""What each game's run differs in from the defaults of ``Config``, as data.

FrozenLake, the default run: lakes without transition noise, shortest paths of three moves or more, and two turns. The
demonstrator knows the way but mostly replies with one move, so it (and the model that imitates it) runs out of turns.
Longer replies, which the demonstrations hardly contain, are what reinforcement learning has to find.

The bandits: the demonstrator chooses at random; which name pays more is what reinforcement learning has to find. A
model from scratch has never read the held-out names of the test split, so it is measured on the training split.

A pretrained model thinks in its own words and at its own length, is not warm-started, and takes the small steps of
fine-tuning.
"""

from __future__ import annotations

import json
from pathlib import Path

from ragen_agent.config import Settings, merged

__all__ = ["GAME_DEFAULTS", "PRETRAINED_DEFAULTS", "default_settings", "pretrained"]

_BANDIT: Settings = {
    "turns": {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1, "max_tokens_per_turn": 24},
    "demonstrations": {"episodes": 8000, "moves": [1.0], "mistakes": 1.0, "thought": "choose"},
    "training": {"iterations": 20, "groups": 16, "group_size": 16, "keep": 0.5},
    "evaluation": {"split": "train"},
}

GAME_DEFAULTS: dict[str, Settings] = {
    "FrozenLake": {
        "env_options": {"size": 4, "success_rate": 1.0, "min_path": 3},
        "turns": {"max_turns": 2, "max_actions_per_turn": 5, "max_actions": 10, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 16000, "moves": [0.8, 0.15, 0.05], "thought": "direction"},
        "warm_start": {"epochs": 2},
        "training": {"iterations": 80, "groups": 32, "group_size": 8, "keep": 0.5, "learning_rate": 1e-3},
    },
    "Bandit": _BANDIT,
    "BanditRev": _BANDIT,
}

PRETRAINED_DEFAULTS: Settings = {
    "turns": {"max_tokens_per_turn": 256, "max_tokens_per_episode": 4096},
    "warm_start": {"epochs": 0},
    "training": {"learning_rate": 1e-6, "critic_learning_rate": 1e-5},
}


def pretrained(model: str) -> bool:
    """Whether this names a model from elsewhere: not empty, and not the folder of a checkpoint of the small model."""
    if not model:
        return False
    try:
        return "tokenizer_sha256" not in json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the loader says what is wrong with it
        return True


def default_settings(game: str, model: str = "") -> Settings:
    """The game's settings, and ``PRETRAINED_DEFAULTS`` over them for a pretrained model."""
    return merged(GAME_DEFAULTS.get(game, {}), PRETRAINED_DEFAULTS if pretrained(model) else {})
