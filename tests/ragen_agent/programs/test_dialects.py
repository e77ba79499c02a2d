"""The endpoint's APIs without their newest clients, which ``tests/integrations/test_clients.py`` has."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from ragen_agent.inference import Sampled
from ragen_agent.programs.endpoint import LARGEST
from tests.ragen_agent.programs.served import USER, Served

BLOCK = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
#: One question in every API, with a limit of two tokens.
ASKED: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {"messages": [{"role": "system", "content": "Play."}, USER], "max_tokens": 2},
        {"messages": [{"role": "developer", "content": "Play."}, USER], "max_completion_tokens": 2, "stream": False},
    ],
    "messages": [
        {"system": "Play.", "messages": [USER], "max_tokens": 2},
        {"system": [{"type": "text", "text": "Play."}], "messages": [{**USER, "content": [BLOCK]}], "max_tokens": 2},
        {"messages": [{"role": "system", "content": "Play."}, USER], "max_tokens": 2, "thinking": {"type": "disabled"}},
    ],
    "responses": [
        {"instructions": "Play.", "input": "hello", "max_output_tokens": 2},
        {"instructions": "Play.", "input": [ITEM], "max_output_tokens": 2, "truncation": "disabled"},
        {"input": [{"role": "developer", "content": "Play."}, USER], "max_output_tokens": 2, "include": []},
    ],
}


def text_of(answer: dict[str, Any]) -> str:
    """The text of a reply in any of the APIs."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return str((answer.get("output") or [answer])[0]["content"][0]["text"])


def test_one_question_is_one_prompt_in_every_api(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int]] = []
    end = served.worker.mdp.chat.end_id

    def sample(ids: list[int], limit: int, *_: Any) -> Sampled:
        asked.append((ids, limit))
        return Sampled([end + 1, end], [-1.0, -1.0])

    monkeypatch.setattr(served.rollout, "sample", sample)
    texts = []
    for path, bodies in ASKED.items():
        for body in bodies:
            status, answer = served.post(f"/v1/{path}", body)
            assert status == 200, answer
            texts.append(text_of(answer))
    assert asked == [asked[0]] * 8
    assert asked[0][1] == 2
    assert set(texts) == {texts[0]}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("messages", {"messages": [USER], "tools": [{"name": "move"}]}, "tools is not supported"),
        ("messages", {"messages": [USER], "thinking": {"type": "adaptive"}}, "thinking must be"),
        ("messages", {"messages": [USER], "stop": ["x"]}, "stop is not supported"),
        ("messages", {"messages": [USER], "stop_sequences": [3]}, "stop_sequences is [3]"),
        ("messages", {"messages": [USER], "max_tokens": 0}, "max_tokens is 0"),
        ("messages", {"messages": [USER], "stream": "yes"}, "stream is 'yes'"),
        ("messages", {"system": [{"type": "image"}], "messages": [USER]}, "system must hold text"),
        ("messages", {"messages": [{**USER, "content": [{"type": "tool_result"}]}]}, "messages[0] must hold text"),
        ("messages", {"system": "a", "messages": [{"role": "system", "content": "b"}]}, "must be user or assistant."),
        ("messages", {"messages": [USER, {"role": "assistant", "content": "x"}]}, "must be the user's"),
        ("chat/completions", {"messages": [USER], "stream": True, "stream_options": [1]}, "stream_options is [1]"),
        ("responses", {"input": "x", "previous_response_id": "resp_1"}, "no response is stored"),
        ("responses", {"input": "x", "conversation": "conv_1"}, "no response is stored"),
        ("responses", {"input": "x", "instructions": 3}, "instructions are 3"),
        ("responses", {"input": "x", "max_output_tokens": True}, "max_output_tokens is True"),
        ("responses", {"input": "x", "text": {"format": {"type": "json_object"}}}, "text must be"),
        ("responses", {"input": [{"type": "reasoning", "summary": []}, ITEM]}, "input[0] has the type 'reasoning'"),
        ("responses", {"input": []}, "input must be a list"),
        ("responses", {}, "input must be a list"),
    ],
)
def test_what_is_asked_wrongly_is_refused_by_its_name(served: Served, path: str, body: Any, said: str) -> None:
    status, answer = served.post(f"/v1/{path}", body)
    assert status == 400
    assert said in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert (answer.get("type") == "error") is (path == "messages")
    assert served.replies() == 0


def test_a_chat_is_streamed_in_chunks(served: Served) -> None:
    with served.client() as client:
        asked: Any = {"model": "policy", "messages": [USER], "max_tokens": 3, "stream": True}
        chunks = list(client.chat.completions.create(**asked, stream_options={"include_usage": True}))
        plain = list(client.chat.completions.create(**asked))
    assert [chunk.choices[0].finish_reason for chunk in chunks[:2]] == [None, "length"]
    assert [chunk.usage is None for chunk in chunks] == [True, True, False]
    assert chunks[2].usage.completion_tokens == 3
    assert all(chunk.choices for chunk in plain), "no chunk of usage unless it was asked for"
    reply = served.worker._episode.conversation.replies[0]  # type: ignore[union-attr]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:2]) == reply.text


def test_a_stream_that_cannot_begin_is_an_error_of_its_api(served: Served) -> None:
    overflow = pytest.raises(openai.BadRequestError, match="which leaves none for a reply")
    with served.client() as client, overflow as refused:
        client.responses.create(model="policy", input="hello " * 9000, stream=True)
    assert refused.value.code == "context_length_exceeded"
    status, answer = served.post("/v1/messages", {"messages": [{"role": "tool"}], "stream": True})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def chunked(served: Served, chunks: Any) -> tuple[int, Any]:
    to = urlsplit(served.url)
    with closing(http.client.HTTPConnection(str(to.netloc))) as connection:
        headers = {"Transfer-Encoding": "chunked"}
        connection.request("POST", f"{to.path}/v1/messages", chunks, headers, encode_chunked=True)
        with connection.getresponse() as answer:
            return answer.status, json.loads(answer.read())


def test_a_body_in_chunks_is_read_up_to_the_bound(served: Served) -> None:
    body = json.dumps({"messages": [USER], "max_tokens": 2}).encode()
    status, answer = chunked(served, iter([body[:5], body[5:6], body[6:]]))
    assert (status, answer["usage"]["output_tokens"]) == (200, 2)
    half = b" " * (LARGEST // 2)
    assert chunked(served, iter([half, half[len(body) :], body]))[0] == 200
    status, answer = chunked(served, iter([half, half, b" "]))
    assert (status, answer["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n", 400),  # read; it asks nothing
        ("Transfer-Encoding: chunked\r\n\r\n2;name=value\r\n{}\r\n0\r\n\r\n", 400),
        ("Transfer-Encoding: gzip\r\n\r\n", 501),
        ("Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", 400),
        ("Content-Length: many\r\n\r\n", 400),
        (f"Content-Length: {LARGEST + 1}\r\n\r\n", 413),
    ],
)
def test_a_body_of_a_wrong_length_is_an_error(served: Served, sent: str, status: int) -> None:
    to = urlsplit(served.url)
    with socket.create_connection((str(to.hostname), to.port or 0), timeout=20) as connection:
        connection.sendall(f"POST {to.path}/v1/responses HTTP/1.1\r\nHost: x\r\n{sent}".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == status
        if "\r\n0\r\n" in sent and "\r\n-2" not in sent:
            assert b"input must be a list" in answer.read()
            connection.sendall(f"GET {to.path}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert " 200 " in connection.recv(65536).decode().splitlines()[0], "the connection is still in step"
