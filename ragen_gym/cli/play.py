"""``ragen-gym play``: play a game move by move, or turn by turn as a language model does."""

from __future__ import annotations

import argparse
import codecs
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import Any, TextIO

from ragen_gym.cli.command import add_command, add_seed, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment
from ragen_gym.core.console import raw_stdout
from ragen_gym.core.text import EDGE, Vocabulary, without_controls
from ragen_gym.envs.policies import action_budget, reply_for
from ragen_gym.envs.reply import SEPARATOR
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.game import Board, Game
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.recorder import key_names, what_happened

__all__ = ["add", "colourful", "painted", "side_by_side", "single_keys"]

_HINT, _NEXT, _QUIT = ("?", "hint"), ("n", "next"), ("q", "quit")

_EXAMPLES = f"""\
In a terminal the board is redrawn in place, and a key plays: an arrow, or the letter or number that is shown. Typed
or piped words are the names or keys of the actions, several with {SEPARATOR} between them. ? shows the oracle's advice,
n plays the next level, q quits. With --turn the message stands beside your last reply.

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

#: A key as a terminal sends it: a control sequence (ECMA-48), or a letter. Without its end the rest is yet to come.
_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)|[^\x1b]", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")

_END = "\x04"  # Ctrl-D
_CLEAR = "\x1b[H\x1b[2J"
_GO_ON = "n plays the next level, q quits."


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


def can_redraw() -> bool:
    """True if a person sits at a terminal that can be drawn on: keyboard and screen, and not a dumb one."""
    return can_read_keys(sys.stdin) and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def redrawn_screen(cursor: bool) -> Iterator[None]:
    """The terminal's second screen, with or without a cursor; the first one comes back after, as it was."""
    print("\x1b[?1049h" + "\x1b[?25l" * (not cursor), end="", file=raw_stdout(), flush=True)
    try:
        yield
    finally:
        print("\x1b[?25h\x1b[?1049l", end="", file=raw_stdout(), flush=True)


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
    decoder, pressed = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while piece := os.read(number, 64):
        pressed += decoder.decode(piece)
        rest = _UNFINISHED.search(pressed)
        end = rest.start() if rest else len(pressed)
        for key in _KEY.findall(pressed[:end]):
            if key == _END:
                return
            yield _ARROWS.get(key, key)
        pressed = pressed[end:]


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
    def level_line(self) -> str:
        """Level and its budget."""
        return f"\nLevel {self.env.level.id}, {self.budget} action{'s' * (self.budget > 1)} to play"

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
    redraws = can_redraw()
    with redrawn_screen(cursor=arguments.turn) if redraws else nullcontext():
        if arguments.turn:
            env = make_turn(spec.name, think=not arguments.no_think, **chosen)
            ended = play_turns(env, arguments.seed, read_lines(sys.stdin, "\nreply> "), redraws)
        else:
            played = HumanPlay(spec, chosen, arguments.seed)
            with (
                single_keys(sys.stdin)
                if can_read_keys(sys.stdin)
                else nullcontext(read_lines(sys.stdin, "> ")) as words
            ):
                ended = play_moves(played, words, redraws)
    print(f"{sum(ended)} of {len(ended)} levels solved." if ended else "No level was played to its end.")
    return 0


def play_moves(played: HumanPlay, words: Iterator[str], redraws: bool = False) -> Sequence[bool]:
    """Play level after level with the words or keys of a player, until there are no more or one says to quit.

    Args:
        played: at the start of its first level.
        words: of the player.
        redraws: draw every change over the one before, instead of below it.

    Returns:
        Success of each level that was played to its end.
    """
    about = wrapped(played.env.game.description)
    if not redraws:
        print(f"{about}\n{played.menu}")
    said, changed = played.level_line, True
    each = _words(words)
    while True:
        _show_moves(played, about, said, changed, redraws)
        word = next(each, _QUIT[0])
        if word in _QUIT:
            return played.ended
        said, changed = _answer(played, word)


def _words(lines: Iterator[str]) -> Iterator[str]:
    """The words of all lines, in small letters, without empty ones."""
    for line in lines:
        yield from filter(None, (part.strip().lower() for part in line.split(SEPARATOR)))


def _answer(played: HumanPlay, word: str) -> tuple[str, bool]:
    """Carry out a player's word; what to say to it, and True if the board is to be shown again."""
    if word in _NEXT:
        played.next_level()
        return played.level_line, True
    if played.over:
        return f"This level is over: {_GO_ON}", False
    if word in _HINT:
        return played.advice(), False
    action = played.action_of(word)
    if action is None:
        return f"{word!r} is not an action. {played.menu}", False
    said = played.play(action)
    return f"\n{said} {_GO_ON}" if played.over else f"\n{said}", bool(played.env.game.own_vocabulary.symbols)


def _show_moves(played: HumanPlay, about: str, said: str, changed: bool, redraws: bool) -> None:
    if not redraws:
        print(said)
        if changed:
            print(_board(played.env), file=raw_stdout(), flush=True)
        return
    print(_CLEAR, end="", file=raw_stdout())
    print(f"{about}\n")
    print(_board(played.env), file=raw_stdout())
    print(f"\n{wrapped(said.removesuffix(played.menu).strip())}\n\n{played.menu}")
    if played.action_of("up") is not None:
        print("The arrow keys play as well.")
    sys.stdout.flush()


def _board(env: StepEnv) -> str:
    if not colourful(sys.stdout) or env.text_format != "grid":
        return env.text
    return painted(env.game, env.state[0], env.vocabulary, env.text)


def play_turns(env: TurnEnv, seed: int, lines: Iterator[str], redraws: bool = False) -> Sequence[bool]:
    """Play level after level with whole replies, each one line, until there are no more or one says to quit.

    With ``redraws``, the message stands beside the last reply and what became of it, and replaces the one before.

    Returns:
        Success of each level that was played to its end.
    """
    ended: list[bool] = []
    env.reset(seed=seed)
    help_line = "(? shows the oracle's move, n plays the next level, q quits.)"
    _show_turn(env, f"{env.instructions}\n\n{help_line}\n", redraws)
    for line in lines:
        word = line.strip().lower()
        if word in _QUIT:
            break
        if word in _NEXT:
            env.reset()
            _show_turn(env, "", redraws)
        elif word and env.over:
            print(f"This level is over: {_GO_ON}")
        elif word in _HINT:
            print(f"The oracle plays {env.action_names[env.oracle_action()]}.")
        elif word:
            success, said = _take(env, line)
            ended += success
            _show_turn(env, f"> {line}\n\n{said}" if redraws else f"\n{said}", redraws)
    return ended


def _take(env: TurnEnv, line: str) -> tuple[list[bool], str]:
    """Take one reply; success in a list that is empty while the level goes on, and what became of the reply."""
    _, reward, terminated, truncated, info = env.step(line)
    reply, over = info["reply"], terminated or truncated
    played = ", ".join(env.action_names[action] for action in info["actions"]) or "nothing"
    said = [f"Played: {played}. Reward {reward:g}." + (f" Problem: {reply.problem.value}." if reply.problem else "")]
    if reply.problem and not over:
        said.append(f"For example: {reply_for(env, [0], 'I try this one.')}")
    if over:
        said.append("Success! " * info["success"] + _GO_ON)
    return [bool(info["success"])] * over, "\n".join(said)


def _show_turn(env: TurnEnv, said: str, redraws: bool) -> None:
    """Message to reply to, with what is said to the reply before: above it, or beside it on a screen of its own."""
    if not redraws:
        print(f"{said}\n{env.message_text}", flush=True)
        return
    message = without_controls(env.message_text)
    if env.env.text:
        message = message.replace(env.env.text, _board(env.env), 1)
    columns = shutil.get_terminal_size().columns
    print(_CLEAR + side_by_side(message, without_controls(said), columns), file=raw_stdout(), flush=True)


def side_by_side(left: str, right: str, columns: int) -> str:
    """Two texts beside each other, wrapped to at most half of the columns each; colours take no room."""
    half = (columns - 3) // 2
    texts = [_fitted(text, half) for text in (left, right)]
    width = max((_room(line) for line in texts[0]), default=0)
    return "\n".join(
        f"{first}{' ' * (width - _room(first))} \N{BOX DRAWINGS LIGHT VERTICAL} {second}".rstrip()
        for first, second in zip_longest(*texts, fillvalue="")
    )


def _fitted(text: str, width: int) -> list[str]:
    return [
        piece
        for line in text.split("\n")
        for piece in ([line] if _room(line) <= width or "\x1b" in line else textwrap.wrap(line, width) or [""])
    ]


def _room(line: str) -> int:
    """Columns that a line takes."""
    return len(re.sub(r"\x1b\[[0-9;]*m", "", line))
