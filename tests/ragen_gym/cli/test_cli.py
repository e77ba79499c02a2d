"""The command line: every command on every id, what it refuses and how."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.cli import build_parser, main
from ragen_gym.cli.episodes import conversation, picture_episode, showcase_seed, turn_options
from ragen_gym.cli.play import painted, single_keys
from ragen_gym.core.levels import read_levels
from ragen_gym.envs.policies import blind_value
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import TABLE, GameSpec

ROWS = list(TABLE.values())
every_id = pytest.mark.parametrize("spec", ROWS, ids=[spec.name for spec in ROWS])
#: Ids whose oracle needs no other budgets of turns than the command's.
USUAL_BUDGETS = [spec for spec in ROWS if "max_turns" not in turn_options(spec, {})]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with some standard input: (exit code, output, errors)."""

    def run_command(*argv: object, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return run_command


def test_list_names_every_id(run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [spec.id for spec in ROWS]
    assert [entry["id"] for entry in json.loads(run("list", "--json")[1])] == [spec.id for spec in ROWS]


@every_id
def test_info_says_what_a_game_is_and_how_well_it_can_be_played(run: Run, spec: GameSpec) -> None:
    facts = json.loads(run("info", spec.id, "--measure", 40, "--json")[1])
    game = StepEnv(spec.name).game
    assert facts["actions"] == {action.name.capitalize(): action.value for action in game.Action}
    assert {name: option["default"] for name, option in facts["options"].items()} == {**game.options(), **spec.options}
    assert all(option["doc"] for option in facts["options"].values())
    assert facts["horizon"] == spec.horizon
    assert facts["random"]["n"] == facts["optimal"]["n"] == 40
    assert facts["random"]["low"] <= facts["random"]["rate"] < facts["optimal"]["rate"] <= facts["optimal"]["high"]
    code, out, _ = run("info", spec.name, "-n", 40)
    assert code == 0
    assert all(name in out for name in facts["options"])
    assert f"{100 * facts['optimal']['rate']:.1f} %" in out


def test_info_measures_what_the_options_choose(run: Run) -> None:
    slippery, straight = (
        json.loads(run("info", "FrozenLake", "-n", 60, "--option", f"success_rate={rate}", "--json")[1])
        for rate in ("1/3", "1")
    )
    assert straight["optimal"]["rate"] == 1 > slippery["optimal"]["rate"]
    test = json.loads(run("info", "Bandit", "-n", 0, "--split", "test", "--json")[1])
    assert "random" not in test


def test_an_option_of_several_types_takes_values_of_each(run: Run) -> None:
    for names, board in (("ragen-v1", {"Librarian", "Trader"}), ('[["Baker","Pirate"]]', {"Baker", "Pirate"})):
        split = ["--split", "test"] if names == "ragen-v1" else []
        code, out, _ = run("play", "Bandit", "--option", f"names={names}", *split, typed="")
        assert code == 0
        assert board <= set(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("play FrozenLak", "Did you mean FrozenLake"),
        ("play FrozenLake --option sise=5", "Did you mean size"),
        ("play FrozenLake --option size=5 --option size=6", "size is given as 5 and as 6: give one of them"),
        ("play FrozenLake --option size=big", "size='big' must be None or an integer from 2 to 64"),
        ("play FrozenLake --option random_start=perhaps", "must be True or False"),
        ("play FrozenLake --option success_rate=1/0", "a number"),
        ("play FrozenLake --option success_rate=1e400", "success_rate=inf must be a number from 0 to 1"),
        ("play FrozenLake --text-format prose", "choose one of"),
        ("play FrozenLake --vocabulary runes", "choose one of"),
        (
            "play Bandit --option names=Baker",
            'choose \'ragen-v1\', or give pairs (low, high), such as [["Low", "High"]]',
        ),
        ("play FrozenLake --seed -1", "seed=-1 is not a seed: give a whole number"),
        ("info Bandit -n -3", "1 or more"),
        ("render FrozenLake --out nowhere/x.png", "no folder"),
        ("render FrozenLake --out a.jpg", "a.jpg: end it in .gif for an episode"),
        ("levels export FrozenLake --vocabulary letters --out x.txt", "unrecognized arguments: --vocabulary"),
        ("levels export Bandit --out x.csv", ".txt or .jsonl"),
        ("levels export Bandit --out x.txt -n 0", "one level or more"),
        ("levels export Bandit --split test --out x.txt -n 17", "only 16 different levels"),
        ("solve FrozenLake -", "error: the standard input holds no board"),
        ("solve FrozenLake nowhere.txt", "not a file"),
        ("solve FrozenLake - --actions -1", "--actions -1: give 1 or more"),
        ("play Sokoban --option boxes=5 --option size=5", "boxes=5 do not fit on height=5, width=5"),
        ("check Chess", "not a game"),
        ("check nowhere.to_be:Found", "importing the module nowhere.to_be failed here"),
        (
            "check ragen_gym.core.text:Chess",
            "adds no game of that name (it adds none): call ragen_gym.register in it",
        ),
        (
            "check ragen_gym.games.frozen_lake:FrozenLakes",
            "adds no game of that name (it adds FrozenLake): call ragen_gym.register in it. "
            "It defines no text task of that name either. Did you mean FrozenLake?",
        ),
        ("conquer", "invalid choice"),
    ],
)
def test_bad_input_gets_one_clear_message(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(*words.split())
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["", "play", "info", "render", "gallery", "levels export", "solve", "check"])
def test_help_shows_examples(run: Run, words: str) -> None:
    code, out, _ = run(*words.split(), "--help")
    assert code == 0
    assert re.search(r"examples?:\n.*ragen-gym", out, re.DOTALL)


#: What has no default: without it the command does not do what the option is for.
OPTIONAL = {"--card", "--seen", "--suite", "--head", "--reward", "--test"}


def values(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Every option of every command that takes a value and may be left out, with the command's words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from values(command, f"{words} {name}")
        elif action.option_strings and action.nargs != 0 and not action.required and action.default != []:
            yield words, action


def test_help_says_every_default() -> None:
    options = list(values(build_parser()))
    assert len(options) > 60
    silent = [
        f"{words} {action.option_strings[-1]}"
        for words, action in options
        if "default" not in (action.help or "") and action.option_strings[-1] not in OPTIONAL
    ]
    assert silent == []


@every_id
def test_the_oracles_moves_win_when_typed(run: Run, spec: GameSpec) -> None:
    seed = showcase_seed(spec, {})
    env = StepEnv(spec.name)
    env.reset(seed=seed)
    names = [env.action_names[action] for action in picture_episode(spec, {}, seed).episode.actions]
    code, out, _ = run("play", spec.name, "--seed", seed, typed=f"?\n{' || '.join(names)}\nq\n")
    assert code == 0
    assert f"The oracle plays {names[0]}:" in out
    assert "Success!" in out
    assert out.endswith("1 of 1 levels solved.\n")


@pytest.mark.parametrize("spec", USUAL_BUDGETS, ids=[spec.name for spec in USUAL_BUDGETS])
def test_the_oracles_replies_win_when_typed(run: Run, spec: GameSpec) -> None:
    seed = showcase_seed(spec, {})
    messages = conversation(spec, {}, seed)
    replies = [f"<think>So.</think>{each['content']}" for each in messages if each["role"] == "assistant"]
    code, out, _ = run("play", spec.name, "--turn", "--seed", seed, typed="?\n" + "\n".join(replies))
    assert code == 0
    assert "The oracle plays" in out
    assert "Success!" in out
    assert out.endswith("1 of 1 levels solved.\n")


def test_playing_bears_mistakes(run: Run) -> None:
    out = run("play", "Bandit", typed="dance\n1\n1\nn\n2\n\n")[1]
    assert "'dance' is not an action. Play: 1 " in out
    assert "This level is over" in out
    assert re.search(r"\d of 2 levels solved\.\n$", out)
    assert run("play", "Bandit", typed="q\n")[1].endswith("No level was played to its end.\n")
    out = run("play", "Bandit", "--turn", typed="dance\nn\nn\n")[1]
    assert "Problem: no_answer." in out
    assert out.endswith("0 of 1 levels solved.\n")


def test_a_malformed_reply_is_answered_with_an_example_that_can_be_typed(run: Run) -> None:
    out = run("play", "FrozenLake", "--turn", typed="Up\n")[1]
    [example] = re.findall(r"For example: (.*)", out)
    assert re.fullmatch(r"<think>.+</think><answer>(Left|Down|Right|Up)</answer>", example)
    out = run("play", "FrozenLake", "--turn", typed=f"{example}\n")[1]
    assert "Problem" not in out
    assert "For example" not in out
    assert "? shows" in out, "the words that are no replies"


@every_id
def test_no_word_is_broken_on_a_narrow_terminal(run: Run, spec: GameSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run("info", spec.name, "-n", 20)[1] + run("list")[1] + run("play", spec.name, typed="q\n")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert spec.summary in " ".join(out.split())


def test_a_table_fits_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    below, beside = r"%\n    the same boards in other symbols\n", r"the same boards in\n +other symbols\n"
    for columns, goes_on in ((80, below), (95, beside)):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = run("bench", "suites")[1] + run("bench", "suites", "smoke")[1]
        assert max(map(len, out.splitlines())) <= columns
        assert re.search(goes_on, out)


@pytest.mark.parametrize("words", ["play FrozenLake", "play FrozenLake --turn", "solve FrozenLake -"])
def test_ctrl_c_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: Any) -> Any:
            raise KeyboardInterrupt

        read = readline

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert main(words.split()) == 130
    assert capsys.readouterr().err == "\nragen-gym: stopped.\n"


def test_keys_are_read_one_by_one_and_the_terminal_is_put_back() -> None:
    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal, "r") as stream:
        before = termios.tcgetattr(stream.fileno())
        with single_keys(stream) as keys:
            os.write(keyboard, b"w\x1b[A\x1b[A\x1b[B\x1bOD\x1b[3~\x1bOQ\x1b[1;5C\xc3\xa9?\x04q")
            assert list(keys) == ["w", "up", "up", "down", "left", "é", "?"]
            assert termios.tcgetattr(stream.fileno()) != before
        assert termios.tcgetattr(stream.fileno()) == before
    os.close(keyboard)


def test_play_redraws_the_board_and_takes_arrow_keys() -> None:
    env = StepEnv("FrozenLake", success_rate=1.0)
    env.reset(seed=1)
    boards = [env.text]
    for name in ("Right", "Up"):
        env.step(env.action_names.index(name))
        boards.append(env.text)
    assert len({*boards}) == 3
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "ragen_gym.cli", "play", "FrozenLake", "--option", "success_rate=1", "--seed", "1"]
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "NO_COLOR": ""}
    typed = [("q quit.", b"\x1b[C"), ("action 1 of 10", b"\x1bOA"), ("action 2 of 10", b"z"), ("'z' is not", b"q")]
    seen = ""
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=variables) as process:
        os.close(terminal)
        with suppress(OSError):  # the command has ended
            while select.select([keyboard], [], [], 60)[0]:
                seen += os.read(keyboard, 4096).decode()
                if typed and typed[0][0] in seen.rpartition("\x1b[H\x1b[2J")[2]:
                    os.write(keyboard, typed.pop(0)[1])
        process.kill()
    os.close(keyboard)
    seen = seen.replace("\r\n", "\n")
    assert seen.endswith("\nNo level was played to its end.\n")
    frames = seen.split("\x1b[H\x1b[2J")[1:]
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]| ", "", frame) for frame in frames]
    assert [next(board for board in boards if board in frame) for frame in plain] == [*boards, boards[-1]]
    assert all(frame.count("Play:") == 1 for frame in frames)


def test_a_board_in_colour_is_the_board() -> None:
    env = StepEnv("FrozenLake")
    text, _ = env.reset(seed=0)
    shown = painted(env.game, env.state[0], env.vocabulary, text)
    assert "\x1b[1;33mP" in shown
    assert re.sub(r"\x1b\[[0-9;]*m| ", "", shown) == text


@every_id
def test_render_writes_pictures_and_replaces_none(run: Run, tmp_path: Path, spec: GameSpec) -> None:
    for words, form, start in (([], "png", b"\x89PNG"), (["--gif"], "gif", b"GIF89a")):
        command = ["render", spec.name, "--out", tmp_path / f"picture.{form}", *words]
        assert run(*command)[0] == 0
        kept = (tmp_path / f"picture.{form}").read_bytes()
        assert kept.startswith(start)
        code, _, errors = run(*command)
        assert (code, "--force" in errors) == (2, True)
        assert run(*command, "--force")[0] == 0
        assert (tmp_path / f"picture.{form}").read_bytes() == kept


@every_id
def test_exported_levels_are_distinct_and_of_their_split_in_every_form(
    run: Run, tmp_path: Path, spec: GameSpec
) -> None:
    for form in ("txt", "jsonl"):
        words = ["levels", "export", spec.name, "--split", "validation", "-n", 4, "--out", tmp_path / f"levels.{form}"]
        assert run(*words)[0] == 0
        assert run(*words)[0] == 2
    records = [json.loads(line) for line in (tmp_path / "levels.jsonl").read_text(encoding="utf-8").splitlines()]
    for form in ("txt", "jsonl"):
        assert read_levels(tmp_path / f"levels.{form}") == [record["text"] for record in records]
    assert len({record["id"] for record in records}) == 4
    env = StepEnv(spec.name)
    for record in records:
        _, info = env.reset(seed=0, options={"level": record["text"]})
        assert info["level_id"] == record["id"]
        assert env.game.split_of(env.state[0]) == record["split"] == "validation"
        chance = env.solution().success(*env.state, record["actions"])
        assert record["optimal_success"] == pytest.approx(chance)
        steps = [env.step(env.action_names.index(name)) for name in record["plan"] or ()]
        assert record["plan"] is None or (steps[-1][2] and steps[-1][4]["success"])
    solved = json.loads(run("solve", spec.name, tmp_path / "levels.txt", "--json")[1])
    assert solved == records
    code, out, _ = run("info", spec.name, "--levels", tmp_path / "levels.txt", "-n", 10)
    assert code == 0
    assert "Success in 10 episodes" in out


def test_a_dataset_card_holds_the_rates_of_the_exported_levels(run: Run, tmp_path: Path) -> None:
    file, card = tmp_path / "lakes.jsonl", tmp_path / "README.md"
    words = ["levels", "export", "FrozenLake", "--option", "size=5", "--split", "test", "-n", 30, "--seed", 7]
    card.write_text("mine", encoding="utf-8")
    code, _, errors = run(*words, "--out", file, "--card", card)
    assert (code, card.read_text(encoding="utf-8"), file.exists()) == (2, "mine", False), errors
    assert run(*words, "--out", file, "--card", card, "--force")[0] == 0
    text = card.read_text(encoding="utf-8")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    optimal = 100 * sum(record["optimal_success"] for record in records) / 30
    assert f"| optimal play | {optimal:.1f} | exact | 30 |" in text
    env, blindly = StepEnv("FrozenLake", size=5), 0.0
    for record in records:
        env.reset(options={"level": record["text"]})
        blindly += blind_value(env, record["actions"])[0]
    assert f"| blind script | {100 * blindly / 30:.1f} | exact | 30 |" in text
    share = re.search(r"\| random moves \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| 30 \|", text)
    assert share
    low, high = float(share[2]), float(share[3])
    assert low <= float(share[1]) <= high
    assert low < optimal
    assert all(f"`{name}`" in text for name in records[0])
    assert text.startswith("---\nlicense: mit\n")
    command = re.search(r"`ragen-gym (levels export .*)`", text)
    assert command
    again = [tmp_path / "again" / word if word == "lakes.jsonl" else word for word in command[1].split()]
    (tmp_path / "again").mkdir()
    assert run(*again)[0] == 0
    assert (tmp_path / "again" / "lakes.jsonl").read_bytes() == file.read_bytes()
    boards = tmp_path / "boards.txt"
    assert run(*words, "--out", boards)[0] == 0
    words = ["levels", "export", "FrozenLake", "--levels", boards, "-n", 5, "--out", file, "--card", card, "--force"]
    assert run(*words)[0] == 0
    assert "license: mit" not in card.read_text(encoding="utf-8"), "levels of a file are not ours"


def test_solve_takes_any_size_from_the_standard_input(run: Run) -> None:
    code, out, _ = run("solve", "FrozenLake", "-", "--option", "success_rate=1", typed="P__\n_OG\n")
    assert code == 0
    assert "plan            Right Right Down" in out
    assert "optimal success 100.00 %" in out
    out = run("solve", "FrozenLake", "-", typed="; a comment\nP_\n_G\n\nP_\nOG\n")[1]
    assert out.count("first action") == 2
    several = "; easy\n#####\n#@$.#\n#####\n\n  ####\n###  #\n#@$ .#\n######\nTitle: ragged\n"
    out = run("solve", "Sokoban", "-", typed=several)[1]
    assert re.findall("plan            (.*)", out) == ["Right", "Right Right"]
    out = run("solve", "FrozenLake", "-", "--actions", 1, "--json", typed="PG\nOO\n")[1]
    assert json.loads(out)[0]["optimal_success"] == pytest.approx(1 / 3)


def test_solve_takes_boards_of_any_width(run: Run) -> None:
    around = "#######\n#  . .#\n#@$#$ #\n#     #\n#######\n"
    code, out, _ = run("solve", "LargeSokoban", "-", "--json", "--actions", 30, typed=around)
    assert (code, json.loads(out)[0]["optimal_success"]) == (0, 1.0)
    # On so narrow a board two boxes would not fit, yet the level is one.
    assert "plan            Right\n" in run("solve", "LargeSokoban", "-", typed="#####\n#@$.#\n#####\n")[1]
    code, _, errors = run("solve", "FrozenLake", "-", typed="P_\n_G\n\nP_\nG\n")
    assert code == 2
    assert "levels, level at line 4: FrozenLake: the rows of a board must be equally long" in errors


def test_check_reports_and_fails_with_its_own_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("check", "Bandit")
    assert (code, out.count("ok  ")) == (0, 2)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("two players on one board")

    monkeypatch.setattr("ragen_gym.testing.check_game", refuse)
    monkeypatch.setattr("ragen_gym.testing.check_env", lambda *_, **__: None)
    code, out, _ = run("check", "Bandit")
    assert code == 1
    assert "FAILED  the game" in out
    assert "two players on one board" in out
