"""``ragen-gym play``: play a game move by move, or turn by turn as a language model does."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ragen_gym.cli.command import add_seed, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment
from ragen_gym.core.command_line import add_command
from ragen_gym.core.console import raw_stdout
from ragen_gym.core.text import EDGE, Vocabulary
from ragen_gym.envs.policies import action_budget, reply_for
from ragen_gym.envs.reply import SEPARATOR
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.game import Board, Game
from ragen_gym.render.recorder import key_names, what_happened

_HINT, _NEXT, _QUIT = ("?", "hint"), ("n", "next"), ("q", "quit")

_EXAMPLES = f"""\
In a terminal the board is redrawn in place, and a key plays: an arrow, or the letter or number that is shown. Typed
or piped words are the names or keys of the actions, several with {SEPARATOR} between them. ? shows the oracle's advice,
n plays the next level, q quits.

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

_ARROWS = dict(zip("ABCD", ("up", "down", "right", "left"), strict=True))
#: An arrow, another key that sends a control sequence (ECMA-48), or a letter.
_KEY = re.compile(r"\x1b(?:[\[O]([A-D])|\[[0-?]*[ -/]*[@-~]|O.)|([^\x1b])", re.DOTALL)

_END = "\x04"  # Ctrl-D
_CLEAR = "\x1b[H\x1b[2J"
_GO_ON = "n plays the next level, q quits."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = add_command(commands, "play", "play a game in the terminal", _play, _EXAMPLES)
    add_environment_options(parser)
    add_seed(parser, "the levels and their noise")
    parser.add_argument("--turn", action="store_true", help="type whole replies, as a language model gives them")


def _play(arguments: argparse.Namespace) -> int:
    spec, chosen = chosen_environment(arguments)
    if arguments.turn:
        ended = _play_turns(make_turn(spec.name, **chosen), arguments.seed, _lines("\nreply> "))
    else:
        person = HumanPlay(StepEnv(spec.name, **chosen), arguments.seed)
        if _has_keys():
            with single_keys(sys.stdin) as keys:
                ended = person.play(keys, redraws=True)
        else:
            ended = person.play(part.strip() for line in _lines("> ") for part in line.split(SEPARATOR))
    print(f"{sum(ended)} of {len(ended)} levels solved." if ended else "No level was played to its end.")
    return 0


def _has_keys() -> bool:
    """True if a person sits at a terminal that can be drawn on and whose keys can be read one by one."""
    try:
        import termios  # noqa: F401  (absent on Windows)
    except ImportError:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


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
    while pressed := os.read(number, 1024).decode(errors="replace"):
        for arrow, key in _KEY.findall(pressed):
            if key == _END:
                return
            if arrow or key:
                yield _ARROWS[arrow] if arrow else key


def _lines(prompt: str) -> Iterator[str]:
    """Each line of the input without its end, after a prompt where a person types."""
    while True:
        if sys.stdin.isatty():
            print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


class HumanPlay:
    """A person plays level after level: the environment, the budget of the level, and how the levels so far ended."""

    def __init__(self, env: StepEnv, seed: int) -> None:
        self.env, self.ended = env, list[bool]()
        self.played, self.total, self.over = 0, 0.0, False
        env.reset(seed=seed)
        self.budget, self.keys = action_budget(env), key_names(env.game)

    @property
    def menu(self) -> str:
        """The actions of this level and the other words, with their keys."""
        actions = ", ".join(f"{key} {name}" for key, name in zip(self.keys, self.env.action_names, strict=True))
        return wrapped(f"Play: {actions}. Also: ? hint, n next level, q quit.")

    def play(self, words: Iterator[str], redraws: bool = False) -> list[bool]:
        """Success of each level that a player finished by words or keys, until one says to quit."""
        about = wrapped(self.env.game.description)
        if not redraws:
            print(f"{about}\n{self.menu}")
        said, changed = self._level_line(), True
        while True:
            if redraws:
                print(_CLEAR, end="", file=raw_stdout())
                print(f"{about}\n")
                print(self._board(), file=raw_stdout())
                print(f"\n{wrapped(said.removesuffix(self.menu).strip())}\n\n{self.menu}", flush=True)
            else:
                print(said)
                if changed:
                    print(self.env.text, flush=True)
            word = next(filter(None, words), _QUIT[0]).lower()
            if word in _QUIT:
                return self.ended
            said, changed = self._answer(word)

    def _answer(self, word: str) -> tuple[str, bool]:
        """Carry out a player's word; what to say to it, and True if the board is to be shown again."""
        if word in _NEXT:
            self.env.reset()
            self.played, self.total, self.over = 0, 0.0, False
            return self._level_line(), True
        if self.over:
            return f"This level is over: {_GO_ON}", False
        left = self.budget - self.played
        if word in _HINT:
            name = self.env.action_names[self.env.oracle_action(left)]
            chance = self.env.solution().success(*self.env.state, left)
            return f"The oracle plays {name}: success {100 * chance:.0f} % from here.", False
        action = self._action_of(word)
        if action is None:
            return f"{word!r} is not an action. {self.menu}", False
        return f"\n{self._step(action)}", bool(self.env.game.own_vocabulary.symbols)

    def _step(self, action: int) -> str:
        """Play one action; a line on what it did, and how the level ended if it did."""
        before = self.env.state[0]
        _, reward, terminated, _, info = self.env.step(action)
        self.played, self.total = self.played + 1, self.total + reward
        self.over = terminated or self.played == self.budget
        said = what_happened(self.env.game, before, action, self.env.state[0], reward)
        said += f"  (action {self.played} of {self.budget}, reward {reward:g}, sum {self.total:g})"
        if self.over:
            self.ended.append(bool(info["success"]))
            ending = "Success!" if info["success"] else "The level is over." if terminated else "No actions are left."
            said += f"\n{ending} {_GO_ON}"
        return said

    def _action_of(self, word: str) -> int | None:
        """The action that a name or key, in small letters, stands for."""
        for table in (self.env.action_names, self.keys, [action.name for action in self.env.game.Action]):
            words = [entry.lower() for entry in table]
            if word in words:
                return words.index(word)
        return None

    def _level_line(self) -> str:
        return f"\nLevel {self.env.level.id}, {self.budget} action{'s' * (self.budget > 1)} to play"

    def _board(self) -> str:
        if os.environ.get("NO_COLOR") or self.env.text_format != "grid":  # https://no-color.org
            return self.env.text
        return painted(self.env.game, self.env.state[0], self.env.vocabulary, self.env.text)


def painted(game: Game, board: Board, vocabulary: Vocabulary, text: str) -> str:
    """A board's text for a person: in colour, a space between the symbols of a grid."""
    if not vocabulary.symbols:
        return "\n".join(f"{place} {line}" for place, line in enumerate(text.split("\n"), 1))
    colours = [next((c for start, c in _COLOURS.items() if tile.name.startswith(start)), "0") for tile in game.Tile]
    symbols = [f"\x1b[{c}m{symbol}\x1b[0m" for c, symbol in zip(colours, vocabulary.symbols, strict=True)]
    return "\n".join(" ".join(symbols[tile] for tile in row) for row in bytes(board).split(bytes([EDGE])))


def _play_turns(env: TurnEnv, seed: int, lines: Iterator[str]) -> list[bool]:
    """Success of each level that was finished by whole replies, each one line, until one says to quit."""
    ended: list[bool] = []
    env.reset(seed=seed)
    print(f"{env.instructions}\n\n(? shows the oracle's move, {_GO_ON})\n\n{env.message_text}", flush=True)
    for line in lines:
        word = line.strip().lower()
        if word in _QUIT:
            break
        if word in _NEXT:
            env.reset()
            print(f"\n{env.message_text}", flush=True)
        elif word and env.over:
            print(f"This level is over: {_GO_ON}")
        elif word in _HINT:
            print(f"The oracle plays {env.action_names[env.oracle_action()]}.")
        elif word:
            _, reward, terminated, truncated, info = env.step(line)
            print(f"\n{_said(env, reward, info)}\n{env.message_text}", flush=True)
            if terminated or truncated:
                ended.append(bool(info["success"]))
    return ended


def _said(env: TurnEnv, reward: float, info: dict[str, Any]) -> str:
    """What became of a reply."""
    problem = info["reply"].problem
    played = ", ".join(env.action_names[action] for action in info["actions"]) or "nothing"
    said = f"Played: {played}. Reward {reward:g}." + (f" Problem: {problem.value}." if problem else "")
    if env.over:
        return f"{said}\n{'Success! ' * info['success']}{_GO_ON}"
    return f"{said}\nFor example: {reply_for(env, [0], 'I try this one.')}" if problem else said
