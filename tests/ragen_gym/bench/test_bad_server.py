"""The client of chat-completions servers, against a server that does everything wrong: nothing is lost, failures are
typed, and a second session completes the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai._base_client import BaseClient

from ragen_gym.bench.agent import AgentFailure, Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.agents.openai import OpenAIAgent
from ragen_gym.bench.episode import MAX_REPLY
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, make_env
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.report.tables import overflowed
from ragen_gym.bench.results import ResultsFolder, load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.cli.bench_results import score_lines
from ragen_gym.core.failures import INFRASTRUCTURE, Failure
from tests.ragen_gym.bench.bad_server import GOOD, BadServer, completion

SMOKE = load_suite("smoke")
KEY = "sk-very-secret-0123456789"
WAYS = (
    "good", "slow", "429", "503 wait", "500", "cut", "cut body", "no json", "half json", "no choices", "null choices",
    "no message", "list", "an error inside", "echo 500", "good", "good",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseClient, "_calculate_retry_timeout", lambda *_: 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def agent_of(server: BadServer, **settings: Any) -> OpenAIAgent:
    return OpenAIAgent("m", base_url=server.url, **{"timeout": 5.0, "retries": 2, **settings})


def play(
    server: BadServer, out: Path, suite: Suite = SMOKE, concurrency: int = 16, limit: int = 4, **settings: Any
) -> Counter[Failure]:
    request = RunOptions(limit=limit, concurrency=concurrency, timeouts=Timeouts(episode=60.0))
    return run_suite(suite, agent_of(server, **settings), out, request).failures


def one_split(levels: int) -> Suite:
    split = SMOKE.splits[0]
    return Suite("small", (replace(split, levels=split.levels[:levels]),))


def records_in(out: Path) -> list[EpisodeRecord]:
    return ResultsFolder(out).records()


def ask(server: BadServer, **settings: Any) -> Answer:
    """One answer outside a run."""
    split = SMOKE.splits[0]
    task = Task("smoke", split.name, 0, 0, 1, 0.5, make_env(split))

    async def answer() -> Answer:
        agent = agent_of(server, **settings)
        try:
            return await agent.reply([{"role": "user", "content": "?"}], task)
        finally:
            await agent.close()

    return asyncio.run(answer())


def test_everything_goes_wrong_and_nothing_is_lost(tmp_path: Path) -> None:
    """Every way to fail, again and again; then a good server."""
    out = tmp_path / "run"
    with BadServer(lambda number, body: WAYS[number * 7 % len(WAYS)]) as server:
        failures = play(server, out, retries=1)
    first = records_in(out)
    assert len(first) == 24
    assert failures == Counter(record.failure for record in first if record.failure)
    assert set(failures) == {Failure.MODEL_ERROR}
    assert all(record.detail for record in first if record.failure)
    assert sum(turn.retries for record in first for turn in record.turns) > 0
    with BadServer() as server:
        assert not play(server, out)
    second = records_in(out)
    assert {record.key for record in second} == {record.key for record in first}
    assert all(record.failure is None for record in second)
    for record in first:  # what counted was not played again
        assert not record.counted or record in second
    assert len(out.joinpath("episodes.jsonl").read_text().splitlines()) == 24 + failures.total()
    assert verify(load_results(out)).differences == []


@pytest.mark.parametrize(
    ("way", "failure", "requests", "detail"),
    [
        ("401", Failure.MODEL_ERROR, 1, "HTTP 401"),
        ("404", Failure.MODEL_ERROR, 1, "does not exist"),
        ("400", Failure.MODEL_ERROR, 1, "Unknown field"),
        ("429", Failure.MODEL_ERROR, 3, "slow down"),
        ("500", Failure.MODEL_ERROR, 3, "CUDA error"),
        ("cut", Failure.MODEL_ERROR, 3, "Connection"),
        ("cut body", Failure.MODEL_ERROR, 3, "peer closed connection"),
        ("no json", Failure.MODEL_ERROR, 1, "Welcome"),
        ("no message", Failure.MODEL_ERROR, 1, "no completion"),
        ("list", Failure.MODEL_ERROR, 1, "no completion"),
        ("an error inside", Failure.MODEL_ERROR, 1, "upstream gone"),
        ("escapes", Failure.MODEL_ERROR, 1, "\ufffd[2J\ufffd]0;owned\ufffdgone\ufffd31m"),
        ("hang", Failure.TIMEOUT, 3, "no answer within 0.5 s"),
        ("overflow code", Failure.CONTEXT_OVERFLOW, 1, "too much"),
        ("overflow vllm", Failure.CONTEXT_OVERFLOW, 1, "maximum context length"),
        ("overflow text", Failure.CONTEXT_OVERFLOW, 1, "exceeds the context length"),
        ("413", Failure.CONTEXT_OVERFLOW, 1, "413"),
        ("413 rate", Failure.MODEL_ERROR, 1, "TPM"),
        ("overflow gateway", Failure.CONTEXT_OVERFLOW, 1, "This model's maximum"),
    ],
)
def test_each_failure_has_its_type(way: str, failure: Failure, requests: int, detail: str, tmp_path: Path) -> None:
    with BadServer(way) as server:
        timeout = 0.5 if failure is Failure.TIMEOUT else 5.0
        failures = play(server, tmp_path / "run", one_split(1), timeout=timeout)
    assert failures == {failure: 1}
    (record,) = records_in(tmp_path / "run")
    assert detail in record.detail
    assert len(server.arrivals) == requests
    assert record.counted == (failure not in INFRASTRUCTURE)


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens, however you requested 5000 tokens",  # OpenAI, vLLM
        "The decoder prompt (length 700) is longer than the maximum model length of 512.",  # vLLM
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",  # SGLang
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",  # llama.cpp
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",  # TGI
        "prompt is too long: 210000 tokens > 200000 maximum",  # Anthropic
        "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",  # Gemini
        "Please reduce the length of the messages or completion.",  # Groq
    ],
)
def test_how_servers_say_that_a_conversation_is_too_long(said: str) -> None:
    with BadServer("400") as server:
        server.refusals["400"] = ("400 Bad Request", {}, {"error": {"message": said}})
        with pytest.raises(AgentFailure) as failed:
            ask(server)
    assert failed.value.failure is Failure.CONTEXT_OVERFLOW


def test_a_failure_in_the_middle_keeps_the_turns_before_it(tmp_path: Path) -> None:
    with BadServer(lambda number, body: "good" if len(body["messages"]) < 6 else "overflow code") as server:
        play(server, tmp_path / "run", one_split(1))
    (record,) = records_in(tmp_path / "run")
    assert (len(record.turns), record.failure, record.counted) == (2, Failure.CONTEXT_OVERFLOW, True)
    summary = score(SMOKE, [record], "openai:m")
    assert overflowed(summary) == ["Episodes that outgrew the model's context, and count as not solved: 1."]
    assert overflowed(summary)[0] in score_lines(summary)


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_a_reply_is_cut_where_it_is_too_long(field: str, tmp_path: Path) -> None:
    with BadServer() as server:
        server.answer = completion(**{"content": GOOD, field: "<think>" + "x" * 2_000_000})
        run_suite(SMOKE, agent_of(server), tmp_path / "run", RunOptions((SMOKE.splits[0].name,), limit=1))
        assert max(len(str(body)) for body in server.bodies) < 5 * MAX_REPLY, "what is sent back is cut"
    (record,) = records_in(tmp_path / "run")
    assert (record.failure, len(record.turns)) == (None, 5)
    assert {turn.finish_reason for turn in record.turns} == {"max_reply"}
    assert verify(load_results(tmp_path / "run")).differences == []


def test_counts_that_no_server_has_counted_are_left_out() -> None:
    with BadServer() as server:
        server.answer["usage"] = {"prompt_tokens": 2**60, "completion_tokens": -1}
        answer = ask(server)
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


def test_no_control_character_of_a_server_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BadServer("escapes", model="\x1b[31mm") as server:
        words = ["--suite", "smoke", "--agent", "openai:m", "--base-url", server.url, "--limit", "1"]
        assert main(["bench", "run", *words, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert "[31mm" in said.err, "the notice on the models that it lists"
    assert not set(said.out + said.err) & {"\x1b", "\x07", "\x9b"}


@pytest.mark.parametrize("way", ["echo", "echo 500"])
def test_the_key_is_written_nowhere(way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The server quotes every header in its replies and its errors."""
    with BadServer(way) as server:
        arguments = ["--base-url", server.url, "--retries", "0", "--limit", "1", "--split", "sokoban"]
        code = main(["bench", "run", "--suite", "smoke", "--agent", "openai:m", *arguments, "--out", str(tmp_path)])
    assert code == (1 if way == "echo 500" else 0)
    written = "".join(path.read_text() for path in tmp_path.rglob("*"))
    assert "[key]" in written
    assert KEY not in written + "".join(capfd.readouterr())


def test_what_a_request_says_and_a_record_keeps(tmp_path: Path) -> None:
    with BadServer() as server:
        play(server, tmp_path / "run", one_split(1), max_tokens=77, extra={"top_p": 0.9}, omit="seed")
        play(server, tmp_path / "other", one_split(1))
    body, other = server.bodies[0], server.bodies[5]
    fields = {"model": "m", "temperature": 0.5, "max_tokens": 77, "top_p": 0.9}
    assert {name: value for name, value in body.items() if name != "messages"} == fields
    assert "max_tokens" not in other
    assert len({body["seed"] for body in server.bodies[5:]}) == 5  # another in each turn
    (record,) = records_in(tmp_path / "run")
    env = make_env(SMOKE.splits[0])
    message, _ = env.reset(options={"level": SMOKE.splits[0].levels[0], "noise_seed": record.noise_seed})
    assert body["messages"] == [
        {"role": "system", "content": env.instructions},
        {"role": "user", "content": message},
    ]
    turn = record.turns[0]
    assert (turn.reply, turn.prompt_tokens, turn.completion_tokens, turn.finish_reason) == (GOOD, 100, 10, "stop")


def test_an_endpoint_without_a_system_role_gets_it_in_the_first_user_message(tmp_path: Path) -> None:
    """The first refusal is enough for the run."""
    with BadServer(lambda _, body: "good" if body["messages"][0]["role"] == "user" else "no system") as server:
        assert not play(server, tmp_path / "run", one_split(4), concurrency=1)
        assert len(server.bodies) == sum(len(record.turns) for record in records_in(tmp_path / "run")) + 1
        first = server.bodies[0]["messages"]
        assert server.bodies[1]["messages"] == [
            {"role": "user", "content": f"{first[0]['content']}\n\n{first[1]['content']}"}
        ]
        assert [message["role"] for message in server.bodies[2]["messages"]] == ["user", "assistant", "user"]
    with BadServer("no system") as server:
        assert play(server, tmp_path / "refused", one_split(1)) == {Failure.MODEL_ERROR: 1}
        assert [body["messages"][0]["role"] for body in server.bodies] == ["system", "user"]


def test_a_server_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with BadServer() as server:
        assert ask(server).text == GOOD
        with pytest.raises(ValueError, match="MY_KEY holds no key"):
            ask(server, key_env="MY_KEY")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds no key"):
        make_agent("openai:m")


def test_a_run_does_not_begin_without_a_server_and_notices_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "run", "--suite", "smoke", "--limit", "1", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--agent", "openai:m", "--base-url", "http://127.0.0.1:9/v1"]) == 2
    assert "cannot reach http://127.0.0.1:9/v1: start the server" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with BadServer() as server:
        assert main([*arguments, "--agent", "openai:n", "--base-url", server.url]) == 0
    assert "the server lists m, not n" in capsys.readouterr().err


def test_the_same_server_at_another_port_goes_on_with_a_run() -> None:
    here, there, elsewhere = (
        OpenAIAgent("m", base_url=url).settings
        for url in ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1/", "http://10.0.0.1:1/v1")
    )
    assert here == there != elsewhere
