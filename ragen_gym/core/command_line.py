"""Shared parts of the command lines: the program's frame, help that fits the terminal, and interrupts."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from ragen_gym.core.console import json_text, plain_output
from ragen_gym.core.text import without_controls
from ragen_gym.core.threads import wait_passively
from ragen_gym.core.validation import did_you_mean

#: Extras of the libraries that some commands need.
EXTRAS = {
    **dict.fromkeys(("accelerate", "gguf", "huggingface_hub", "matplotlib", "pydantic", "pydantic_core"), "agent"),
    **dict.fromkeys(("regex", "rich", "safetensors", "tokenizers", "tomli_w", "torch", "transformers"), "agent"),
    **dict.fromkeys(("fastapi", "httpx", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("jinja2", "markupsafe", "openai", "scipy"), "bench"),
    **{"PIL": "render", "pygame": "render", "pettingzoo": "multiagent", "reasoning_gym": "tasks", "peft": "sft"},
    **{"tensorboard": "tracking", "wandb": "tracking", "deepspeed": "openrlhf", "ray": "openrlhf"},
}


def run_program(
    name: str,
    build: Callable[[], argparse.ArgumentParser],
    words: Sequence[str] | None,
    errors: tuple[type[Exception], ...] = (),
) -> int:
    """Parse the words of a command line, those of the process if None, and call ``run`` of the result.

    With ``--json`` standard output holds what ``print_json`` prints, and nothing else.

    Args:
        name: of the program, before its messages.
        build: makes the parser.
        words: the arguments.
        errors: printed in one line, as are ValueError, OSError, MemoryError and a missing library.

    Returns:
        The exit code of ``run``; 2 for bad input; 130 after Ctrl-C.
    """
    expected: tuple[type[Exception], ...] = (ValueError, OSError, MemoryError, ImportError, *errors)
    wait_passively()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the board's symbols still shows the rest
    with plain_output():
        try:
            arguments = build().parse_args(words)
            with json_alone(getattr(arguments, "json", False)):
                code: int = arguments.run(arguments)
            sys.stdout.flush()
            return code
        except SystemExit as stop:  # --help, --version, or a usage error, which argparse has explained
            return stop.code if isinstance(stop.code, int) else 2
        except KeyboardInterrupt:
            print(f"\n{name}: stopped.", file=sys.stderr)
            return 130
        except BrokenPipeError:  # the reader, say `head`, has read enough
            sys.stderr.close()
            return 0
        except expected as error:
            print(f"{name}: error: {error_line(_with_advice(error))}", file=sys.stderr)
            return 2


def _with_advice(error: Exception) -> Exception:
    """The error; of a library that is not installed, one that says what to install. A defect of ours is raised."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if library in ("ragen_agent", "ragen_gym"):
        raise error
    if not library or not isinstance(error, ModuleNotFoundError):
        return error
    install = f"run pip install 'ragen-gym[{EXTRAS[library]}]'" if library in EXTRAS else "install it"
    return ImportError(f"the library {library} is missing: {install}.")


def add_command(
    commands: Any,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
    examples: str = "",
    description: str = "",
) -> argparse.ArgumentParser:
    """A command, whose description is the summary as a sentence, unless another is given."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
    )
    parser.set_defaults(run=run)
    return parser


_for_json: ContextVar[TextIO | None] = ContextVar("_for_json", default=None)


@contextmanager
def json_alone(asked: bool) -> Iterator[None]:
    """Meanwhile, if ``asked``, standard output is for ``print_json`` alone; all else goes to standard error."""
    before = _for_json.set(sys.stdout if asked else None)
    try:
        with redirect_stdout(sys.stderr if asked else sys.stdout):
            yield
    finally:
        _for_json.reset(before)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json_text(value), file=_for_json.get())


class Parser(argparse.ArgumentParser):
    """A parser whose help fits the terminal; with subcommands, it prints its help if none is given.

    Subcommands use the same class. Flags must be written in full. A command's function is the default ``run``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "formatter_class": _HelpFormatter, "allow_abbrev": False})

    def add_subparsers(self, **options: Any) -> Any:
        """Like argparse, but the command is optional."""
        self.set_defaults(run=self._print_help)
        return super().add_subparsers(**{**options, "required": False})

    def error(self, message: str) -> NoReturn:
        """Exits as argparse does, and suggests the nearest choice or flag."""
        hint = ""
        if match := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            hint = did_you_mean(match[1], re.findall(r"[\w.-]+", match[2]))
        elif match := re.match(r"unrecognized arguments: (--[\w.-]+)", message):
            flags = {
                each for _, parser in parsers(self) for action in parser._actions for each in action.option_strings
            }
            hint = " Other commands have it." if match[1] in flags else did_you_mean(match[1], flags)
        super().error(f"{message}.{hint}" if hint else message)

    def _print_help(self, _: argparse.Namespace) -> int:
        self.print_help()
        return 0


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(fill(text, width - len(indent)), indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width)


def error_line(error: BaseException) -> str:
    """An error and its notes in one line, without control characters.

    For an OSError: the path and the cause.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}."
    return without_controls(" ".join(" ".join([text, *getattr(error, "__notes__", ())]).split()))


def shell_word(path: str | Path) -> str:
    """A path as one word of a shell's command, quoted if it holds a space."""
    return shlex.quote(str(path))


def terminal_width(otherwise: int = 100) -> int:
    """Columns of the terminal; ``otherwise`` if the output goes to a file or a pipe."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def wrap(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    """Lines of at most ``width`` columns that begin with ``first``, then ``later``; words are never broken."""
    later = first if later is None else later
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def fill(text: str, width: int) -> str:
    """Text fitted to ``width`` columns: paragraphs are wrapped, indented lines only where they are longer."""
    lines: list[str] = []
    for line in re.sub(r"(?m)^(\S.*)\n(?=\S)", r"\1 ", text.strip("\n")).split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += [line] if len(line) <= width else wrap(line.strip(), width, indent, f"{indent}    " if indent else "")
    return "\n".join(lines)


def parsers(parser: argparse.ArgumentParser, at: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser and the parsers of its commands, each with the words that lead to it."""
    yield at, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from parsers(each, f"{at} {name}")


@contextmanager
def stops_at_sigterm() -> Iterator[None]:
    """Within it, SIGTERM stops the program as Ctrl-C does, even if Ctrl-C is ignored (a script's `&`).

    Schedulers of clusters and containers send it some seconds before they kill. No effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class DeferredInterrupt:
    """Within it, Ctrl-C only sets ``pressed``, so that the current work can be finished and saved.

    A second Ctrl-C interrupts at once. SIGTERM counts as Ctrl-C within ``stops_at_sigterm``. Ignored signals stay
    ignored. No effect outside the main thread.

    Args:
        what: the work to finish, such as "step".
        say: prints a message for the user.
    """

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self.pressed, self._what, self._say = False, what, say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
        self._say(f"finishing this {self._what}, to save it; Ctrl-C again stops at once")
