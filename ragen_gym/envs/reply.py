"""Exchange of environment and model: the messages of a turn, and the grammar of a reply.

A reply may be asked to hold, inside its thinking, the state as it sees it, ``<observation> … </observation>``, and the
state that it expects after its moves, ``<prediction> … </prediction>`` (grounding and world modelling of VAGEN, arXiv
2510.16907).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.games.game import Game

__all__ = [
    "SEPARATOR",
    "Problem",
    "Reply",
    "example",
    "explain_problem",
    "instructions",
    "last_message",
    "message",
    "open_thinking",
    "parse",
    "parse_reply",
    "whole_reply",
    "write_reply",
]

SEPARATOR = "||"

_REMEMBERED = 4096  # characters of the longest reply whose reading is kept

_ANSWER = re.compile(r"\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL)
_THINK_ANSWER = re.compile(r"\s*<think>(?P<think>.*?)</think>" + _ANSWER.pattern, re.DOTALL)
_TAG = re.compile(r"<(/?(?:think|answer))>")
_THINK, _END_THINK = "<think>", "</think>"

#: What a message says of how the thinking is to write a board.
_WRITTEN = {
    "text": "",
    "symbols": ", in rows of symbols",
    "coordinates": ", a line for each kind of thing, such as player: (0,1)",
    "sentences": ", such as: The player is in row 0, column 1. A thing is 2 below and 1 left of the player.",
}


class Problem(StrEnum):
    """Fault of a reply."""

    NO_ANSWER = "no_answer"
    """It is not of the form that was asked for: a tag is missing, or there is text outside the tags."""
    SEVERAL_ANSWERS = "several_answers"
    """A tag occurs more than once, so that it is not clear which answer is meant."""
    NO_STATE = "no_state"
    """The thinking lacks the observation or the prediction that was asked for, or holds several."""
    NO_ACTION = "no_action"
    """The answer is empty."""
    UNKNOWN_ACTION = "unknown_action"
    """The answer names something that is not an action."""
    FORBIDDEN_TEXT = "forbidden_text"
    """It holds a text that no reply may hold, such as the spelling of a special token (``TurnEnv.forbidden_texts``)."""


_PROBLEMS = {
    Problem.NO_ANSWER: "Malformed: not of the form that was asked for",
    Problem.SEVERAL_ANSWERS: "Malformed: a tag occurs more than once",
    Problem.NO_STATE: "Malformed: the thinking lacks the observation or the prediction that was asked for",
    Problem.NO_ACTION: "Malformed: the answer is empty",
    Problem.UNKNOWN_ACTION: "Names an unknown action",
    Problem.FORBIDDEN_TEXT: "Malformed: holds a text that no reply may hold",
}


def explain_problem(problem: Problem) -> str:
    """A problem in words."""
    return _PROBLEMS[problem]


@dataclass(frozen=True)
class Reply:
    """Content of a reply.

    Attributes:
        text: the reply as it came.
        thinking: the text between the thinking tags, or None.
        names: what the answer names, split on ``||`` and trimmed.
        actions: ids of the known actions among the names, in order; empty where the reply is malformed.
        problem: what is wrong, or None.
        observation, prediction: the parts of the thinking that were asked for, without their tags, or None.
    """

    text: str
    thinking: str | None = None
    names: tuple[str, ...] = ()
    actions: tuple[int, ...] = ()
    problem: Problem | None = None
    observation: str | None = None
    prediction: str | None = None


def parse_reply(text: str, action_names: Sequence[str], *, think: bool = True, parts: Sequence[str] = ()) -> Reply:
    """Read a reply; never raises, and never guesses which of several answers is meant.

    Args:
        text: the reply.
        action_names: the names of the actions by id; case and surrounding space do not matter.
        think: whether the reply must think first; if not, it must be an answer alone.
        parts: what the thinking must hold, of "observation" and "prediction"; each once, wherever it stands.
    """
    parse = _parse if len(text) <= _REMEMBERED else _parse.__wrapped__
    return parse(text, tuple(action_names), think, tuple(parts))


def parse(text: str, action_names: Sequence[str], config: TurnConfig) -> Reply:
    """``parse_reply`` with the options of a turn."""
    return parse_reply(text, action_names, think=config.think, parts=config.state_parts)


def write_reply(names: Sequence[str], thought: str | None = None) -> str:
    """A reply that names these actions, with a thought in its tags unless it is None; ``parse_reply`` reads it."""
    thinking = "" if thought is None else f"<think>{thought}</think>"
    return f"{thinking}<answer>{f' {SEPARATOR} '.join(names)}</answer>"


def open_thinking(prompt: str, last_message: str = "") -> str:
    """The end of a rendered prompt from a ``<think>`` on that is not closed; the empty text without one.

    Args:
        prompt: the prompt, or its end.
        last_message: its last message, whose own tags do not count.
    """
    message = last_message.strip()
    opening = prompt.rpartition(message)[2] if message else prompt
    begun = opening.rfind(_THINK)
    return opening[begun:] if begun > opening.rfind(_END_THINK) else ""


def whole_reply(text: str, reasoning: str | None = None, *, begun: str | None = None, think: bool = True) -> str:
    """A reply with the thinking that a model's output lacks: begun by its prompt, or kept apart by its server.

    Args:
        text: the output.
        reasoning: what a server returned apart from the output as its reasoning: the thinking of an output without
            ``<think>``. Tags that it quotes lose their brackets, since it is clear which answer is meant.
        begun: the end of the prompt that the output completes, see ``open_thinking``; left out before an output that
            writes ``<think>`` again, as models do that are asked for it. None where the prompt is not known, as behind
            a server: then an output with one ``</think>`` and no ``<think>`` completes an open ``<think>``.
        think: whether replies are to think. If not, nothing is added to an output whose prompt is not known.
    """
    if begun is not None:
        return text if text.lstrip().startswith(_THINK) else begun + text
    if not think or _THINK in text:
        return text
    closed = text.count(_END_THINK) == 1
    if reasoning:
        plain = _TAG.sub(r"\1", reasoning)
        return f"{_THINK}{plain}{'' if closed else _END_THINK}{text}"
    return f"{_THINK}{text}" if closed else text


@lru_cache(1024)  # the rollouts of a group often say the same
def _parse(text: str, action_names: tuple[str, ...], think: bool, parts: tuple[str, ...]) -> Reply:
    tags = _TAG.findall(text)
    if len(tags) != len(set(tags)):
        return Reply(text, problem=Problem.SEVERAL_ANSWERS)
    # Only now, with each tag at most once: on many tags this match would take quadratic time.
    match = (_THINK_ANSWER if think else _ANSWER).fullmatch(text)
    if match is None or len(tags) != (4 if think else 2):
        return Reply(text, problem=Problem.NO_ANSWER)
    thinking = match["think"].strip() if think else None
    found = {part: _between(thinking or "", f"<{part}>", f"</{part}>") for part in parts}
    if any(len(texts) != 1 for texts in found.values()):
        return Reply(text, thinking, problem=Problem.NO_STATE)
    said: dict[str, Any] = {part: texts[0] for part, texts in found.items()}
    names = tuple(name.strip() for name in match["answer"].split(SEPARATOR))
    if not any(names):
        return Reply(text, thinking, problem=Problem.NO_ACTION, **said)
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    actions = tuple(ids[name.casefold()] for name in names if name.casefold() in ids)
    problem = None if len(actions) == len(names) else Problem.UNKNOWN_ACTION
    return Reply(text, thinking, names, actions, problem, **said)


def _between(text: str, opening: str, closing: str) -> list[str]:
    """The texts between the tags, from left to right; ``re.findall`` would take quadratic time on many openings."""
    found, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        found.append(text[start + len(opening) : end])
        at = end + len(closing)
    return found


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
    reply = write_reply(names[: config.max_actions_per_turn], f"{seen}{thought}{expected}" if config.think else None)
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
        from ragen_gym.render.tile_sets import shape_names

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
        own += [f"names of actions with {SEPARATOR} between them" if several else "the name of one action"]
        how = f"in the form of the example, with {', '.join(own[:-1])}{' and ' * (len(own) > 1)}{own[-1]}"
    else:
        form = f"<answer>first {SEPARATOR} second</answer>" if several else "<answer>action</answer>"
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


def last_message(board: str, reward: float | None) -> str:
    """The user message after the end of an episode."""
    return "\n".join([*_earned(reward), "The episode is over.", board])


def _earned(reward: float | None) -> list[str]:
    return [] if reward is None else [f"Reward: {reward:g}."]
