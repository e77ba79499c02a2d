"""What a game says and what may be answered: the texts from which the small tokenizer is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragen_agent.local.thoughts import WORDS, thinking
from ragen_gym.envs.turn import TurnEnv

__all__ = ["GameTexts", "game_texts"]

LEVELS = 200  # enough to meet every pair of the bandits' names
PLAYED = 8


@dataclass(frozen=True)
class GameTexts:
    """`levels`: the instructions and user messages of an episode on each level; `replies`: what a player may write."""

    levels: list[list[str]]
    replies: set[str]


def game_texts(env: TurnEnv, thought: str) -> GameTexts:
    """Messages on `LEVELS` levels; the first `PLAYED` are played badly and well, so that all kinds of message occur."""
    texts = GameTexts([], {WORDS[thought]} if thought in WORDS else set())
    for seed in range(LEVELS):
        _, info = env.reset(seed=seed)
        over = seed >= PLAYED
        names = env.action_names
        opening = thinking(env, thought)
        texts.replies.update(f"{opening}<answer>{name} || {name}</answer>" for name in names)
        replies: Sequence[str] = [names[seed % len(names)], f"{opening}<answer>{' || '.join(names)}</answer>"]
        while not over:
            _, _, terminated, truncated, info = env.step(replies[info["turn"] % 2])
            over = terminated or truncated
        texts.levels.append([m["content"] for m in info["messages"] if m["role"] != "assistant"])
    return texts
