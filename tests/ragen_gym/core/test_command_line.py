"""Help that fits a terminal, exit codes and messages of a program, and interrupts."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.command_line import (
    EXTRAS,
    DeferredInterrupt,
    Parser,
    add_command,
    error_line,
    fill,
    print_json,
    run_program,
    stops_at_sigterm,
    wrap,
)
from ragen_gym.core.storage import write_atomic

WORDS = st.lists(st.text("abc-,.", min_size=1, max_size=12), max_size=40)

ABOUT = """\
A paragraph whose lines were broken at another width
than that of the terminal.

examples:
  program train --model qwen2.5-0.5b-instruct --out a/long/folder --seed 3
  program train               what follows after several spaces is a comment"""


def example() -> Parser:
    parser = Parser(prog="my-program", description=ABOUT)
    commands = parser.add_subparsers(metavar="COMMAND")
    train = commands.add_parser("train", help="train")
    train.add_argument("--backend", choices=("local", "ray"))
    train.add_argument("--out", help="a folder")
    train.add_argument("--json", action="store_true")
    train.set_defaults(run=lambda options: 7)
    group = commands.add_parser("bench", help="measure").add_subparsers()
    group.add_parser("run", help="once").add_argument("suite", choices=("smoke", "full"))
    return parser


@given(WORDS, st.integers(20, 100))
def test_no_word_is_broken(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width)
    assert " ".join(lines).split() == words
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_help_fits_the_terminal(width: int) -> None:
    filled = fill(ABOUT, width)
    assert all(len(line) <= width for line in filled.splitlines())
    assert filled.split() == ABOUT.split()
    assert fill(ABOUT, 120).splitlines()[-2:] == ABOUT.splitlines()[-2:]


def test_where_no_command_is_given_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["bench"]):
        options = example().parse_args(words)
        assert options.run(options) == 0
        assert capsys.readouterr().out.startswith(" ".join(["usage: my-program", *words]))
    options = example().parse_args(["train"])
    assert options.run(options) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "Did you mean train?"),
        ("train --backend lcoal", "Did you mean local?"),
        ("train --jsno", "unrecognized arguments: --jsno. Did you mean --json?"),
        ("bench run full --json", "unrecognized arguments: --json. Other commands have it."),
        ("train --zzz", "unrecognized arguments: --zzz\n"),
    ],
)
def test_what_is_mistyped_is_answered_with_the_nearest(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        example().parse_args(words.split())
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_an_error_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "nope" / "x.json", "")
    assert error_line(caught.value) == f"{tmp_path}/nope/x.json: no such file or directory."
    assert error_line(ValueError("two\nlines \x1b[2J")) == "two lines \N{REPLACEMENT CHARACTER}[2J"


@pytest.mark.parametrize("ignored", [False, True], ids=["in-front", "in-background"])
def test_sigterm_stops_as_ctrl_c_does(ignored: bool) -> None:
    terminate, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), stops_at_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert signal.getsignal(signal.SIGTERM) == terminate


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_it_is_asked_for_again(number: signal.Signals) -> None:
    before, said = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)], list[str]()
    with stops_at_sigterm(), DeferredInterrupt("step", said.append) as ctrl_c:
        assert not ctrl_c.pressed
        signal.raise_signal(number)
        assert ctrl_c.pressed
        assert said == ["finishing this step, to save it; Ctrl-C again stops at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_ignored_interrupt_stays_ignored() -> None:
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with DeferredInterrupt("step", print) as ctrl_c:
            signal.raise_signal(signal.SIGINT)
            assert not ctrl_c.pressed
    finally:
        signal.signal(signal.SIGINT, interrupt)


def program(run: Callable[[argparse.Namespace], int], words: str = "do") -> int:
    """The exit code of a program with one command."""

    def build() -> Parser:
        parser = Parser(prog="my-program")
        command = add_command(parser.add_subparsers(), "do", "do it", run)
        command.add_argument("--json", action="store_true")
        return parser

    return run_program("my-program", build, words.split(), (KeyError,))


def executing(statement: str) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        exec(statement)
        return 0

    return run


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise ValueError('no such thing')", "no such thing"),
        ("raise KeyError('other')", "'other'"),
        ("raise MemoryError('full')", "full"),
        ("import wandb", "the library wandb is missing: run pip install 'ragen-gym[tracking]'."),
        ("import some_library.part", "the library some_library is missing: install it."),
        ("from json import no_such_name", f"cannot import name 'no_such_name' from 'json' ({json.__file__})"),
        ("raise ImportError('it needs peft: pip install peft')", "it needs peft: pip install peft"),
    ],
)
def test_a_failure_is_one_line(
    statement: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert program(executing(statement)) == 2
    assert capsys.readouterr().err == f"my-program: error: {said}\n"


def distributions(requirements: Iterable[str]) -> set[str]:
    """The names in requirements, in one spelling."""
    return {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in requirements}


def test_each_extra_brings_its_libraries_and_each_library_has_one() -> None:
    project = Path(__file__).parents[3]
    listed = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: distributions(lines) for name, lines in listed["optional-dependencies"].items()}
    installed = {library: distributions(names) for library, names in packages_distributions().items()}
    present = set[str]().union(*installed.values())
    for library in EXTRAS.keys() & installed.keys():
        named = extras[EXTRAS[library]]
        brought = named.union(*(distributions(requires(each) or ()) for each in named & present))
        assert installed[library] & brought, f"{EXTRAS[library]} does not bring {library}"
    code = [path for name in ("ragen_gym", "ragen_agent") for path in (project / name).rglob("*.py")]
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", "\n".join(each.read_text("utf-8") for each in code), re.M))
    ours = set[str]().union(*(extras[name] for name in set(EXTRAS.values())))
    assert not {each for each in imported & installed.keys() if installed[each] & ours} - EXTRAS.keys()


@pytest.mark.parametrize("statement", ["raise TypeError('a defect')", "from ragen_gym.core import no_such_name"])
def test_a_defect_keeps_its_traceback(statement: str) -> None:
    with pytest.raises((TypeError, ImportError), match=r"a defect|no_such_name"):
        program(executing(statement))


def test_ctrl_c_says_that_the_program_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert program(executing("raise KeyboardInterrupt")) == 130
    assert capsys.readouterr().err == "\nmy-program: stopped.\n"


def test_json_stands_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: argparse.Namespace) -> int:
        print("a greeting")
        print_json({"rate": float("nan"), "ends": (1.0, float("inf"))})
        return 3

    assert program(run, "do --json") == 3
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"rate": None, "ends": [1.0, None]}, "a greeting\n")
    assert program(run) == 3
    assert capsys.readouterr().out.startswith("a greeting\n{")
