"""The client of chat-completions servers, against a server that does everything wrong: nothing is lost, failures are
typed, and a second session completes the run."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.agents import rate_limit as pace
from ragen_gym.bench.agents.chat_answers import is_overflow
from ragen_gym.bench.agents.openai import OpenAIAgent
from ragen_gym.bench.agents.rate_limit import RequestPacer, backoff, retry_after
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, make_env
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.report.tables import markdown_tables, overflowed
from ragen_gym.bench.results import load_results
from ragen_gym.bench.results_folder import ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.cli.bench_scores import score_lines
from ragen_gym.core.failures import INFRASTRUCTURE, Failure
from ragen_gym.envs.reply import parse_reply
from tests.ragen_gym.bench.bad_server import GOOD, BadServer, completion

SMOKE = load_suite("smoke")
KEY = "sk-very-secret-0123456789"
WAYS = (
    "good", "slow", "429", "503 wait", "500", "cut", "cut body", "no json", "half json", "no choices", "null choices",
    "no message", "list", "an error inside", "echo 500", "good", "good",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_FIRST", 0.01)
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


def test_everything_goes_wrong_and_nothing_is_lost(tmp_path: Path) -> None:
    """Every way to fail, again and again, so that some requests fail three times in a row; then a good server."""
    out = tmp_path / "run"
    with BadServer(lambda number, body: WAYS[number * 7 % len(WAYS)]) as server:
        failures = play(server, out, retries=1)
    first = records_in(out)
    assert len(first) == 24
    assert failures == Counter(record.failure for record in first if record.failure)
    assert set(failures) == {Failure.MODEL_ERROR}
    assert all(record.detail for record in first if record.failure)
    assert 0 < failures.total() < 24
    assert sum(turn.retries for record in first for turn in record.turns) > 0
    with BadServer() as server:
        assert not play(server, out)
    second = records_in(out)
    assert len({record.key for record in second}) == len(second) == 24
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
        ("429 spent", Failure.MODEL_ERROR, 1, "no money"),
        ("429 long", Failure.MODEL_ERROR, 1, "asks to wait 86400 s"),
        ("429", Failure.MODEL_ERROR, 3, "slow down"),
        ("500", Failure.MODEL_ERROR, 3, "CUDA error"),
        ("cut", Failure.MODEL_ERROR, 3, "Connection"),
        ("cut body", Failure.MODEL_ERROR, 3, "Connection"),
        ("no json", Failure.MODEL_ERROR, 3, "Welcome"),
        ("half json", Failure.MODEL_ERROR, 3, "JSON"),
        ("no choices", Failure.MODEL_ERROR, 3, "no choice"),
        ("null choices", Failure.MODEL_ERROR, 3, "no choice"),
        ("no message", Failure.MODEL_ERROR, 3, "no choice"),
        ("list", Failure.MODEL_ERROR, 3, "no JSON object"),
        ("an error inside", Failure.MODEL_ERROR, 3, "upstream gone"),
        ("escapes", Failure.MODEL_ERROR, 1, "400 - \ufffd[2J\ufffd]0;owned\ufffdgone\ufffd31m"),
        ("bomb", Failure.MODEL_ERROR, 1, "more than 33,554,432 bytes"),
        ("endless", Failure.MODEL_ERROR, 1, "more than 33,554,432 bytes"),
        ("no wait", Failure.MODEL_ERROR, 3, "now"),
        ("hang", Failure.TIMEOUT, 3, "no answer within 0.5 s"),
        ("drip", Failure.TIMEOUT, 3, "no answer within 0.5 s"),
        ("overflow code", Failure.CONTEXT_OVERFLOW, 1, "too much"),
        ("overflow vllm", Failure.CONTEXT_OVERFLOW, 1, "maximum context length"),
        ("overflow new vllm", Failure.CONTEXT_OVERFLOW, 1, "maximum model length"),
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
    assert not record.success


def test_a_failure_in_the_middle_keeps_the_turns_before_it(tmp_path: Path) -> None:
    with BadServer(lambda number, body: "good" if len(body["messages"]) < 6 else "overflow code") as server:
        play(server, tmp_path / "run", one_split(1))
    (record,) = records_in(tmp_path / "run")
    assert (len(record.turns), record.failure, record.counted) == (2, Failure.CONTEXT_OVERFLOW, True)
    assert [turn.prompt_tokens for turn in record.turns] == [100, 100]
    summary = score(SMOKE, [record], "openai:m")
    assert overflowed(summary) == ["Episodes that outgrew the model's context, and count as not solved: 1."]
    assert overflowed(summary)[0] in score_lines(summary)
    assert overflowed(summary)[0] in markdown_tables([summary])
    assert not overflowed({"splits": {"lake": {"failures": {"timeout": 1}}}})


def test_all_requests_wait_as_long_as_the_server_asks(tmp_path: Path) -> None:
    with BadServer(lambda number, body: "429 wait" if number == 0 else "good") as server:
        assert not play(server, tmp_path / "run", one_split(8), concurrency=4, limit=8)
    late = [arrival for arrival in server.arrivals if arrival > server.arrivals[0] + 0.45]
    assert len(server.arrivals) == 41
    assert len(late) >= 33  # up to two of each that plays beside the first were on their way


def test_waits_that_the_server_asks_for_do_not_use_up_the_retries(tmp_path: Path) -> None:
    with BadServer(lambda number, body: "good" if number % 9 == 8 else "503 wait") as server:
        assert not play(server, tmp_path / "run", one_split(1), retries=1)
    (record,) = records_in(tmp_path / "run")
    assert {turn.retries for turn in record.turns} == {8}


def test_a_wait_of_nothing_does_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten such waits count as one retry: without a least wait the server would be asked as fast as it answers."""
    monkeypatch.setattr(pace, "_FIRST", 0.1)
    with BadServer("short wait") as server:
        assert play(server, tmp_path / "run", one_split(1), retries=0) == {Failure.MODEL_ERROR: 1}
    assert len(server.arrivals) == 10
    assert all(after - before > 0.09 for before, after in pairwise(server.arrivals))


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_a_reply_is_cut_where_it_is_too_long(field: str, tmp_path: Path) -> None:
    long = "<think>" + "x" * 5_000_000
    with BadServer() as server:
        server.answer = completion(**{"content": GOOD, field: long})
        request = RunOptions((SMOKE.splits[0].name,), limit=1, max_reply=1000)
        run_suite(SMOKE, agent_of(server), tmp_path / "run", request)
        assert max(len(str(body)) for body in server.bodies) < 20_000, "what is sent back is cut"
    (record,) = records_in(tmp_path / "run")
    assert (record.failure, len(record.turns)) == (None, 5)
    for turn in record.turns:
        assert turn.reply is not None
        assert len(turn.reply) + len(turn.reasoning or "") <= 2000
        assert turn.finish_reason == "max_reply"
    assert verify(load_results(tmp_path / "run")).differences == []


def test_counts_that_no_server_has_counted_are_left_out(tmp_path: Path) -> None:
    with BadServer() as server:
        server.answer["usage"] = {"prompt_tokens": 10**4000, "completion_tokens": -1}
        assert not play(server, tmp_path / "run", one_split(1))
    (record,) = records_in(tmp_path / "run")
    assert {(turn.prompt_tokens, turn.completion_tokens) for turn in record.turns} == {(None, None)}


def test_no_control_character_of_a_server_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BadServer("escapes", model="\x1b[31mm") as server:
        words = ["--suite", "smoke", "--agent", "openai:m", "--base-url", server.url, "--limit", "1"]
        assert main(["bench", "run", *words, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert "[2J" in said.err
    assert "[31mm" in said.err, "the notice on the models that it lists"
    assert not set(said.out + said.err) & {"\x1b", "\x07", "\x9b"}


async def moment_of(pacer: RequestPacer) -> float:
    await pacer.turn()
    return time.monotonic()


def test_a_rate_is_kept_to() -> None:
    async def times() -> list[float]:
        kept = RequestPacer(per_minute=3000)
        return await asyncio.gather(*(moment_of(kept) for _ in range(20)))

    began = time.monotonic()
    for place, moment in enumerate(asyncio.run(times())):
        assert moment - began > 0.02 * place - 0.002


def test_a_rate_is_kept_to_after_a_pause() -> None:
    async def times() -> tuple[float, list[float]]:
        kept = RequestPacer(per_minute=3000)
        turns = [asyncio.create_task(moment_of(kept)) for _ in range(10)]
        await asyncio.sleep(0.03)  # two requests are out
        paused = time.monotonic()
        kept.pause(0.3)
        return paused, await asyncio.gather(*turns)

    paused, moments = asyncio.run(times())
    later = sorted(moment - paused for moment in moments if moment > paused)
    assert len(later) >= 6
    for place, seconds in enumerate(later):  # a busy machine may wake one later, never earlier
        assert seconds > 0.3 + 0.02 * place - 0.002


def test_no_more_requests_are_open_than_asked_for(tmp_path: Path) -> None:
    with BadServer("slow", delay=0.05) as server:
        play(server, tmp_path / "run", concurrency=7)
    assert server.most == 7


@pytest.mark.parametrize("way", ["echo", "echo 500"])
@pytest.mark.parametrize("user", ["", "user:geheim@"])
def test_the_key_is_written_nowhere(way: str, user: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The server quotes every header in its replies and its errors; an address may hold a password as well."""
    with BadServer(way) as server:
        url = server.url.replace("http://", f"http://{user}")
        arguments = ["--agent", "openai:m", "--base-url", url, "--retries", "0", "--limit", "1", "--split", "sokoban"]
        code = main(["bench", "run", "--suite", "smoke", *arguments, "--out", str(tmp_path / "run")])
    assert code == (1 if way == "echo 500" else 0)
    said = "".join(capfd.readouterr())
    written = "".join(path.read_text() for path in (tmp_path / "run").rglob("*"))
    assert "[key]" in written
    for secret in (KEY, "geheim", base64.b64encode(b"user:geheim").decode()):
        assert secret.lower() not in written.lower()
        assert secret not in said


def test_what_a_request_says_and_a_record_keeps(tmp_path: Path) -> None:
    with BadServer() as server:
        play(server, tmp_path / "run", one_split(1), max_tokens=77, extra={"top_p": 0.9}, omit="seed")
        play(server, tmp_path / "other", one_split(1))
    body, other = server.bodies[0], server.bodies[5]
    assert {name: value for name, value in body.items() if name != "messages"} == {
        "model": "m",
        "temperature": 0.5,
        "max_tokens": 77,
        "top_p": 0.9,
    }
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


def ask(server: BadServer, suite: str = "smoke", **settings: Any) -> Answer:
    """One answer outside a run."""
    split = load_suite(suite).splits[0]
    task = Task("smoke", split.name, 0, 0, 1, 0.5, make_env(split))

    async def answer() -> Answer:
        agent = agent_of(server, **settings)
        try:
            return await agent.reply([{"role": "user", "content": "?"}], task)
        finally:
            await agent.close()

    return asyncio.run(answer())


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_next_to_a_reply_is_its_thinking(field: str) -> None:
    thought = "I reply <answer>Up</answer> in <think> tags."
    with BadServer() as server:
        server.answer = completion("<answer>Up</answer>", **{field: thought})
        answer = ask(server)
        assert answer.reasoning == thought
        reply = parse_reply(answer.text, ["Up", "Down"])
        assert (reply.actions, reply.problem) == ((0,), None)
        assert reply.thinking == "I reply answerUp/answer in think tags."
        assert ask(server, reasoning="drop").text == "<answer>Up</answer>"
        server.answer = completion(GOOD, **{field: thought})  # it thinks in its reply as well
        answer = ask(server)
        assert (answer.text, answer.reasoning) == (GOOD, thought)


def test_a_reply_without_content_is_an_empty_reply() -> None:
    with BadServer() as server:
        server.answer = completion(None)
        assert ask(server).text == ""


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout": -1}, "timeout"),
        ({"retries": 1.5}, "retries"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"reasoning": "keep"}, "'think' or 'drop'"),
        ({"base_url": "localhost"}, "is no address"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OpenAIAgent("m", **{"base_url": "http://127.0.0.1:1/v1", **settings})


def test_the_same_server_at_another_port_goes_on_with_a_run() -> None:
    here, there, elsewhere = (
        OpenAIAgent("m", base_url=url).settings
        for url in ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1/", "http://10.0.0.1:1/v1")
    )
    assert here == there != elsewhere


def test_backoff_doubles_up_to_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_FIRST", 0.5)
    for failures, longest in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0), start=1):
        waits = [backoff(failures, seed) for seed in range(200)]
        assert longest / 2 <= min(waits) < 0.55 * longest
        assert 0.95 * longest < max(waits) <= longest
        assert waits == [backoff(failures, seed) for seed in range(200)]


def test_retry_after_in_all_its_forms() -> None:
    soon = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))
    forms: list[tuple[dict[str, str], Callable[[float | None], bool]]] = [
        ({"retry-after": "7"}, lambda wait: wait == 7),
        ({"retry-after": "0.25"}, lambda wait: wait == 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, lambda wait: wait == 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, lambda wait: wait == 9),
        ({"retry-after": soon}, lambda wait: wait is not None and 25 < wait <= 30),
        ({"retry-after-ms": "0.001"}, lambda wait: wait == pace._FIRST),
    ]
    for headers, right in forms:
        assert right(retry_after(headers)), headers
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    for value in ("tomorrow", "-1", "0", "inf", "nan", past):
        assert retry_after({"retry-after": value}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens, however you requested 5000 tokens",  # OpenAI, vLLM
        "The prompt (total length 5000) is too long to fit into the model (context length 4096).",  # vLLM
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",  # SGLang
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",  # llama.cpp
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",  # TGI
        "prompt is too long: 210000 tokens > 200000 maximum",  # Anthropic
        "context_length_exceeded",
    ],
)
def test_how_servers_say_that_a_conversation_is_too_long(said: str) -> None:
    assert is_overflow(said)


@pytest.mark.parametrize("said", ["Unknown field: seed", "temperature must be at most 2", "max_tokens is too large: 9"])
def test_other_refusals_are_no_overflow(said: str) -> None:
    assert not is_overflow(said)
