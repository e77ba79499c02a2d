"""Suites with text tasks, played, verified, scored and reported through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.report.viewer_data import heading
from ragen_gym.bench.results import EpisodeLog, ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main

#: A task that knows neither a best nor a random reply, whose second turn has noise, and that fails on one reply.
TASK = """
import gymnasium
from gymnasium import spaces
import numpy as np


class Spelling(gymnasium.Env):
    instructions = "Spell the word backwards, then guess a number from 0 to 9."
    observation_space = action_space = spaces.Text(100, min_length=0)

    def __init__(self, letters="abcdefgh"):
        self.letters = letters

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.spelled = "".join(self.np_random.choice(list(self.letters), 6)), None
        self.noise = np.random.default_rng((options or {}).get("noise_seed"))
        return f"Word: {self.word}", {}

    def step(self, action):
        if "boom" in action:
            raise RuntimeError("the task is broken")
        if self.spelled is None:
            self.spelled = action == self.word[::-1]
            return f"The number is {self.noise.integers(10)}.", 0.5 * self.spelled, False, False, {}
        return "Done.", 0.5, True, False, {"success": self.spelled}


class Budgeted(Spelling):
    def __init__(self, turn_config):
        super().__init__()


def reply(messages):
    said = messages[-1]["content"]
    return said[6:][::-1] if said.startswith("Word: ") else "7"


def guesses(messages, task):
    # on a copy of what it is shown, it reads the number that the noise decides
    from copy import deepcopy

    said = messages[-1]["content"]
    if said.startswith("Word: "):
        copy = deepcopy(task.env)
        return copy.step("x")[0]
    return said


def fails(messages, task):
    return "boom" if task.index == 1 else "half a pair: \\ud800"
"""

SUITE = """
name = "words-v0"
[budgets]
max_turns = 3
[[splits]]
name = "countdown"
env = "ragen_gym.tasks:Countdown"
levels = "countdown.jsonl"
env_options = { count = 2, highest = 50, attempts = 2 }
freeze = { count = 5 }
[[splits]]
name = "spelling"
env = "backwards_words:Spelling"
levels = "spelling.jsonl"
freeze = { count = 4, distinct = 3 }
[[splits]]
name = "bandit"
env = "Bandit"
levels = "bandit.txt"
freeze = { count = 2 }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds the suite ``words`` with its frozen files, and the module of its task."""
    (tmp_path / "words").mkdir()
    (tmp_path / "backwards_words.py").write_text(TASK)
    (tmp_path / "words" / "suite.toml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["bench", "freeze", "words"]) == 0
    yield tmp_path
    sys.modules.pop("backwards_words", None)


def bench(*arguments: str) -> int:
    return main(["bench", *arguments, "--suite", "words"])


def run(agent: str, *options: str, out: str = "run") -> dict[str, Any]:
    assert bench("run", "--agent", agent, "--out", out, *options) == 0
    return summary(out)


def summary(out: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out, "summary.json").read_text(encoding="utf-8"))
    return found


def lines(out: str = "run") -> list[dict[str, Any]]:
    text = Path(out, "episodes.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def test_budgets_that_a_task_asks_for_are_not_scored(folder: Path) -> None:
    split = SUITE.partition('[[splits]]\nname = "spelling"')[2].partition("[[splits]]")[0]
    split = split.replace("Spelling", "Budgeted")
    (folder / "words" / "suite.toml").write_text(
        f'name = "w"\n[budgets]\nbudget = true\n[[splits]]\nname = "own"{split}'
    )
    assert main(["bench", "freeze", "words"]) == 0
    assert "budget" not in run("python:backwards_words:reply", out="budgeted")["splits"]["own"]


def test_a_suite_mixes_tasks_and_games_and_each_score_says_which_rates_it_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    splits = run("python:backwards_words:reply", "--rollouts", "2")["splits"]
    assert "No rate of random and optimal replies: the task Spelling has no random_reply" in capsys.readouterr().out
    spelling, countdown, bandit = (splits[name] for name in ("spelling", "countdown", "bandit"))
    assert (spelling["success"]["rate"], spelling["success"]["n"], spelling["asked"]) == (1.0, 8, 8)
    assert (spelling["levels"], spelling["families"], spelling["return"]["mean"]) == (3, 3, 1.0)
    assert not {"random", "optimal", "optimal_return", "regret", "sentence"} & set(spelling)
    assert (spelling["normalised"], spelling["malformed"], spelling["turns"]) == (None, None, 2)
    assert (countdown["success"]["rate"], countdown["optimal"]["rate"]) == (0.0, 1.0)
    assert 0 < countdown["random"]["rate"] < 1
    assert countdown["normalised"]["value"] < 0
    assert "lacks" not in countdown
    assert bandit["malformed"]["rate"] == 1
    assert bench("verify", "run") == 0
    assert bench("report", "run", "--out", "page.html") == 0
    assert "No rate of random and optimal replies" in Path("page.html").read_text(encoding="utf-8")
    notes = {heading(record, "a", "")["note"] for record in ResultsFolder("run").records()}
    assert {"a · 2 turns", "a · 1 turn"} >= notes, "a task, and a malformed reply, have no moves"
    capsys.readouterr()
    assert main(["bench", "suites", "words"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert [rows[name].count("100.0 %") > 0 for name in ("countdown", "spelling", "bandit")] == [True, False, True]


@pytest.mark.parametrize("agent", ["oracle", "random"])
def test_the_agents_of_the_package_reply_to_tasks(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    splits = run(agent, "--split", "countdown", "--split", "bandit")["splits"]
    assert (splits["countdown"]["success"]["rate"] == 1) == (agent == "oracle")
    first = lines()
    assert all(turn["reply"] for line in first for turn in line["turns"] if line["split"] == "countdown")
    run(agent, "--split", "countdown", "--split", "bandit")  # nothing is left to play
    assert lines() == first
    run(agent, "--split", "countdown", out="again")
    said = [[turn["reply"] for turn in line["turns"]] for line in first if line["split"] == "countdown"]
    assert [[turn["reply"] for turn in line["turns"]] for line in lines("again")] == said
    assert bench("verify", "run") == 0


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("blind", "a text task, and the agent blind only chooses moves"),
        ("oracle", "Spelling has no random_reply(rng) and optimal_reply()"),
        ("random", "Spelling has no random_reply(rng) and optimal_reply()"),
    ],
)
def test_an_agent_that_cannot_reply_is_refused(agent: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run", "--agent", agent, "--out", "run", "--split", "spelling") == 2
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_task_that_fails_ends_its_episode_alone() -> None:
    assert bench("run", "--agent", "python:backwards_words:fails", "--out", "run", "--split", "spelling") == 1
    split = summary()["splits"]["spelling"]
    assert (split["failures"], split["excluded"], split["success"]["n"]) == ({"environment_error": 1}, 1, 3)
    assert bench("verify", "run") == 3  # incomplete: nothing differs


def forge(change: Callable[[dict[str, Any]], None], out: str = "run") -> None:
    """Change the first record of a run, and write the summary again, as who owns the folder can."""
    records = lines(out)
    change(records[0])
    Path(out, "episodes.jsonl").unlink()
    with EpisodeLog(ResultsFolder(out)) as log:
        for record in records:
            log.append(EpisodeRecord.from_dict(record))
    bench("score", out, "--write")


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line["turns"][0].update(reward=1.0),
        lambda line: line["turns"][0].update(message="Word: aaa"),
        lambda line: line["turns"][0].update(reply="?"),
        lambda line: line["turns"][0].update(reply=None),
        lambda line: line["turns"][0].update(actions=[0]),
        lambda line: line["turns"][1].update(message="The number is 10."),
        lambda line: line["turns"].pop(),
        lambda line: line["turns"].append(line["turns"][-1]),
        lambda line: line.update(success=not line["success"]),
        lambda line: line.update(noise_seed=line["noise_seed"] ^ 1),
    ],
)
def test_a_forged_record_is_found(change: Callable[[dict[str, Any]], None]) -> None:
    run("python:backwards_words:reply", "--split", "spelling")
    forge(change)
    assert bench("verify", "run") == 1


def test_a_task_that_has_changed_refuses_its_suite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_suite("words").hash
    table = folder / "words" / "suite.toml"
    table.write_text(SUITE.replace("highest = 50", "highest = 60"))
    with pytest.raises(ValueError, match=r"split 'countdown'.*line 1: seed .* changed since the file was written"):
        load_suite("words")
    assert main(["bench", "freeze", "words/suite.toml"]) == 0
    assert load_suite("words").hash != before


@pytest.mark.parametrize("text", ["", "[1]\n", '{"seed": -1, "id": "0", "text": ""}\n', '{"seed": 1}\n', "{\n"])
def test_a_file_without_problems_is_named(text: str, folder: Path) -> None:
    (folder / "words" / "spelling.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"split 'spelling'.*spelling\.jsonl"):
        load_suite("words")


def test_a_task_without_enough_problems_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "words" / "suite.toml").write_text(SUITE.replace("count = 4, distinct = 3", "count = 3, split = 'train'"))
    assert main(["bench", "freeze", "words"]) == 2
    assert "in env_options: write split = 'train' there" in capsys.readouterr().err
    few = SUITE.replace(
        "freeze = { count = 4, distinct = 3 }", "env_options = { letters = 'ab' }\nfreeze = { count = 99 }"
    )
    (folder / "words" / "suite.toml").write_text(few)
    assert main(["bench", "freeze", "words"]) == 2
    assert " of 99 different problems" in capsys.readouterr().err


def test_a_suite_of_code_is_not_run_for_a_name_in_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_suite(load_suite("words"), make_agent("python:backwards_words:reply"), "run")
    sys.modules.pop("backwards_words")
    with pytest.raises(ValueError, match="imported only for a suite that you name"):
        load_suite("words", run_code=False)


def test_an_agent_is_shown_a_task_with_other_noise(tmp_path: Path) -> None:
    """What a copy of ``task.env`` says next is as often right as a guess of one of ten numbers."""
    run_suite(
        load_suite("words"),
        make_agent("python:backwards_words:guesses"),
        tmp_path / "run",
        RunOptions(splits=("spelling",), rollouts=10),
    )
    records = ResultsFolder(tmp_path / "run").records()
    assert [record.failure for record in records] == [None] * 40
    seen = [(record.turns[0].reply, record.turns[1].message) for record in records]
    assert all(said.startswith("The number is ") for pair in seen for said in pair if said)
    assert sum(shown == happened for shown, happened in seen) <= 12
