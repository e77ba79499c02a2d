"""Facts that the thoughts of a demonstrator state: single statements, the moves that they speak for, other wordings.

The templates are ``direction`` and ``relative`` of ``ragen_agent.tasks.demo_thoughts``.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from ragen_gym.games.game import Game

#: Templates whose thoughts state facts of the board without naming the answer.
TEMPLATES = ("direction", "relative")

_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_WORD = regex.compile(r"\b(?:up|down|left|right)\b")
_PLACE = regex.compile(r"\((\d+),(\d+)\)")
_HOLES = regex.compile(r"\b(A hole is|Holes are) ([^.]+)\.")
_OFFSETS = regex.compile(r"(\d+ \w+) and (\d+ \w+)")
_BEST_ARM = regex.compile(r"(.+) pays more on average than (.+)\.")
#: Sentences that a move follows from, the first that occurs; the group names the moves.
_ADVICE = (
    regex.compile(r"^(.+) pays more on average"),
    regex.compile(r"Push it (\w+) from here"),
    regex.compile(r"Push it \w+ from \(\d+,\d+\): ([^.]+)\."),
    regex.compile(r"goal is at \(\d+,\d+\): ([^.]+)\."),
)


def statements(template: str, thought: str) -> list[str]:
    """The facts of a thought, one by one: directions of the goal, or sentences, with a sentence for each hole."""
    if template == "direction":
        return thought.split()
    single = _HOLES.sub(lambda found: " ".join(f"A hole is {each}." for each in found[2].split(" and ")), thought)
    return [sentence.strip() for sentence in regex.findall(r"[^.]+\.?", single) if sentence.strip()]


def spoken_for(template: str, thought: str, names: Sequence[str]) -> frozenset[int]:
    """The first moves that the facts of a thought speak for: towards the goal or the next push, into no stated hole.

    Args:
        template: the thought's.
        thought: its text, true or not.
        names: of the actions.

    Returns:
        ids of actions; empty if the thought does not follow the template.
    """
    said = thought if template == "direction" else next((m[1] for p in _ADVICE if (m := p.search(thought))), "")
    words = {said.casefold(), *said.casefold().split()}
    if holes := _HOLES.search(thought):
        words -= set(holes[2].split())
    return frozenset(action for action, name in enumerate(names) if name.casefold() in words)


def opposite(thought: str, game: Game, names: Sequence[str]) -> str:
    """The thought with every fact turned: of a grid the same thought about the board turned by 180 degrees.

    Of arms the better one changes places with the other.
    """
    if game.layout == "arms":
        return str(_BEST_ARM.sub(r"\2 pays more on average than \1.", thought))
    order = [name.casefold() for name in names]

    def turned(holes: regex.Match[str]) -> str:
        return f"{holes[1]} {' and '.join(sorted(holes[2].split(' and '), key=order.index))}."

    thought = _WORD.sub(lambda found: _OPPOSITE[found[0]], thought)
    thought = _PLACE.sub(lambda at: f"({game.height - 1 - int(at[1])},{game.width - 1 - int(at[2])})", thought)
    return str(_HOLES.sub(turned, thought))


def reworded(template: str, thought: str) -> str | None:
    """The same facts with the two parts of every offset swapped; None if no offset has two parts."""
    other = " ".join(thought.split()[::-1]) if template == "direction" else _OFFSETS.sub(r"\2 and \1", thought)
    return None if other == thought else other
