"""What a turn environment says: the system message, made from the game's own tables, and the message of each turn."""

from __future__ import annotations

from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import SEPARATOR
from ragen_gym.games.game import Game

__all__ = ["instructions", "last_message", "message"]


def instructions(game: Game, vocabulary: Vocabulary, config: TurnConfig) -> str:
    """The system message; the budgets are those of ``config``."""
    legend = ", ".join(f"{symbol} {meaning}" for symbol, meaning in game.legend(vocabulary))
    names = "the names of the arms" if game.layout == "arms" else ", ".join(a.name.capitalize() for a in game.Action)
    rewards = "; ".join(f"{value:g} for {what}" for what, value in game.rewards())
    turns, actions = config.max_turns, config.max_actions
    lines = [
        game.description,
        f"Symbols: {legend}." if legend else "",
        f"Actions: {names}.",
        f"Rewards: {rewards}.",
        f"You have {turns} turn{'s' * (turns > 1)} and {actions} action{'s' * (actions > 1)}, "
        f"at most {config.max_actions_per_turn} a turn.",
    ]
    return "\n".join(line for line in lines if line)


def message(config: TurnConfig, board: str, turn: int, actions_left: int, reward: float | None) -> str:
    """The user message before turn number ``turn``, from 1 on; ``reward`` is that of the turn before, or None."""
    form = (
        f"<answer>first {SEPARATOR} second</answer>" if config.max_actions_per_turn > 1 else "<answer>action</answer>"
    )
    if config.think:
        seen = "<observation>the board as it is</observation>" if config.grounding else ""
        expected = "<prediction>the board after your moves</prediction>" if config.world_modelling else ""
        form = f"<think>{seen}your thoughts{expected}</think>{form}"
    limit = f", in at most {config.max_tokens_per_turn} tokens" if config.max_tokens_per_turn else ""
    lines = [
        *_earned(reward),
        f"Turn {turn} of {config.max_turns}, actions left: {actions_left}.",
        board,
        f"Reply with {form}{limit}.",
    ]
    return "\n".join(lines)


def last_message(board: str, reward: float | None) -> str:
    """The user message after the end of an episode."""
    return "\n".join([*_earned(reward), "The episode is over.", board])


def _earned(reward: float | None) -> list[str]:
    return [] if reward is None else [f"Reward: {reward:g}."]
