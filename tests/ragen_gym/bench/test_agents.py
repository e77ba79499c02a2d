"""The agents: what each answers, what each refuses, and the real thing behind each."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench import agents
from ragen_gym.bench.agents import KINDS, make_agent, settings_of
from ragen_gym.bench.episode_plan import RunOptions, Timeouts
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import RunOutcome, run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import build_parser, main
from ragen_gym.core.failures import Failure
from tests.ragen_gym.bench import test_agents_sb3
from tests.ragen_gym.bench.bad_server import BadServer

SMOKE = load_suite("smoke")
SPLITS = {split.name: split for split in SMOKE.splits}
SERVER = {"base_url": "http://127.0.0.1:1/v1"}


def play(agent: Any, out: Path, *splits: str, **request: Any) -> tuple[RunOutcome, list[EpisodeRecord]]:
    outcome = run_suite(SMOKE, agent, out, RunOptions(splits=splits, **request))
    return outcome, ResultsFolder(out).records()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write(path: Path, source: str) -> None:
    path.write_text(textwrap.dedent(source))


# By name


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        ("chess", {}, r"there is no agent 'chess': choose one of random, blind, oracle, budget:POLICY, openai:MODEL"),
        ("random:7", {}, "'random:7' is not how this agent is written: give random"),
        ("openai:", {}, "give openai:MODEL"),
        ("random", {"temperature": 1}, "random has no setting 'temperature'; it has: seed"),
        ("oracle", {"seed": 1}, "oracle has no setting 'seed'; it has: none"),
        ("random", {"seed": -1}, "seed"),
        ("cmd:x", {"kind": "both"}, "must be 'reply' or 'step'"),
        ("cmd:'x", {}, "No closing quotation"),
        ("sb3:nowhere", {}, "there is no such file"),
        ("hf:./nowhere", {}, "there is no such folder"),
        ("hf:.", {}, "cannot be loaded"),
        ("hf:x", {"template": 5}, "template=5 must be an object or null"),
        ("hf:x", {"max_tokens": 1.5}, "max_tokens=1.5 must be a whole number"),
        ("hf:x", {"top_p": "a"}, "top_p='a' must be a number or null"),
        ("hf:x", {"top_p": 0}, "top_p=0 leaves nothing to draw from"),
        ("openai:m", {"extra": 5}, "extra=5 must be an object or null"),
        ("openai:m", {"omit": 5}, "omit=5 must be a text"),
        ("openai:m", {"base_url": "http://me:secret@x"}, "holds a user's name or password"),
        ("openai:m", {**SERVER, "extra": {"stream": True}}, "replies are not streamed"),
        ("openai:m", {"base_url": "ftp://x"}, "is not a valid URL; use e.g. http://127.0.0.1:8000/v1"),
        ("openai:m", {**SERVER, "timeout": -1}, "timeout"),
        ("openai:m", {**SERVER, "retries": 1.5}, "retries"),
        ("openai:m", {**SERVER, "max_tokens": 0}, "max_tokens"),
        ("openai:m", {**SERVER, "reasoning": "keep"}, "'think' or 'drop'"),
        ("sb3:x", {"deterministic": "no"}, "deterministic='no' must be true or false"),
    ],
)
def test_what_is_no_agent_is_refused(spec: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_agent(spec, **settings)


def test_every_kind_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "--help"]) == 0
    said = capsys.readouterr().out
    for name, kind in KINDS.items():
        assert f"  {name}:{kind.target} " in said if kind.target else f"  {name} " in said
        assert kind.about in said
        settings_of(f"{name}:x" if kind.target else name)


# Scripted


def test_another_seed_moves_in_another_way(tmp_path: Path) -> None:
    moves: list[Any] = []
    for seed in (0, 0, 1):
        _, records = play(make_agent("random", seed=seed), tmp_path / str(len(moves)), "sokoban", "frozen_lake")
        moves.append({(r.split, r.index): [turn.actions for turn in r.turns] for r in records})
    assert moves[0] == moves[1] != moves[2]


def test_random_moves_are_uniform_and_without_memory(tmp_path: Path) -> None:
    _, records = play(make_agent("random"), tmp_path / "run", "sokoban", rollouts=60)
    moves = [[turn.actions[0] for turn in record.turns] for record in records]
    n = sum(map(len, moves))
    singles = Counter(move for row in moves for move in row)
    pairs = Counter(pair for row in moves for pair in pairwise(row))
    for number in singles.values():
        assert abs(number - n / 4) < 4 * (n * 3 / 16) ** 0.5
    for number in pairs.values():
        assert abs(number - pairs.total() / 16) < 4 * (pairs.total() * 15 / 256) ** 0.5
    assert (len(singles), len(pairs)) == (4, 16)
    first = Counter(row[0] for row in moves)
    assert max(first.values()) < 0.35 * len(moves)  # not the same first move in every episode


def test_the_oracle_is_optimal_and_the_blind_script_is_not(tmp_path: Path) -> None:
    rates = {}
    for name in ("oracle", "blind", "random"):
        _, records = play(make_agent(name), tmp_path / name, "sokoban", "frozen_lake", rollouts=10)
        rates[name] = [np.mean([r.success for r in records if r.split == s]) for s in ("sokoban", "frozen_lake")]
    assert rates["oracle"][0] == 1
    assert rates["oracle"] > rates["blind"] > rates["random"]


# Python


def test_the_template_of_the_documentation_plays(here: Path) -> None:
    template = re.search(r"This is\na whole one::\n\n(.*?)\n\nSaved as", agents.__doc__ or "", re.DOTALL)
    assert template
    lines = textwrap.dedent(template[1]).strip().splitlines()
    assert len([line for line in lines if line.strip()]) <= 20
    (here / "my_agent.py").write_text("\n".join(lines))
    agent = make_agent("python:my_agent:Persistent", first="Up")
    outcome, records = play(agent, here / "run")
    assert (outcome.played, outcome.failures) == (48, {})
    assert {turn.actions for r in records if r.split == "frozen_lake" for turn in r.turns} == {(3,)}
    info = ResultsFolder(here / "run").info
    assert (info["agent"], info["settings"]) == ("python:my_agent:Persistent", {"first": "Up"})


PYTHON = """
    import asyncio
    import threading

    from ragen_gym.bench.agent import Answer

    SAID = "<think>So.</think><answer>Up</answer>"
    threads = set()

    def plain(messages):
        threads.add(threading.current_thread().name)
        assert messages[0]["role"] == "system" and messages[-1]["role"] == "user"
        return SAID

    def with_task(messages, task):
        assert task.suite == "smoke" and 0 <= task.seed < 2**32 and task.temperature == 0.5
        return Answer(SAID, prompt_tokens=3, completion_tokens=4)

    async def coroutine(messages):
        await asyncio.sleep(0)
        return SAID

    def policy(observation, info):
        threads.add(threading.current_thread().name)
        return info["action_names"].index("Up")

    async def policy_with_task(board, info, task):
        return info["action_names"].index("Up")

    def of_grids(observation, info):
        assert observation.dtype == "uint8" and observation.ndim == 2, observation
        return info["action_names"].index("Up")

    of_grids.observation = "grid"

    class Fixed:
        name = "fixed"

        def __init__(self, word="Up"):
            self.word = word

        def act(self, observation, info, task):
            return info["action_names"].index(self.word)

    class Short:
        name = "short"

        def reply(self, messages):
            threads.add(threading.current_thread().name)
            return SAID

    def with_default(messages, temperature=0.7):
        assert temperature == 0.7
        return SAID

    def with_task_or_none(messages, task=None):
        assert task.suite == "smoke"
        return SAID

    class Callable:
        async def __call__(self, messages):
            return SAID

    fixed, called = Fixed(), Callable()

    number = 3

    def nothing():
        return SAID

    def much(messages, task, more):
        return SAID
"""


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("plain", {}),
        ("plain", {"threads": False}),
        ("with_task", {}),
        ("coroutine", {}),
        ("policy", {}),
        ("policy", {"threads": False}),
        ("policy_with_task", {}),
        ("of_grids", {}),
        ("Fixed", {}),
        ("fixed", {}),
        ("fixed.act", {"kind": "step"}),
        ("Short", {}),
        ("Short", {"threads": False}),
        ("with_default", {}),
        ("with_task_or_none", {}),
        ("called", {}),
    ],
)
def test_every_form_of_python_code_plays(target: str, settings: dict[str, Any], here: Path) -> None:
    write(here / "forms.py", PYTHON)
    agent = make_agent(f"python:forms:{target}", **settings)
    outcome, records = play(agent, here / "run", "sokoban", limit=3, concurrency=2)
    assert (outcome.played, outcome.failures) == (3, {})
    assert {turn.actions for record in records for turn in record.turns} == {(0,)}
    if target in ("plain", "policy", "Short"):
        assert sys.modules["forms"].threads == {"MainThread" if settings else "blocking call"}


SERVED = """
    from ragen_gym.bench.agent import Answer

    def opened(messages):
        return "up it is</think><answer>Up</answer>"

    def apart(messages):
        return Answer("<answer>Up</answer>", reasoning="up it is")

    class Knows:
        name = "knows"
        whole_replies = True

        def reply(self, messages):
            return opened(messages)
"""


@pytest.mark.parametrize(("target", "problem"), [("opened", None), ("apart", None), ("Knows", "no_answer")])
def test_the_thinking_that_a_server_took_away_is_put_back(target: str, problem: str | None, here: Path) -> None:
    write(here / "served.py", SERVED)
    _, records = play(make_agent(f"python:served:{target}"), here / "run", "sokoban", limit=1)
    (turn, *_) = records[0].turns
    assert turn.problem == problem
    assert turn.reply == ("<think>" * (problem is None)) + "up it is</think><answer>Up</answer>"


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        ("python:forms", {}, "write it as module:name"),
        ("python:no_such:f", {}, "there is no module no_such"),
        ("python:forms.py:plain", {}, r"there is no module forms\.py; .* Leave \.py out\."),
        ("python:forms:absent", {}, "forms has no absent"),
        ("python:forms:number", {}, "an agent has a method `reply` or `act`, or is a function"),
        ("python:forms:nothing", {}, "takes 0 arguments"),
        ("python:forms:much", {}, "takes 3 arguments; an agent's function takes 1 or 2"),
        ("python:forms:plain", {"word": 1}, "it takes no settings but kind and threads: word"),
        ("python:forms:Fixed", {"wort": 1}, "unexpected keyword argument 'wort'"),
        ("python:forms:plain", {"kind": "spell"}, "choose one of reply, step"),
        ("python:forms:plain", {"threads": "maybe"}, "must be true or false"),
    ],
)
def test_python_code_that_is_no_agent_is_refused(spec: str, settings: dict[str, Any], said: str, here: Path) -> None:
    write(here / "forms.py", PYTHON)
    with pytest.raises(ValueError, match=said):
        make_agent(spec, **settings)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(:", r"importing own_code failed: SyntaxError: invalid syntax \(own_code\.py, line 1\)\."),
        (
            "import no_such_package",
            r"importing own_code failed: ModuleNotFoundError: .* 'no_such_package'",
        ),
        ("\nraise ValueError('no key')", r"importing own_code failed: ValueError: no key \(own_code\.py:2\)\."),
        ("\nclass f:\n  def __init__(self):\n    1 / 0", r"could not be made: ZeroDivisionError: .*\(own_code\.py:4\)"),
    ],
)
def test_python_code_that_fails_before_it_plays_says_where(code: str, said: str, here: Path) -> None:
    (here / "own_code.py").write_text(code)
    with pytest.raises(ValueError, match=rf"own_code:f:? {said}"):
        make_agent("python:own_code:f")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reply", "Slow"])
def test_code_that_blocks_holds_up_nobody(target: str, here: Path) -> None:
    write(
        here / "slow.py",
        """
        import time

        def reply(messages, task):
            time.sleep(60 if task.index == 0 else 0.05)
            return "Up"

        class Slow:
            def reply(self, messages, task):
                return reply(messages, task)
        """,
    )
    began = time.monotonic()
    outcome, _ = play(
        make_agent(f"python:slow:{target}"), here / "run", "sokoban", concurrency=8, timeouts=Timeouts(request=5)
    )
    assert outcome.failures == {Failure.TIMEOUT: 1}
    assert time.monotonic() - began < 50


# Programs


PROGRAM = """
    import json, os, sys, time

    for line in sys.stdin:
        question = json.loads(line)
        index = question["task"]["index"]
        way = sys.argv[1] if index == 1 or "always" in sys.argv else "good"
        answer = {"id": question["id"]}
        if question["kind"] == "step":
            assert question["info"]["actions_left"] > 0 and len(question["info"]["action_mask"]) == 4
            answer["action"] = "up" if index % 2 else question["actions"].index("Up")
        else:
            assert question["messages"][0]["role"] == "system"
            answer |= {"reply": "<think>Hm.</think><answer>Up</answer>", "prompt_tokens": 5, "completion_tokens": 6}
        if way == "crash":
            sys.exit("no more")
        if way == "hang":
            time.sleep(60)
        if way == "nulls":
            answer |= {"error": None, "reasoning": None}
        if way == "error":
            answer = {"id": question["id"], "error": "cannot"}
        if way == "chat":
            print("Hello!", flush=True)
        if way == "deep":
            print("[" * 100_000, flush=True)
        if way == "empty":
            del answer["reply"]
        if way == "stranger":
            answer["id"] = str(answer["id"])
        if way == "sideways":
            answer["action"] = "Sideways"
        print(json.dumps(answer), flush=True)
"""


def program(here: Path, way: str, **settings: Any) -> Any:
    write(here / "program.py", PROGRAM)
    return make_agent(f"cmd:{sys.executable} program.py {way}", **settings)


@pytest.mark.parametrize("kind", ["reply", "step"])
def test_a_program_plays(kind: str, here: Path) -> None:
    agent = program(here, "good", kind=kind)
    outcome, records = play(agent, here / "run", "sokoban", "frozen_lake")
    assert (outcome.played, outcome.failures) == (16, {})
    assert {turn.actions for record in records for turn in record.turns} == {(0,), (3,)}
    if kind == "reply":
        assert {(turn.prompt_tokens, turn.completion_tokens) for r in records for turn in r.turns} == {(5, 6)}
    assert agent._process._process.returncode == 0


@pytest.mark.parametrize(
    ("way", "kind", "failure", "said"),
    [
        ("crash", "reply", Failure.AGENT_ERROR, "the program ended with code 1: no more"),
        ("chat", "reply", Failure.AGENT_ERROR, "the program wrote a line that is no answer: 'Hello!'"),
        ("deep", "reply", Failure.AGENT_ERROR, "the program wrote a line that is no answer: '[[["),
        ("error", "reply", Failure.AGENT_ERROR, "the program says: cannot"),
        ("empty", "reply", Failure.AGENT_ERROR, "an answer needs a 'reply'"),
        ("sideways", "step", Failure.AGENT_ERROR, "action 'Sideways' is not one of Up, Down, Left, Right"),
        ("stranger", "reply", Failure.AGENT_ERROR, "the program answered id '"),
        ("hang", "reply", Failure.TIMEOUT, "no answer within 0.7 s"),
    ],
)
def test_a_program_that_fails_costs_its_episode(way: str, kind: str, failure: Failure, said: str, here: Path) -> None:
    """In its second instance; it is started again for the third."""
    agent = program(here, way, kind=kind)
    timeouts = Timeouts(request=0.7 if way == "hang" else 20)
    outcome, records = play(agent, here / "run", "sokoban", concurrency=1, limit=4, timeouts=timeouts)
    assert outcome.failures == {failure: 1}
    assert next(record.detail for record in records if record.failure).startswith(said)
    assert [record.index for record in records if record.failure] == [1]
    assert agent._process._process.returncode is not None


def test_a_program_that_always_crashes_is_not_started_for_ever(here: Path) -> None:
    outcome, records = play(program(here, "crash always"), here / "run", "sokoban", concurrency=1, rollouts=2)
    assert outcome.failures == {Failure.AGENT_ERROR: 16}
    details = [record.detail for record in records]
    assert details[:11] == ["the program ended with code 1: no more"] * 11
    assert all(detail.startswith("not started again after 11 ends; the program ended") for detail in details[11:])


def test_a_program_that_cannot_be_started_ends_the_command_before_it_plays(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plain.py").write_text("print()")
    for program in ("./absent", "nonexistent", "./plain.py"):
        command = f"cmd:{program} --fast"
        assert main(["bench", "run", "--suite", "smoke", "--agent", command, "--out", "run"]) == 2
        assert f"there is no executable program '{program}'" in " ".join(capsys.readouterr().err.split())
        assert not (here / "run").exists()


def test_what_an_agent_prints_is_no_part_of_the_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "chatty.py").write_text(
        "print('imported')\n\n\ndef reply(messages):\n    print('asked')\n    return '<answer>Up</answer>'\n"
    )
    words = ["bench", "run", "--suite", "smoke", "--split", "sokoban", "--limit", "1", "--agent", "python:chatty:reply"]
    command = [sys.executable, "-m", "ragen_gym.cli", *words, "--out", "run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["splits"]
    assert done.stderr.count("imported") == 1
    assert "asked" in done.stderr
    assert main([*words, "--out", "run-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]
    assert main([*words, "--out", "run-3"]) == 0
    assert "asked" in capsys.readouterr().out


# The command line


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model of the lake, as it is before any training."""
    import torch

    from ragen_agent.config import Config
    from ragen_agent.models.checkpoint import save_checkpoint
    from ragen_agent.run.policy import Policy

    torch.set_num_threads(1)
    agent = Policy.build(Config())
    folder: Path = tmp_path_factory.mktemp("model") / "lake"
    save_checkpoint(agent.model, agent.tokenizer, folder)
    return folder


def test_options_reach_the_agents_that_have_them(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    parser = build_parser()
    from ragen_gym.cli.bench import _agent, _request

    base = ["bench", "run", "--suite", "smoke", "--out", "run"]
    more = ["--base-url", "http://127.0.0.1:1/v1", "--max-tokens", "9", "--timeout", "7", "--retries", "2"]
    extra = ["--set", 'extra={"top_p": 0.9}', "--set", "omit=seed", "--episode-timeout", "70"]
    arguments = parser.parse_args([*base, "--agent", "openai:m", *more, *extra])
    agent, request = _agent(arguments), _request(arguments)
    assert agent.settings == {  # type: ignore[union-attr]
        "server": "127.0.0.1/v1",
        "max_tokens": 9,
        "reasoning": "think",
        "omit": ["seed"],
        "extra": {"top_p": 0.9},
    }
    assert agent.circumstances == {"base_url": "http://127.0.0.1:1/v1", "timeout": 7.0, "retries": 2}  # type: ignore[union-attr]
    assert request.timeouts == Timeouts(7.0, 70.0)
    assert main([*base, "--agent", "random", "--max-tokens", "9"]) == 2
    assert "random has no setting 'max_tokens'; it has: seed" in capsys.readouterr().err
    assert main([*base, "--agent", "random", "--set", "seed"]) == 2
    assert "--set seed: write it as name=value" in capsys.readouterr().err
    for words, said in (
        (["--retries", "2", "--set", "retries=3"], "retries is given as 2 and as 3"),
        (["--timeout", "2", "--set", "timeout=3"], "timeout is given as 2.0 and as 3"),
        (["--set", "max-tokens=2", "--set", "max_tokens=3"], "max_tokens is given as 2 and as 3"),
    ):
        assert main([*base, "--agent", "openai:m", *words]) == 2
        assert said in capsys.readouterr().err


# The documentation


policies = test_agents_sb3.policies  # the fixture

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "benchmark_an_agent.md"


def test_every_command_of_the_page_plays(
    here: Path, checkpoint: Path, policies: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (here / "my_agent.py").write_text(blocks[0] + "\n\n" + blocks[1])
    (here / "my_program.py").write_text(next(block for block in blocks if block.startswith("# my_program.py")))
    shutil.copytree(checkpoint, here / "models" / "lake")
    shutil.copytree(policies["planes"].parent, here / "policies")
    commands = re.findall(r"^\$ ragen-gym (.*)$", text, re.MULTILINE)
    assert len(commands) >= 8
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with BadServer() as server:
        for command in commands:
            arguments = shlex.split(command.replace("http://127.0.0.1:8000/v1", server.url))
            limited = ["--limit", "2"] if "smoke" in arguments else []
            assert main([*arguments, *limited]) == 0, f"{command}\n{capsys.readouterr().err}"
    assert len(ResultsFolder("runs/qwen").records()) == 4 * 2 * len(SMOKE.splits)
