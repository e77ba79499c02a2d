"""What a turn environment says: the system message, made from the game's own tables, and the message of each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen_gym.envs.reply import SEPARATOR

if TYPE_CHECKING:
    from ragen_gym.envs.turn import TurnEnv

__all__ = ["instructions", "message"]


def instructions(env: TurnEnv) -> str:
    """The system message, made from the game's own tables."""
    game, vocabulary = env.game, env.env.vocabulary
    legend = ", ".join(f"{symbol} {meaning}" for symbol, meaning in game.legend(vocabulary))
    names = ", ".join(action.name.capitalize() for action in game.Action) if legend else "the names of the arms"
    rewards = "; ".join(f"{value:g} for {what}" for what, value in game.rewards())
    turns, actions = env.max_turns, env.max_actions
    lines = [
        game.description,
        f"Symbols: {legend}." if legend else "",
        f"Actions: {names}.",
        f"Rewards: {rewards}.",
        f"You have {turns} turn{'s' * (turns > 1)} and {actions} action{'s' * (actions > 1)}, "
        f"at most {env.max_actions_per_turn} a turn.",
    ]
    return "\n".join(line for line in lines if line)


def message(env: TurnEnv, reward: float | None) -> str:
    """The user message of a turn; `reward` is that of the turn before."""
    form = f"<answer>first {SEPARATOR} second</answer>" if env.max_actions_per_turn > 1 else "<answer>action</answer>"
    if env.config.think:
        form = f"<think>{_thoughts(env)}</think>{form}"
    limit = f", in at most {env.config.max_tokens_per_turn} tokens" if env.config.max_tokens_per_turn else ""
    lines = [] if reward is None else [f"Reward: {reward:g}."]
    if env.over:
        return "\n".join([*lines, "The episode is over.", env.board])
    lines += [
        f"Turn {env.turn + 1} of {env.max_turns}, actions left: {env.actions_left}.",
        env.board,
        f"Reply with {form}{limit}.",
    ]
    return "\n".join(lines)


def _thoughts(env: TurnEnv) -> str:
    """What the form says inside the thinking tags."""
    seen = "<observation>the board as it is</observation>" if env.config.grounding else ""
    expected = "<prediction>the board after your moves</prediction>" if env.config.world_modelling else ""
    return f"{seen}your thoughts{expected}"
