"""The wording of every message to a model: the system message, the user message of a turn, and the last one."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.budget import COVERAGE
from ragen_gym.envs.reply import SEPARATOR, parse, write_reply
from ragen_gym.games.game import Game

__all__ = [
    "SHOWS_PENALTY",
    "example",
    "instructions",
    "last_message",
    "message",
    "parse",
    "retold",
    "shown_symbols",
    "shown_tiles",
]

#: Whether the reward in the messages holds the penalty.
SHOWS_PENALTY = True

#: What a message says of how the thinking is to write a board.
_WRITTEN = {
    "text": "",
    "symbols": ", in rows of symbols",
    "coordinates": ", a line for each kind of thing, such as player: (0,1)",
    "sentences": ", such as: The player is in row 0, column 1. A thing is 2 below and 1 left of the player.",
}


_BUDGET = (
    "In <budget> say how many actions you still need to succeed, those of your reply included: the interval "
    f"[low, high] that holds in {100 * COVERAGE:.0f} of 100 cases like this, or impossible. A number above the actions "
    "left stands for no success."
)


def instructions(game: Game, vocabulary: Vocabulary, config: TurnConfig) -> str:
    """The system message; the budgets are those of ``config``."""
    legend = ", ".join(f"{symbol} {meaning}" for symbol, meaning in shown_symbols(game, vocabulary, config))
    names = "the names of the arms" if game.layout == "arms" else ", ".join(a.name.capitalize() for a in game.Action)
    rewards = "; ".join(f"{value:g} for {what}" for what, value in game.rewards())
    turns, actions = config.max_turns, config.max_actions
    lines = [
        game.description,
        f"Symbols: {legend}." if legend else "",
        *shown_tiles(game, config),
        f"Actions: {names}.",
        f"Rewards: {rewards}.",
        f"You have {turns} turn{'s' * (turns > 1)} and {actions} action{'s' * (actions > 1)}, "
        f"at most {config.max_actions_per_turn} a turn.",
        _BUDGET if config.budget else "",
    ]
    return "\n".join(line for line in lines if line)


def example(game: Game, config: TurnConfig, board: str) -> str:
    """The line of the system message with a reply in the form that is asked for; the budgets are those of ``config``.

    It is the same on every level, so it says nothing of any. ``board`` is what its thinking writes of a board.
    """
    names = game.example_moves or tuple(action.name.capitalize() for action in game.Action)[:2]
    thought = "I look at what is there, then I choose."
    seen = f"<observation>{board}</observation>" if config.grounding else ""
    expected = f"<prediction>{board}</prediction>" if config.world_modelling else ""
    thinking = f"{seen}{thought}{expected}" if config.think else None
    budget = (1.0, float(config.max_actions)) if config.budget else None
    reply = write_reply(names[: config.max_actions_per_turn], thinking, budget)
    where = f" where the actions are {' and '.join(game.example_board.splitlines())}" if game.example_board else ""
    return f"Example of a reply{where}: {reply}"


def shown_symbols(game: Game, vocabulary: Vocabulary, config: TurnConfig) -> tuple[tuple[str, str], ...]:
    """The legend of the symbols in a conversation: none where boards are pictures of things and never written."""
    written = bool(config.state_parts) and config.state_format in ("text", "symbols")
    if config.observation != "image" or config.image_tiles == "letters" or written:
        return game.legend(vocabulary)
    return ()


def shown_tiles(game: Game, config: TurnConfig) -> list[str]:
    """Sentences of a system message about pictures, and about the kinds of tile that a reply is to name."""
    lines = []
    if config.sees and game.layout == "arms":
        lines.append("The picture shows the arms and their names; a name in two lines is written as one word.")
    if config.sees and config.image_tiles == "shapes" and game.layout == "grid":
        from ragen_gym.render.images import shape_names

        names = shape_names(game)
        tiles = ", ".join(f"{names[tile]} {tile.name.lower().replace('_', ' ')}" for tile in game.Tile)
        lines.append(f"In the pictures: {tiles}.")
    if config.state_parts and config.state_format in ("coordinates", "sentences"):
        things = ", ".join(tile.name.lower().replace("_", " ") for tile in game.Tile if tile not in game.ground_tiles)
        lines.append(f"Things on a board: {things}. Rows and columns count from 0, from the upper left corner.")
    return lines


def message(config: TurnConfig, board: str, turn: int, actions_left: int, reward: float | None) -> str:
    """The user message before turn number ``turn``, from 1 on; ``reward`` is that of the turn before, or None."""
    several, written = config.max_actions_per_turn > 1, _WRITTEN[config.state_format]
    if config.example:  # a form with placeholders would be the last thing read, and models copy it
        written = f" ({written.removeprefix(', ')})" * bool(written)
        own = [f"the board as it is{written}"] * config.grounding + ["your own thoughts"] * config.think
        own += [f"the board after your moves{written}"] * config.world_modelling
        own += ["your own budget"] * config.budget
        own += [f"names of actions with {SEPARATOR} between them" if several else "the name of one action"]
        how = f"in the form of the example, with {', '.join(own[:-1])}{' and ' * (len(own) > 1)}{own[-1]}"
    else:
        form = f"<answer>first {SEPARATOR} second</answer>" if several else "<answer>action</answer>"
        if config.budget:
            form = f"<budget>[low, high] or impossible</budget>{form}"
        if config.think:
            seen = f"<observation>the board as it is{written}</observation>" if config.grounding else ""
            expected = f"<prediction>the board after your moves{written}</prediction>" if config.world_modelling else ""
            form = f"<think>{seen}your thoughts{expected}</think>{form}"
        how = f"with {form}"
    limit = f", in at most {config.max_tokens_per_turn} tokens" if config.max_tokens_per_turn else ""
    lines = [
        *_earned(reward),
        f"Turn {turn} of {config.max_turns}, actions left: {actions_left}.",
        board,
        f"Reply {how}{limit}.",
    ]
    return "\n".join(lines)


def retold(done: int, turns: Sequence[tuple[str, Sequence[str], float]]) -> str:
    """The opening of a message after ``done`` turns: the last ones as (board before, names of the moves, reward).

    What RAGEN's code retells with its ``SimpleMemory``, in other words: there the whole replies, here the moves played.
    """
    lines = [f"Turns so far: {done}."]
    for number, (board, moves, reward) in enumerate(turns, done - len(turns) + 1):
        played = f" {SEPARATOR} ".join(moves) or "none"
        lines += [f"Turn {number}:", board, f"Actions: {played}. Reward: {reward:g}."]
    return "\n".join([*lines, ""])


def last_message(board: str, reward: float | None) -> str:
    """The user message after the end of an episode."""
    return "\n".join([*_earned(reward), "The episode is over.", board])


def _earned(reward: float | None) -> list[str]:
    return [] if reward is None else [f"Reward: {reward:g}."]
