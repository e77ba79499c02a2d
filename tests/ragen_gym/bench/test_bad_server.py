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

from ragen_gym.bench.agent import AgentFailure, Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.agents import openai as pace
from ragen_gym.bench.agents.chat_answers import ProviderError, Trouble, is_overflow, trouble_of
from ragen_gym.bench.agents.openai import OpenAIAgent, RequestPacer, backoff, retry_after
from ragen_gym.bench.episode import MAX_REPLY
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, make_env
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.report.tables import markdown_tables, overflowed
from ragen_gym.bench.results import ResultsFolder, load_results
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
        ("cut body", Failure.MODEL_ERROR, 3, "peer closed connection"),
        ("no json", Failure.MODEL_ERROR, 3, "Welcome"),
        ("half json", Failure.MODEL_ERROR, 3, "JSON"),
        ("no choices", Failure.MODEL_ERROR, 3, "no choice"),
        ("null choices", Failure.MODEL_ERROR, 3, "no choice"),
        ("no message", Failure.MODEL_ERROR, 3, "no choice"),
        ("list", Failure.MODEL_ERROR, 3, "no JSON object"),
        ("an error inside", Failure.MODEL_ERROR, 3, "upstream gone"),
        ("cut stream", Failure.MODEL_ERROR, 3, "stream ended before the reply"),
        ("broken stream", Failure.MODEL_ERROR, 3, "upstream gone"),
        ("escapes", Failure.MODEL_ERROR, 1, "400 - \ufffd[2J\ufffd]0;owned\ufffdgone\ufffd31m"),
        ("bomb", Failure.MODEL_ERROR, 1, "more than 33,554,432 bytes"),
        ("endless", Failure.MODEL_ERROR, 1, "more than 33,554,432 bytes"),
        ("no wait", Failure.MODEL_ERROR, 3, "now"),
        ("hang", Failure.TIMEOUT, 3, "no answer within 0.5 s"),
        ("drip", Failure.TIMEOUT, 3, "no answer within 0.5 s"),
        ("overflow code", Failure.CONTEXT_OVERFLOW, 1, "too much"),
        ("overflow vllm", Failure.CONTEXT_OVERFLOW, 1, "maximum context length"),
        ("overflow new vllm", Failure.CONTEXT_OVERFLOW, 1, "maximum model length"),
        ("overflow text", Failure.CONTEXT_OVERFLOW, 1, "exceeds the context length"),
        ("overflow detail", Failure.CONTEXT_OVERFLOW, 1, "prompt is too long"),
        ("overflow type", Failure.CONTEXT_OVERFLOW, 1, "no"),
        ("413", Failure.CONTEXT_OVERFLOW, 1, "413"),
        ("413 rate", Failure.MODEL_ERROR, 1, "TPM"),
        ("overflow gateway", Failure.CONTEXT_OVERFLOW, 1, "Provider returned error {'raw': \"This model's maximum"),
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
        request = RunOptions((SMOKE.splits[0].name,), limit=1)
        run_suite(SMOKE, agent_of(server), tmp_path / "run", request)
        assert max(len(str(body)) for body in server.bodies) < 5 * MAX_REPLY, "what is sent back is cut"
    (record,) = records_in(tmp_path / "run")
    assert (record.failure, len(record.turns)) == (None, 5)
    for turn in record.turns:
        assert turn.reply is not None
        assert len(turn.reply) + len(turn.reasoning or "") <= 2 * MAX_REPLY
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


def one_choice(content: Any, **fields: Any) -> dict[str, Any]:
    """A completion of one choice; ``fields`` are of the choice."""
    answer = completion(content)
    answer["choices"][0] |= fields
    return answer


TEXT = {"type": "text", "text": "<answer>Up</answer>"}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"content": [{"type": "text", "text": GOOD}]}, None),
        ({"content": {"type": "text", "text": GOOD}}, None),
        ({"content": ["<think>On we go.</think>", "<answer>Up || Left</answer>"]}, None),
        ({"content": [{"text": GOOD}]}, None),
        ({"content": [{"type": "output_text", "text": GOOD}]}, None),
        ({"content": [{"type": "text", "text": {"value": GOOD, "annotations": []}}]}, None),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "go"}]}, TEXT]}, "go"),  # Mistral
        ({"content": [{"type": "thinking", "thinking": "go", "signature": "x"}, TEXT]}, "go"),  # Anthropic, Cohere
        ({"content": [{"reasoningContent": {"reasoningText": {"text": "go"}}}, {"text": TEXT["text"]}]}, "go"),
        ({"content": [{"text": "go", "thought": True}, {"text": TEXT["text"]}]}, "go"),  # Gemini
        ({"content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": GOOD}]}, None),
        ({"content": TEXT["text"], "reasoning_content": "go"}, "go"),
        ({"content": TEXT["text"], "reasoning": "go"}, "go"),
        ({"content": TEXT["text"], "reasoning_details": [{"type": "reasoning.text", "text": "go"}]}, "go"),
        ({"content": TEXT["text"], "reasoning_details": [{"type": "reasoning.summary", "summary": "go"}]}, "go"),
        (
            {
                "content": TEXT["text"],
                "reasoning": "go",
                "reasoning_details": [{"type": "reasoning.text", "text": "go"}],
            },
            "go",
        ),
        ({"content": "go down\n</think>\n\n<answer>Up</answer>"}, None),
        ({"content": "on</think><answer>Up</answer>", "reasoning": "go "}, "go "),
    ],
)
def test_text_and_thought_are_read_in_every_form(message: dict[str, Any], thought: str | None, streams: bool) -> None:
    if streams and isinstance(message["content"], dict):
        message = {**message, "content": [message["content"]]}
    with BadServer("stream" if streams else "good") as server:
        server.answer = completion(**message)
        answer = ask(server, extra={"stream": True} if streams else {})
    reply = parse_reply(answer.text, ["Up", "Down", "Left"])
    assert (reply.problem, reply.actions[0]) == (None, 0)
    assert reply.thinking
    assert thought is None or thought.strip() in reply.thinking
    assert answer.reasoning == thought
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (100, 10, "stop")


@pytest.mark.parametrize(
    "answer",
    [
        one_choice("", finish_reason="error", error={"message": "upstream", "code": 502}),
        *(one_choice("<think>go do", finish_reason=reason) for reason in (
            "error", "network_error", "insufficient_system_resource", "engine_error", "abort", "timeout", "ERROR",
        )),
        {"choices": [{"message": {"role": "assistant", "content": None, "error": {"message": "upstream"}}}]},
        {"object": "error", "message": "worker died", "code": 50001},
        {"base_resp": {"status_code": 1000, "status_msg": "unknown error"}, "choices": None},
        {"error": "model runner has stopped"},
        {"choices": [], "prompt_filter_results": [{"content_filter_results": {"hate": {"filtered": False}}}]},  # Azure
        one_choice(7),
    ],
)  # fmt: skip
def test_a_providers_failure_inside_an_answer_is_asked_again_and_is_no_reply(answer: dict[str, Any]) -> None:
    with BadServer() as server:
        server.answer = answer
        with pytest.raises(AgentFailure) as failed:
            ask(server)
        assert failed.value.failure is Failure.MODEL_ERROR
        assert len(server.arrivals) == 3


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter: SAFETY", "MALFORMED_RESPONSE", "refusal"])
def test_what_the_model_ends_with_is_its_reply(reason: str) -> None:
    with BadServer() as server:
        server.answer = one_choice("<think>go", finish_reason=reason)
        assert (ask(server).text, ask(server).finish_reason) == ("<think>go", reason)


@pytest.mark.parametrize(
    ("code", "requests"), [(401, 1), (402, 1), (400, 1), ("400", 1), (429, 3), (503, 3), ("502", 3)]
)
def test_the_code_of_an_error_inside_an_answer_says_whether_to_ask_again(code: int | str, requests: int) -> None:
    with BadServer() as server:
        server.answer = {"error": {"message": "no", "code": code}}
        with pytest.raises(AgentFailure):
            ask(server)
        assert len(server.arrivals) == requests


def test_an_endpoint_without_a_system_role_gets_it_in_the_first_user_message(tmp_path: Path) -> None:
    """The first refusal is enough for the run."""
    with BadServer(lambda _, body: "good" if body["messages"][0]["role"] == "user" else "no system") as server:
        assert not play(server, tmp_path / "run", one_split(4), concurrency=1)
        records = records_in(tmp_path / "run")
        assert len(server.bodies) == sum(len(record.turns) for record in records) + 1
        first = server.bodies[0]["messages"]
        assert server.bodies[1]["messages"] == [
            {"role": "user", "content": f"{first[0]['content']}\n\n{first[1]['content']}"}
        ]
        assert [message["role"] for message in server.bodies[2]["messages"]] == ["user", "assistant", "user"]


def test_an_endpoint_that_refuses_the_folded_conversation_too_is_given_up(tmp_path: Path) -> None:
    with BadServer("no system") as server:
        assert play(server, tmp_path / "run", one_split(1)) == {Failure.MODEL_ERROR: 1}
        assert [body["messages"][0]["role"] for body in server.bodies] == ["system", "user"]
    assert "Developer instruction is not enabled" in records_in(tmp_path / "run")[0].detail


def test_an_endpoint_that_only_streams_is_streamed_from(tmp_path: Path) -> None:
    with BadServer(lambda number, body: "stream" if body.get("stream") else "stream only") as server:
        assert not play(server, tmp_path / "run", one_split(4), concurrency=1)
        records = records_in(tmp_path / "run")
        turns = [turn for record in records for turn in record.turns]
        assert len(server.bodies) == len(turns) + 1
        assert server.bodies[1]["stream_options"] == {"include_usage": True}
    assert {turn.reply for turn in turns} == {GOOD}
    assert {(turn.prompt_tokens, turn.completion_tokens, turn.finish_reason) for turn in turns} == {(100, 10, "stop")}


def test_a_server_that_streams_unasked_or_does_not_stream_though_asked_is_read() -> None:
    for way in ("stream", "stream as text"):
        with BadServer(way) as server:
            assert ask(server).text == GOOD
    with BadServer() as server:
        assert ask(server, extra={"stream": True}).text == GOOD


def test_a_refusal_and_a_blocked_prompt_are_replies_with_their_texts(tmp_path: Path) -> None:
    for way, answer, text in (
        ("good", completion(None, refusal="I can't help with that."), "I can't help with that."),
        ("good", {"choices": [{"finish_reason": "content_filter"}]}, ""),
        ("blocked", None, "our content management policy"),
    ):
        with BadServer(way) as server:
            server.answer = answer or server.answer
            out = tmp_path / f"{way} {text}"
            assert not play(server, out, one_split(1))
            (record,) = records_in(out)
        assert record.counted
        assert {turn.problem for turn in record.turns} == {"no_answer"}
        assert all(text in (turn.reply or "") for turn in record.turns)
        assert len(server.arrivals) == len(record.turns)


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
        ({"extra": {"stream": "yes"}}, "must be true or false"),
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


#: By what an error asks for, how servers say it; checked against their documentation, code and users' reports.
SAID: dict[Trouble, tuple[str, ...]] = {
    Trouble.OVERFLOW: (
        "This model's maximum context length is 4096 tokens, however you requested 5000 tokens",  # OpenAI, vLLM
        "Your input exceeds the context window of this model. Please adjust your input and try again.",  # OpenAI
        "Invalid 'messages[1].content': string too long. Expected maximum length 9 [string_above_max_length]",
        "context_length_exceeded",
        "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens",  # vLLM
        "The prompt (total length 5000) is too long to fit into the model (context length 4096).",  # vLLM
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",  # SGLang
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",  # llama.cpp
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",  # TGI
        "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",  # TGI, Together
        "prompt is too long: 210000 tokens > 200000 maximum",  # Anthropic
        "input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000",  # Anthropic
        "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",  # Gemini
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",  # Mistral
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",  # DashScope
        "Please reduce the length of the messages or completion.",  # Groq, Cerebras
        "The prompt is too long: 139000, model maximum context length: 131071",  # Fireworks
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",  # Cohere
        "Input is too long for requested model.",  # Bedrock
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",  # Bedrock
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens",  # xAI
        "prompt too long; exceeded max context length by 5 tokens",  # Ollama
        "Trying to keep the first 5000 tokens when context the overflows.",  # LM Studio
        "The number of tokens to keep from the initial prompt is greater than the context length",  # LM Studio
        "Invalid request: Your request exceeded model token limit: 8192",  # Moonshot
        "Prompt exceeds max length",  # Zhipu
        "invalid params, context window exceeds limit (2013)",  # MiniMax
        "prompt token count of 140000 exceeds the limit of 128000",  # GitHub
        "Request prompt has 5000 tokens in total, larger than the model capacity 4096.",  # MLC
        "Prompt length (5000) exceeds maximum input length (4096)",  # TensorRT-LLM
        "max_tokens must be at least 1, got -904.",  # vLLM: what the prompt leaves
        "Unable to submit request because the input token count is 40000 but model only supports up to 2.",  # Vertex
        "Malformed input request: expected maxLength: 51200, actual: 64214, please reformat your input",  # Bedrock
        "Validation Error: too many total text bytes: 30000000 > 25000000",  # Bedrock
        "tokens in request more than max tokens allowed",
        "input_tokens (5000) + max_tokens (1000) > 4096",
        "Validation Error: string too long. expected a string with maximum length 1000.",
        "invalid_prompt: prompt tokens (330095) exceed model maximum (278528) for base model m",  # Bedrock
        "Request too large for model: 5000 tokens",
        "Prompt tokens limit exceeded: 5000 > 4096",  # OpenRouter
        "输入长度超过最大限制",
    ),
    Trouble.NO_SYSTEM: (
        "Developer instruction is not enabled for models/gemma-3-27b-it",  # Gemini
        "System role not supported",  # Gemma's template
        "Only user and assistant roles are supported!",  # Mistral's first template
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",  # OpenAI
        "role 'system' is not supported on this model",  # Anthropic
        'Unexpected role "system". The Messages API accepts a top-level `system` parameter',  # Anthropic
        "This model doesn't support system messages. Try again without a system message",  # Bedrock
        "the role of message with index 0 must be user",  # Qianfan
        "messages.0.role: Input should be 'user' or 'assistant'",
        "unknown variant `system`, expected `user` or `assistant`",
        "A conversation must start with a user message. Try again with a conversation that does.",  # Bedrock
        "Please use a valid role: user, model.",  # Gemini
        '"system" is not a valid role',
        "system_instruction is not supported for this model",
    ),
    Trouble.STREAM_ONLY: (
        "parameter.enable_thinking must be set to false for non-streaming calls",  # DashScope
        "This model only support stream mode, please enable the stream parameter to access the model. ",  # DashScope
        "current user api does not support http call",  # DashScope
        "Stream must be set to true",
        "This endpoint only supports streaming",
        "Unsupported value: 'stream' does not support false with this model.",
        "Streaming is required for operations that may take longer than 10 minutes",  # Anthropic
    ),
    Trouble.BLOCKED: (
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",  # OpenAI
        "Your request was rejected as a result of our safety system.",  # OpenAI
        "Input data may contain inappropriate content.",  # DashScope
        "Content Exists Risk",  # DeepSeek
        "The request was rejected because it was considered high risk",  # Moonshot
        "Content violates usage guidelines.",  # xAI
        'm requires moderation. Your input was flagged for "harassment"',  # OpenRouter
        "Your input was flagged",
        "Prompt blocked: SAFETY",
    ),
    Trouble.REFUSED: (
        "Unsupported parameter: 'content_filter' is not supported with this model.",
        "Unrecognized request argument supplied: content_filter",
        "content_filter: Extra inputs are not permitted",
        "Unknown field: seed",
        "temperature must be at most 2",
        "max_tokens is too large: 9",
        "max_tokens (5000) exceeds the maximum allowed for this model (4096)",
        "max_tokens must be less than or equal to 8192, which is below the context_window of this model",  # Groq
        "Range of max_tokens should be [1, 8192]",  # DashScope
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7700",  # Groq
        "The maximum tokens you requested exceeds the model limit of 4096.",  # Bedrock
        "max_tokens must be at least 1, got 'many'",
        "Token limit exceeded for your plan",
        "Too many tokens, please wait before trying again.",  # Bedrock
        "Your account was suspended for violating our usage policy",
    ),
}


@pytest.mark.parametrize(("kind", "said"), [(kind, said) for kind, every in SAID.items() for said in every])
def test_how_servers_say_what_is_wrong_with_a_request(kind: Trouble, said: str) -> None:
    assert trouble_of(ProviderError(said, 400), folds=False, streams=False) is kind
    assert trouble_of(ProviderError(said), folds=False, streams=False) is {Trouble.REFUSED: Trouble.BROKEN}.get(
        kind, kind
    )
    assert is_overflow(said) is (kind is Trouble.OVERFLOW)


@pytest.mark.parametrize("said", ["not enough system memory", "unexpected system error", "CUDA error", "upstream gone"])
def test_a_broken_server_is_asked_again(said: str) -> None:
    assert trouble_of(ProviderError(said, 500), folds=False, streams=False) is Trouble.BROKEN


def test_an_unknown_parameter_is_no_blocked_prompt() -> None:
    for said in ("Unsupported parameter: content_filter", "Unknown parameter: 'content_filter'."):
        assert trouble_of(ProviderError(said, 400), folds=True, streams=True) is Trouble.REFUSED
