"""Rescoring: what another reading changes, what it leaves, and what it cannot know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.bench.agent import Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.rescore import Rescoring, bounds, lenient_reply, rescore, save
from ragen_gym.bench.results import BenchResults, ResultsFolder, load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import Split, Suite, load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.core.levels import Level
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import Problem, Reply, parse_reply
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

NAMES = ("Up", "Down", "Left", "Right")

#: One push to the right solves it.
CORRIDOR = Level("Sokoban", "######\n######\n#PXO_#\n######\n######\n######")


class Says:
    """The replies of a list, turn by turn."""

    name = "says"

    def __init__(self, *replies: str) -> None:
        self.replies = replies

    async def reply(self, messages: Sequence[Any], task: Task) -> str:
        return self.replies[len(messages) // 2 - 1]


def corridor(tmp_path: Path, *replies: str, **budgets: Any) -> BenchResults:
    """The run of those replies in the corridor."""
    suite = Suite("corridor", (Split("push", "Sokoban", {}, (CORRIDOR,), TurnConfig(**budgets)),))
    run_suite(suite, Says(*replies), tmp_path / "run")
    folder = ResultsFolder(tmp_path / "run")
    return BenchResults(folder.path, folder.info, suite, "says", tuple(folder.records()))


def think(answer: str) -> str:
    return f"<think>Hm.</think>{answer}"


UP, WIN = think("<answer>Up</answer>"), think("<answer>Right</answer>")


@pytest.mark.parametrize(
    ("text", "actions", "problem"),
    [
        ("<think>Not Up.</think><answer>Left || down</answer>", (2, 1), None),
        ("I go <answer> left, then RIGHT. </answer> now", (2, 3), None),
        ("<answer>Up</answer> no, wait: <answer>Down</answer>", (1,), None),
        ("<answer>Up, Left", (0, 2), None),
        ("<think>Up or Down?</think>\n\nI pick **Up**.\n", (0,), None),
        ("Left\nRight", (3,), None),
        ("<think>never closed, Up", (), Problem.NO_ANSWER),
        ("<answer>Jump</answer>", (), Problem.NO_ACTION),
        ("<answer></answer>", (), Problem.NO_ACTION),
        ("upright", (), Problem.NO_ANSWER),
        ("", (), Problem.NO_ANSWER),
    ],
)
def test_the_lenient_parser(text: str, actions: tuple[int, ...], problem: Problem | None) -> None:
    reply = lenient_reply(text, NAMES)
    assert (reply.text, reply.actions, reply.problem) == (text, actions, problem)


def test_the_lenient_parser_keeps_thoughts_and_takes_the_longest_name() -> None:
    assert lenient_reply("<think>a</think><answer>x</answer>", NAMES).thinking == "a"
    assert lenient_reply("<answer>Estate Agent || Agent</answer>", ("Agent", "Estate Agent")).actions == (1, 0)


@given(st.lists(st.sampled_from(["Up", "down", "LEFT", " Right "]), min_size=1, max_size=6), st.booleans())
def test_both_parsers_agree_on_what_is_well_formed(names: list[str], thinks: bool) -> None:
    text = "<think>Up?</think>" * thinks + f"<answer>{'||'.join(names)}</answer>"
    strict = parse_reply(text, NAMES, think=thinks)
    assert strict.problem is None
    assert lenient_reply(text, NAMES).actions == strict.actions


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "Up", "\n", "x", "||"]), max_size=12))
def test_the_lenient_parser_never_raises(parts: list[str]) -> None:
    reply = lenient_reply("".join(parts), NAMES)
    assert (reply.problem is None) == bool(reply.actions)


def test_what_reads_the_same_stays(tmp_path: Path) -> None:
    run = corridor(tmp_path, UP, WIN)
    rescored = rescore(run, Rescoring("lenient"))
    (record,) = rescored.records
    assert (rescored.unknown, rescored.changed, rescored.reworded) == ((), 0, 0)
    assert (record.turns, record.success) == (run.records[0].turns, True)
    assert record.key != run.records[0].key


def test_an_episode_that_another_reading_ends_is_known(tmp_path: Path) -> None:
    run = corridor(tmp_path, UP, "Right it is", *[UP] * 3)
    assert (run.records[0].success, len(run.records[0].turns)) == (False, 5)
    rescored = rescore(run, Rescoring("lenient"))
    (record,) = rescored.records
    assert (rescored.unknown, rescored.changed) == ((), 1)
    assert (record.success, record.terminated, record.truncated) == (True, True, False)
    assert [turn.actions for turn in record.turns] == [(0,), (3,)]
    assert record.total_reward == pytest.approx(-0.1 + 10.9)
    assert record.turns[1].problem is None
    assert record.last_board.splitlines()[2] == "#_P√_#"


def test_an_episode_that_goes_on_is_unknown(tmp_path: Path) -> None:
    run = corridor(tmp_path, UP, "Down", WIN)
    rescored = rescore(run, Rescoring("lenient"))
    (unknown,) = rescored.unknown
    assert str(unknown) == "push/0/0: turn 2 reads Down where nothing was played"
    assert (unknown.turns, unknown.success) == (3, True)
    assert bounds(rescored) == {"push": {"known": 0, "unknown": 1, "rate": None, "least": 0.0, "most": 1.0}}


def test_the_last_turn_is_known_whatever_it_reads(tmp_path: Path) -> None:
    rescored = rescore(corridor(tmp_path, *[UP] * 4, "Down"), Rescoring("lenient"))
    (record,) = rescored.records
    assert (record.success, record.truncated, rescored.changed) == (False, True, 1)


def test_a_stricter_reading(tmp_path: Path) -> None:
    run = corridor(tmp_path, "<answer>Right</answer>", think=False)
    assert run.records[0].success
    (unknown,) = rescore(run, Rescoring(think=True)).unknown
    assert str(unknown) == "push/0/0: turn 1 reads nothing where Right was played"


def test_another_penalty_rewords_what_came_after(tmp_path: Path) -> None:
    run = corridor(tmp_path, think("<answer>Up || Jump</answer>"), WIN)
    assert run.records[0].turns[0].reward == pytest.approx(-0.2)
    rescored = rescore(run, Rescoring(format_penalty=-1))
    (record,) = rescored.records
    assert [turn.reward for turn in record.turns] == pytest.approx([-1.1, 10.9])
    assert record.total_reward == pytest.approx(9.8)
    assert (rescored.reworded, rescored.changed, rescored.unknown) == (1, 0, ())


def pay_by_the_move(reply: Reply, rewards: tuple[float, ...]) -> float:
    return float(len(rewards))


def read_backwards(text: str, names: Sequence[str]) -> Reply:
    return Reply(text, actions=parse_reply(text, names).actions[::-1])


def not_a_reply(text: str, names: Sequence[str]) -> Any:
    return [0]


def pay_nothing(reply: Reply, rewards: tuple[float, ...]) -> None:
    pass


def pay_nan(reply: Reply, rewards: tuple[float, ...]) -> float:
    return float("nan")


def test_functions_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    name = Path(__file__).stem
    run = corridor(tmp_path, think("<answer>Right || Up</answer>"))
    assert rescore(run, Rescoring(reward=f"{name}:pay_by_the_move")).records[0].total_reward == 1.0
    backwards = rescore(run, Rescoring(f"{name}:read_backwards", reward=f"{name}:pay_by_the_move"))
    assert backwards.records[0].turns[0].actions == (0, 3)
    assert backwards.changed == 1
    with pytest.raises(ValueError, match=r"the parser must return a ragen_gym.envs.reply.Reply, not \[0\]"):
        rescore(run, Rescoring(f"{name}:not_a_reply"))
    for name_of, returned in (("pay_nothing", "None"), ("pay_nan", "nan")):
        with pytest.raises(ValueError, match=f"what it returns={returned} must be a number"):
            rescore(run, Rescoring(reward=f"{name}:{name_of}"))
    with pytest.raises(ValueError, match="is not a function"):
        Rescoring(f"{name}:NAMES")


def test_what_contradicts_itself() -> None:
    with pytest.raises(ValueError, match="leave out think=True"):
        Rescoring("lenient", think=True)
    with pytest.raises(ValueError, match="leave out format_penalty"):
        Rescoring(reward="builtins:sum", format_penalty=0)
    with pytest.raises(ValueError, match="write it as module:name"):
        Rescoring("kind")
    with pytest.raises(ValueError, match="format_penalty=nan"):
        Rescoring(format_penalty=float("nan"))


def test_failures_of_the_infrastructure_stay_out(tmp_path: Path) -> None:
    run = corridor(tmp_path, "Down")  # the second turn fails: there is no second reply
    assert run.records[0].failure is Failure.AGENT_ERROR
    rescored = rescore(run, Rescoring("lenient"))
    assert (rescored.records[0].failure, rescored.unknown) == (Failure.AGENT_ERROR, ())
    assert bounds(rescored)["push"]["known"] == 0


def test_a_rescored_run_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smoke, out = load_suite("smoke"), tmp_path / "kind"
    run_suite(smoke, ImperfectAgent("hasty", 0.8, 0.6), tmp_path / "run", RunOptions(limit=4))
    assert main(["bench", "rescore", str(tmp_path / "run"), "--lenient", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    run = load_results(out)
    unknown = [json.loads(line) for line in (out / "unknown.jsonl").read_text().splitlines()]
    assert run.agent == "hasty (parser=lenient)"
    assert unknown
    assert len(run.records) + len(unknown) == 24
    assert f"In {len(unknown)} episodes other moves would have been played" in said
    verdict = verify(run)
    assert (verdict.verdict, verdict.differences) == ("incomplete", [])
    assert verdict.missing == len(unknown)
    assert verdict.summary == []
    lied = run.records[0].to_dict() | {"total_reward": 5.0}
    lie = BenchResults(run.path, run.info, run.suite, run.agent, (EpisodeRecord.from_dict(lied),))
    assert not verify(lie).holds
    with pytest.raises(ValueError, match="rescored already"):
        rescore(run, Rescoring(format_penalty=0))
    with pytest.raises(ValueError, match="exists"):
        save(run, rescore(load_results(tmp_path / "run"), Rescoring("lenient")), out)


def test_what_to_ask_of_a_run_is_asked_of_the_rescored_run(tmp_path: Path) -> None:
    class Moody(Says):
        broken = True

        async def reply(self, messages: Sequence[Any], task: Task) -> str:
            if self.broken and task.index < 3:
                raise ValueError("it looks lost")
            return self.replies[0]

    smoke, agent, options = load_suite("smoke"), Moody(UP), RunOptions(splits=("bandit",))
    run_suite(smoke, agent, tmp_path / "run", options)
    agent.broken = False
    run_suite(smoke, agent, tmp_path / "run", options)
    run = load_results(tmp_path / "run")
    save(run, rescore(run, Rescoring(format_penalty=-0.5)), tmp_path / "rescored")
    rescored = load_results(tmp_path / "rescored")
    assert (len(rescored.records), len(rescored.retried)) == (8, 3)
    verdict = verify(rescored)
    assert (verdict.verdict, verdict.differences, verdict.summary) == ("verified", [], [])
    assert verdict.doubts == verify(run).doubts


def test_the_command_refuses_to_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rescore", str(tmp_path)]) == 2
    assert "nothing would change" in capsys.readouterr().err


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_suite(load_suite("smoke"), ImperfectAgent("careful", 1, 1), tmp_path / "run", RunOptions(limit=1))
    assert main(["bench", "rescore", str(tmp_path / "run"), "--format-penalty", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["agent"] == "careful (format_penalty=0.0)"
    assert (printed["unknown"], printed["splits"]["sokoban"]["known"]) == ([], 1)
