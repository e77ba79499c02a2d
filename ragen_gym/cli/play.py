"""``ragen-gym play``: play a game move by move, or turn by turn as a language model does."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from ragen_gym.cli.command import add_command, add_seed, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment
from ragen_gym.core.console import raw_stdout
from ragen_gym.core.text import EDGE, Vocabulary
from ragen_gym.envs.policies import action_budget, reply_for
from ragen_gym.envs.reply import SEPARATOR
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.game import Board, Game
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.recorder import key_names, what_happened

__all__ = ["add", "can_read_keys", "colourful", "painted", "play_moves", "play_turns", "read_lines", "single_keys"]

_HINT, _NEXT, _QUIT = ("?", "hint"), ("n", "next"), ("q", "quit")

_EXAMPLES = f"""\
While playing: the keys or the names of the actions (several with {SEPARATOR} between them), ? for the oracle's
advice, n for the next level, q to quit.

examples:
  ragen-gym play FrozenLake
  ragen-gym play FrozenLake --option size=6 --option success_rate=1
  ragen-gym play Bandit --split test --seed 7
  echo 'Up {SEPARATOR} Left' | ragen-gym play FrozenLake
"""

#: ANSI colours by the start of a tile's name; the first that fits is taken.
_COLOURS = {
    "PLAYER_IN_HOLE": "1;31",
    "PLAYER": "1;33",
    "BOX_ON_TARGET": "1;32",
    "BOX": "33",
    "TARGET": "1;31",
    "GOAL": "1;32",
    "HOLE": "34",
    "WALL": "2",
}

_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
_ARROWS |= {key.replace("[", "O"): word for key, word in _ARROWS.items()}

_END = "\x04"  # Ctrl-D


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = add_command(commands, "play", "play a game in the terminal", _play, _EXAMPLES)
    add_environment_options(parser)
    add_seed(parser, "the levels and their noise")
    parser.add_argument("--turn", action="store_true", help="type whole replies, as a language model gives them")
    parser.add_argument("--no-think", action="store_true", help="with --turn: replies without <think> tags")


def colourful(stream: TextIO) -> bool:
    """True if colours belong here: a terminal that is not dumb, and no NO_COLOR (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def painted(game: Game, board: Board, vocabulary: Vocabulary, text: str) -> str:
    """A board's text for a person: in colour, a space between the symbols of a grid."""
    if not vocabulary.symbols:
        return "\n".join(f"{place} {line}" for place, line in enumerate(text.split("\n"), 1))
    colours = [next((c for start, c in _COLOURS.items() if tile.name.startswith(start)), "") for tile in game.Tile]
    rows = bytes(board).split(bytes([EDGE]))
    return "\n".join(
        " ".join(
            f"\x1b[{colours[tile]}m{vocabulary.symbols[tile]}\x1b[0m" if colours[tile] else vocabulary.symbols[tile]
            for tile in row
        )
        for row in rows
    )


def can_read_keys(stream: TextIO) -> bool:
    """True if single keys can be read: a terminal of a system that has ``termios``."""
    try:
        import termios  # noqa: F401  (absent on Windows)
    except ImportError:
        return False
    return stream.isatty()


@contextmanager
def single_keys(stream: TextIO) -> Iterator[Iterator[str]]:
    """Each key as it is pressed, an arrow as its direction, to the end of the input; puts the terminal back after."""
    import termios
    import tty

    before = termios.tcgetattr(stream.fileno())
    tty.setcbreak(stream.fileno())  # not raw: Ctrl-C still interrupts
    try:
        yield _keys(stream.fileno())
    finally:
        termios.tcsetattr(stream.fileno(), termios.TCSADRAIN, before)


def _keys(number: int) -> Iterator[str]:
    while True:
        pressed = os.read(number, 64).decode("utf-8", "replace")
        for key in re.findall(r"\x1b[\[O][A-D]|.", pressed, re.DOTALL):
            if key == _END:
                return
            yield _ARROWS.get(key, key)
        if not pressed:
            return


def read_lines(stream: TextIO, prompt: str) -> Iterator[str]:
    """Each line without its end, after a prompt where a person types; ends with the input."""
    while True:
        if stream.isatty():
            print(prompt, end="", flush=True, file=sys.stdout)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip("\n")


class HumanPlay:
    """A person plays level after level: the environment, the budget of the level, and how the levels so far ended.

    Args:
        spec: the environment.
        chosen: arguments of ``StepEnv``.
        seed: seed of the levels and their noise.
    """

    def __init__(self, spec: GameSpec, chosen: dict[str, Any], seed: int) -> None:
        self.env = StepEnv(spec.name, **chosen)
        self.budget = action_budget(self.env)
        self.keys = key_names(self.env.game)
        self.ended: list[bool] = []
        self.next_level(seed)

    def next_level(self, seed: int | None = None) -> None:
        """Start the next level, or the first one of a seed."""
        self.env.reset(seed=seed)
        self.played, self.total, self.over = 0, 0.0, False

    def play(self, action: int) -> str:
        """Play one action; a line on what it did, and how the level ended if it did."""
        before = self.env.state[0]
        _, reward, terminated, _, info = self.env.step(action)
        self.played, self.total = self.played + 1, self.total + reward
        self.over = terminated or self.played == self.budget
        said = what_happened(self.env.game, before, action, self.env.state[0], reward)
        said += f"  (action {self.played} of {self.budget}, reward {reward:g}, sum {self.total:g})"
        if self.over:
            self.ended.append(bool(info["success"]))
            ending = "The level is over." if terminated else "No actions are left."
            said += "\n" + ("Success!" if info["success"] else ending)
        return said

    def advice(self) -> str:
        """Move that the oracle would play."""
        action = self.env.oracle_action(self.budget - self.played)
        chance = self.env.solution().success(*self.env.state, self.budget - self.played)
        return f"The oracle plays {self.env.action_names[action]}: success {100 * chance:.0f} % from here."

    def action_of(self, word: str) -> int | None:
        """The action that a name or key, in small letters, stands for."""
        for table in (self.env.action_names, self.keys, [action.name for action in self.env.game.Action]):
            words = [entry.lower() for entry in table]
            if word in words:
                return words.index(word)
        return None

    @property
    def actions(self) -> list[str]:
        """The actions, each after its key."""
        return [f"{key} {name}" for key, name in zip(self.keys, self.env.action_names, strict=True)]

    @property
    def menu(self) -> str:
        """The actions and the other words, with their keys."""
        return wrapped(f"Play: {', '.join(self.actions)}. Also: ? hint, n next level, q quit.")


def _play(arguments: argparse.Namespace) -> int:
    spec, chosen = chosen_environment(arguments)
    if arguments.no_think and not arguments.turn:
        raise ValueError("--no-think is for replies: add --turn, or leave it out.")
    if arguments.turn:
        env = make_turn(spec.name, think=not arguments.no_think, **chosen)
        return play_turns(env, arguments.seed, read_lines(sys.stdin, "\nreply> "))
    played = HumanPlay(spec, chosen, arguments.seed)
    if not can_read_keys(sys.stdin):
        return play_moves(played, read_lines(sys.stdin, "> "))
    with single_keys(sys.stdin) as keys:
        return play_moves(played, keys)


def _summary(ended: Sequence[bool]) -> str:
    """How the levels ended."""
    return f"{sum(ended)} of {len(ended)} levels solved." if ended else "No level was played to its end."


def play_moves(played: HumanPlay, words: Iterator[str]) -> int:
    """Play level after level with the words or keys of a player, until there are no more or one says to quit."""
    print(f"{wrapped(played.env.game.description)}\n{played.menu}")
    _show(played)
    for line in words:
        for word in (part.strip().lower() for part in line.split(SEPARATOR)):
            if word in _QUIT:
                print(_summary(played.ended))
                return 0
            if word in _NEXT:
                played.next_level()
                _show(played)
            elif word and played.over:
                print("This level is over: n plays the next one, q quits.")
            elif word in _HINT:
                print(played.advice())
            elif word:
                _move(played, word)
    print(_summary(played.ended))
    return 0


def _move(played: HumanPlay, word: str) -> None:
    action = played.action_of(word)
    if action is None:
        print(f"{word!r} is not an action. {played.menu}")
        return
    print("\n" + played.play(action))
    if played.env.game.own_vocabulary.symbols:
        print(_board(played), file=raw_stdout())
    if played.over:
        print("n plays the next level, q quits.")


def _show(played: HumanPlay) -> None:
    env = played.env
    print(f"\nLevel {env.level.id}, {played.budget} action{'s' * (played.budget > 1)} to play")
    print(_board(played), file=raw_stdout(), flush=True)


def _board(played: HumanPlay) -> str:
    env = played.env
    if not colourful(sys.stdout) or env.text_format != "grid":
        return env.text
    return painted(env.game, env.state[0], env.vocabulary, env.text)


def play_turns(env: TurnEnv, seed: int, lines: Iterator[str]) -> int:
    """Play level after level with whole replies, each one line, until there are no more or one says to quit."""
    ended: list[bool] = []
    env.reset(seed=seed)
    print(
        f"{env.instructions}\n\n{env.message_text}\n(? shows the oracle's move, n plays the next level, q quits.)",
        flush=True,
    )
    for line in lines:
        word = line.strip().lower()
        if word in _QUIT:
            break
        if word in _NEXT:
            env.reset()
            print(env.message_text, flush=True)
        elif word and env.over:
            print("This level is over: n plays the next one, q quits.")
        elif word in _HINT:
            print(f"The oracle plays {env.action_names[env.oracle_action()]}.")
        elif word:
            ended += _take(env, line)
    print(_summary(ended))
    return 0


def _take(env: TurnEnv, line: str) -> list[bool]:
    """Take one reply; whether the level ended in success, in a list that is empty while it goes on."""
    _, _, terminated, truncated, info = env.step(line)
    reply = info["reply"]
    played = ", ".join(env.action_names[action] for action in info["actions"]) or "nothing"
    print(f"\nPlayed: {played}." + (f" Problem: {reply.problem.value}." if reply.problem else ""))
    if reply.problem and not (terminated or truncated):
        print(f"For example: {reply_for(env, [0], 'I try this one.')}")
    print(env.message_text, flush=True)
    if not (terminated or truncated):
        return []
    print("Success! " * info["success"] + "n plays the next level, q quits.")
    return [bool(info["success"])]
