"""Attacks on the files of a run: what was changed, left out or relabelled is never called verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.episode_plan import Prices, RunOptions, episode_key
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import SUITES, load_suite
from ragen_gym.cli import main
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

SMOKE = load_suite("smoke")
VERIFIED, FALSE, INCOMPLETE = 0, 1, 3

Lines = list[dict[str, Any]]


class Run:
    """The files of a run, to be read and rewritten as an attacker would."""

    def __init__(self, path: Path) -> None:
        self.path, self.episodes, self.summary = path, path / "episodes.jsonl", path / "summary.json"

    @property
    def lines(self) -> Lines:
        return [json.loads(line) for line in self.episodes.read_text(encoding="utf-8").splitlines()]

    @lines.setter
    def lines(self, records: Lines) -> None:
        self.episodes.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))

    @property
    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        return info

    @info.setter
    def info(self, info: dict[str, Any]) -> None:
        (self.path / "run.json").write_text(json.dumps(info, indent=2))

    def score_again(self) -> None:
        assert main(["bench", "score", str(self.path), "--write"]) == 0

    def verify(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        """The exit code, and what was found."""
        capsys.readouterr()
        code = main(["bench", "verify", str(self.path), "--json"])
        return code, json.loads(capsys.readouterr().out)


def play(path: Path) -> None:
    """Play what is missing, and write the summary."""
    run_suite(SMOKE, ImperfectAgent("weak", 0.6, 0.6), path, RunOptions(rollouts=2))
    assert main(["bench", "score", str(path), "--write"]) == 0


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an agent that loses most of its episodes, with its summary."""
    path = tmp_path_factory.mktemp("runs") / "weak"
    play(path)
    return path


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Run:
    shutil.copytree(played, tmp_path / "run")
    return Run(tmp_path / "run")


def test_as_it_was_played_it_is_verified(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.verify(capsys)[0] == VERIFIED


def test_attempts_made_again_are_in_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class FleesOnce(ImperfectAgent):
        flees = True

        async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
            if self.flees and len(messages) > 2:
                raise RuntimeError("this one is lost")
            return replace(await super().reply(messages, task), prompt_tokens=30, completion_tokens=10)

    run = Run(tmp_path / "run")
    for flees in (True, False):
        agent = FleesOnce("flees", 0.6, 0.6)
        agent.flees = flees
        run_suite(SMOKE, agent, run.path, RunOptions(prices=Prices(1.0, 2.0)))
    run.score_again()
    overall = json.loads(run.summary.read_text())["overall"]
    turns = sum(len(line["turns"]) for line in run.lines)
    assert overall["tokens"] == {"prompt": 30 * turns, "completion": 10 * turns}, "theirs count"
    assert overall["cost"] == pytest.approx(50e-6 * turns)
    code, found = run.verify(capsys)
    assert code == VERIFIED
    assert found["retried_in_play"] == found["retried"] > 0
    assert main(["bench", "verify", str(run.path)]) == VERIFIED
    count = found["retried"]
    last = f"Verified, but ask why. Attempts made again: {count} ({count} after play began)."
    assert capsys.readouterr().out.splitlines()[-1] == last
    run.lines = [{**line, "cost": 0.0} if line["failure"] else line for line in run.lines]
    run.score_again()
    assert run.verify(capsys)[0] == FALSE


def test_an_agent_that_raises_when_it_loses_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Flees(ImperfectAgent):
        async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
            if len(messages) > 2:
                raise RuntimeError("this one is lost")
            return await super().reply(messages, task)

    run = Run(tmp_path / "run")
    for _ in range(2):
        run_suite(SMOKE, Flees("flees", 0.6, 0.6), run.path)
    run.score_again()
    said = capsys.readouterr().out
    overall = json.loads(run.summary.read_text())["overall"]
    excluded = overall["excluded"]
    assert overall["asked"] == 48
    assert overall["excluded_in_play"] == overall["retried"] == overall["retried_in_play"] == excluded > 0
    assert f"{48 - excluded} of 48 episodes asked for, {excluded} excluded" in said
    assert f"{excluded} of the excluded episodes failed after the agent was first asked" in said
    for split in json.loads(run.summary.read_text())["splits"].values():
        solved, asked = (split["success"]["rate"] or 0) * split["success"]["n"], split["asked"]
        assert split["bounds"]["least"] == pytest.approx(solved / asked)
        assert split["bounds"]["most"] == pytest.approx((solved + split["excluded"]) / asked)
    assert run.verify(capsys)[0] == INCOMPLETE
    assert main(["bench", "report", str(run.path)]) == 0
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert f"{excluded} of the excluded episodes failed after the agent was first asked: one that raises" in page
    assert main(["bench", "report", str(run.path), "--markdown"]) == 0
    assert f"| {48 - excluded} of 48 |" not in (table := capsys.readouterr().out)  # each split has its own
    assert f"{excluded} of the excluded episodes failed" in table


# -- leaving out


def test_deleted_failures(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.lines = [line for line in run.lines if line["success"]]
    assert run.verify(capsys)[0] == FALSE, "the summary is of all episodes"
    run.score_again()
    code, found = run.verify(capsys)
    assert code == INCOMPLETE
    assert found["missing"] == 96 - len(run.lines)


def test_no_sessions(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.lines = [line for line in run.lines if line["success"]]
    run.info = {**run.info, "sessions": []}
    assert run.verify(capsys)[0] == FALSE


def test_relabelled_failures(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    relabelled = {"failure": "model_error", "detail": "HTTP 500", "turns": [], "total_reward": 0.0}
    flags = {"success": False, "terminated": False, "truncated": False}
    lines = [line if line["success"] else {**line, **relabelled, **flags} for line in run.lines]
    run.lines = lines
    assert run.verify(capsys)[0] == FALSE
    run.score_again()
    code, found = run.verify(capsys)
    assert code in (INCOMPLETE, FALSE)  # the last boards of games that were not played are not the first ones
    assert found["excluded"] == sum(not line["success"] for line in lines)


def test_no_summary(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.summary.unlink()
    assert run.verify(capsys)[0] == INCOMPLETE


def test_nothing_is_left(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.lines = []
    run.summary.unlink()
    assert run.verify(capsys)[0] == INCOMPLETE


# -- changing


def copied(lines: Lines) -> None:
    lines.append(next(line for line in lines if line["success"]))


def swapped_places(lines: Lines) -> None:
    for name in ("index", "level_id", "noise_seed", "key"):
        lines[1][name], lines[2][name] = lines[2][name], lines[1][name]


def reward(lines: Lines) -> None:
    lines[0]["turns"][0]["reward"] += 1
    lines[0]["total_reward"] += 1


def another_session(lines: Lines) -> None:
    lines[0]["extra"]["session"] = 7


def no_session(lines: Lines) -> None:
    del lines[0]["extra"]["session"]


def usage(lines: Lines) -> None:
    lines[0]["turns"][0]["completion_tokens"] = -1


ATTACKS = (copied, swapped_places, reward, usage, another_session, no_session)


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_the_replay_does_not_give_is_false(
    attack: Callable[[Lines], None], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run.lines
    attack(lines)
    run.lines = lines
    assert run.verify(capsys)[0] == FALSE
    if attack is not usage:  # no record can hold a negative number, so such a run has no score either
        run.score_again()
        assert run.verify(capsys)[0] == FALSE


def test_turns_without_a_reply_among_turns_with_one(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Moves that no reply names: an agent replies, or moves, through a whole episode."""
    lines = run.lines
    changed = [line for line in lines if len(line["turns"]) > 1 and line["turns"][-1]["problem"] is None]
    for line in changed:
        line["turns"][-1]["reply"] = None
    run.lines = lines
    run.score_again()
    code, found = run.verify(capsys)
    assert code == FALSE
    whats = [each["what"] for each in found["differences"]]
    assert whats.count("turns without a reply") == len(changed) > 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "max_tokens"), 9),
        (("agent",), "a better one"),
        (("temperature",), 0.0),
        (("prompts", "bandit"), "0" * 16),
        (("certified",), True),
        (("sessions", 0, "certified"), True),
    ],
)
def test_changes_of_what_was_asked(
    place: tuple[Any, ...], value: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    info: Any = run.info
    table = info
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = value
    run.info = info
    assert run.verify(capsys)[0] == FALSE


@pytest.mark.parametrize("name", ["split", "\x1b[2J"])  # a value, and a field that no record has
def test_escape_sequences_of_a_record_are_not_printed(name: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run.lines
    lines[5][name] = "\x1b[2J"
    run.lines = lines
    assert main(["bench", "verify", str(run.path)]) == FALSE
    said = capsys.readouterr().out
    assert "\N{REPLACEMENT CHARACTER}[2J" in said
    assert "\x1b" not in said


def forged_sentence(summary: dict[str, Any]) -> None:
    summary["splits"]["bandit"]["sentence"] = "This agent is above all others."


def unknown_entry(summary: dict[str, Any]) -> None:
    summary["certified"] = True


def no_entries_on_what_was_asked(summary: dict[str, Any]) -> None:
    for entry in (summary["overall"], *summary["splits"].values()):
        for name in ("asked", "missing", "bounds"):
            del entry[name]


@pytest.mark.parametrize("attack", [forged_sentence, unknown_entry, no_entries_on_what_was_asked])
def test_changes_of_the_summary(
    attack: Callable[[dict[str, Any]], None], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads(run.summary.read_text())
    attack(summary)
    run.summary.write_text(json.dumps(summary))
    code, found = run.verify(capsys)
    assert (code, bool(found["summary"])) == (FALSE, True)


@pytest.mark.parametrize(
    ("name", "entry", "code"), [("summary.json", '"overall": {}', FALSE), ("run.json", '"agent": "x"', 2)]
)
def test_an_entry_that_is_there_twice(
    name: str, entry: str, code: int, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.path / name
    path.write_text(path.read_text().replace("{", f"{{{entry},", 1))
    assert main(["bench", "verify", str(run.path)]) == code
    assert "is there twice" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("prices", "cost", "verdict"),
    [
        ({"prompt": 1.0, "completion": 2.0}, 8.0, VERIFIED),
        ({"prompt": 1.0, "completion": 2.0}, 0.0, FALSE),
        ({"prompt": 1.0, "completion": 2.0}, None, FALSE),
        ({"prompt": 1.0}, 0.0, FALSE),
        (None, 1.0, FALSE),
        (None, None, VERIFIED),
    ],
)
def test_a_cost_is_that_of_the_tokens(
    prices: dict[str, float] | None, cost: float | None, verdict: int, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    info, lines = run.info, run.lines
    info["sessions"][0]["prices"] = prices
    for line in lines:
        for turn in line["turns"]:
            turn["prompt_tokens"], turn["completion_tokens"] = 2_000_000, 3_000_000
        line["cost"] = cost and cost * len(line["turns"])
    run.info, run.lines = info, lines
    run.score_again()
    assert run.verify(capsys)[0] == verdict


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"splits": []}', '{"splits": {"bandit": 3}}', "{"])
def test_a_summary_that_is_none(text: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.summary.write_text(text)
    assert run.verify(capsys)[0] == FALSE


def test_code_that_a_folder_names_is_not_run_unasked(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser of a rescored run is a name in its run.json: whoever verifies must say that it may be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    module = f"parser_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        "from ragen_gym.bench.rescore import lenient_reply as read\n"
    )
    info = run.info
    info["settings"] = {**info["settings"], "rescored": {"agent": "weak", "by": {"parser": f"{module}:read"}}}
    run.info = info
    assert main(["bench", "verify", str(run.path)]) == 2
    assert f"{module}:read" in (said := capsys.readouterr().err)
    assert "--run-code" in said
    assert not (tmp_path / "ran").exists()
    assert main(["bench", "verify", str(run.path), "--run-code"]) == FALSE
    assert (tmp_path / "ran").exists()
    others: list[Any] = [{"parser": 3}, {"speed": 1}, {"parser": "os:system", "think": True}, []]
    for by in others:
        info["settings"]["rescored"]["by"] = by
        run.info = info
        assert main(["bench", "verify", str(run.path)]) == 2
        assert "run.json" in capsys.readouterr().err


def test_another_suite_under_the_name_of_the_packages_own(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Easier levels called smoke are not smoke, whatever hash the folder gives."""
    easier = run.path / "smoke"
    shutil.copytree(SUITES["smoke"], easier)
    level = (easier / "bandit.txt").read_text().split("\n\n")
    (easier / "bandit.txt").write_text("\n\n".join([level[0]] * len(level)))
    fake = run.path / "fake"
    run_suite(load_suite(easier), ImperfectAgent("weak", 0.6, 0.6), fake)
    info = json.loads((fake / "run.json").read_text())
    (fake / "run.json").write_text(json.dumps({**info, "suite": str(easier)}))
    code, found = Run(fake).verify(capsys)
    assert code == FALSE
    assert ("smoke", "hash") in {(each["where"], each["what"]) for each in found["differences"]}


def test_a_rescored_run_is_called_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Its owner can rename it and make its keys anew: tables would not say how its replies were read."""
    kind = Run(run.path / "kind")
    assert main(["bench", "rescore", str(run.path), "--format-penalty", "0", "--out", str(kind.path)]) == 0
    assert kind.verify(capsys)[0] == VERIFIED
    info = kind.info
    assert info["agent"] == "weak (format_penalty=0.0)"
    for rescored in (info["settings"]["rescored"], {"by": {"format_penalty": 0.0}}):
        kind.info = info = {**info, "agent": "weak", "settings": {**info["settings"], "rescored": rescored}}
        lines = kind.lines
        for line in lines:
            line["key"] = episode_key(info, line["split"], line["index"], line["rollout"])
        kind.lines = lines
        kind.score_again()
        code, found = kind.verify(capsys)
        assert code == FALSE
        assert [(each["where"], each["what"]) for each in found["differences"]] == [("run.json", "agent")]
