"""``prompt="ragen-v1"``: the messages and the reply grammar of RAGEN (arXiv 2504.20073 and its released code).

What an agent is given to read and how its reply is read, in words of our own:

| | ``default`` | ``ragen-v1`` |
|---|---|---|
| slip of the ice | not stated | stated, where the ice slips |
| pay-outs | stated in the system message | hidden: only the reward after each turn shows them |
| BanditRev | says that names may mislead | the very text of Bandit |
| reward after a turn | with the format penalty | the game's alone |
| moves of one reply | the most are stated | not stated; names beyond the most are not read |
| reply | the whole text, of no other than the form asked for | ``</think>``, white space, ``<answer>``, ``</answer>`` |
| ``<think>`` at its start | the model's to write | begun for the model; the reply need not hold it |
| tags written twice | malformed | left out |
| empty names, as in ``Up ||`` | an unknown action | left out |
| grounding, world modelling | optional | not there |
| an example reply | optional | not there |

Well-formed replies play the same moves under both, so the rates of random and of optimal play do not change. Otherwise
``ragen-v1`` is the more lenient one: every reply without fault under ``default`` is one here, not the other way round.
The rules stand in the system message, where a history window keeps them; the released code puts them before the first
turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.prompts import shown_symbols, shown_tiles
from ragen_gym.envs.reply import SEPARATOR, Problem, Reply
from ragen_gym.games.game import Game

SHOWS_PENALTY = False
example = None

_SEAM = re.compile(r"</think>\s*<answer>")
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")


def instructions(game: Game, vocabulary: Vocabulary, config: TurnConfig) -> str:
    """The system message."""
    legend = ", ".join(f"{symbol}: {meaning}" for symbol, meaning in shown_symbols(game, vocabulary, config))
    lines = [game.ragen_v1_task()]
    if legend:
        lines += ["What the symbols of a state mean:", legend]
    lines += shown_tiles(game, config)
    if game.layout != "arms":
        names = [action.name.capitalize() for action in game.Action]
        lines += [
            "Actions to choose from:",
            ", ".join(names),
            f"In all you may take {config.max_actions} actions. Put {SEPARATOR} between them, "
            f"for example <answer>{names[-1]} {SEPARATOR} {names[0]}</answer>",
        ]
    return "\n".join(lines)


def message(config: TurnConfig, board: str, turn: int, actions_left: int, reward: float | None) -> str:
    """The user message before turn number ``turn``, from 1 on; ``reward`` is that of the turn before, or None."""
    thought = "<think> [your thoughts] </think> " if config.think else ""
    limit = f" Use {config.max_tokens_per_turn} tokens at most." if config.max_tokens_per_turn else ""
    lines = [
        *_earned(reward),
        f"Turn {turn}:",
        "State:",
        board,
        f"Actions left: {actions_left}. Keep strictly to the form {thought}<answer> [your answer] </answer> and write "
        f"nothing else.{limit}",
    ]
    return "\n".join(lines)


def last_message(board: str, reward: float | None) -> str:
    """The user message after the end of an episode."""
    return "\n".join([*_earned(reward), "The episode is over. State:", board])


def parse(text: str, action_names: Sequence[str], config: TurnConfig) -> Reply:
    """Read a reply as if it began with ``<think>`` (without thinking, ``<answer>``); see the module."""
    thinking, start = None, 0
    if config.think:
        seam = _SEAM.search(text)
        if seam is None:
            return Reply(text, problem=Problem.NO_ANSWER)
        thinking, start = _plain(text[: seam.start()]), seam.end()
    end = text.find("</answer>", start)
    if end < 0:
        return Reply(text, problem=Problem.NO_ANSWER)
    named = [name.strip() for name in _plain(text[start:end]).split(SEPARATOR)]
    names = tuple(name for name in named if name)[: config.max_actions_per_turn]
    if not names:
        return Reply(text, thinking, problem=Problem.NO_ACTION)
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    actions = tuple(ids[name.casefold()] for name in names if name.casefold() in ids)
    problem = None if len(actions) == len(names) else Problem.UNKNOWN_ACTION
    return Reply(text, thinking, names, actions, problem)


def _plain(text: str) -> str:
    """The text without tags, which are taken out one kind after the other."""
    for tag in _TAGS:
        text = text.replace(tag, "").strip()
    return text


def _earned(reward: float | None) -> list[str]:
    return [] if reward is None else ["Reward:", f"{reward:g}", ""]
