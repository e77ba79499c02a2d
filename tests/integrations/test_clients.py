"""Programs with the real clients of OpenAI and Anthropic: any API of the endpoint records the same tokens."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from ragen_agent.config import Program
from ragen_agent.inference import Sampled
from ragen_agent.programs.rollout import play_programs
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from tests.integrations.library import needs
from tests.ragen_agent.programs.served import USER, Served, serving, small

needs("clients", "anthropic", "openai")

#: Plays one episode after another; knows of the trainer only what its environment holds.
PLAYS = """
import json, os, urllib.error, urllib.request

def post(path, body):
    request = urllib.request.Request(os.environ["RAGEN_GYM_URL"] + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)

while True:
    try:
        session = post("/sessions", {"grain": "turn"})
    except urllib.error.HTTPError as error:
        raise SystemExit(0 if error.code == 410 else str(error))
    here, said = session["start"], []
    while not (here.get("terminated") or here.get("truncated")):
        said.append({"role": "user", "content": here["observation"]})
        here = post("/sessions/" + session["session"] + "/turn", {"reply": ask(session["instructions"], said)})
"""
#: How a program asks, and sends a reply back as its client holds it.
ASKS = {
    "chat": """
import openai
def ask(system, said):
    messages = [{"role": "system", "content": system}, *said]
    reply = openai.OpenAI().chat.completions.create(model="policy", messages=messages, max_tokens=9).choices[0].message
    said.append(reply)
    return reply.content
""",
    "chat, streamed": """
import openai
def ask(system, said):
    messages = [{"role": "system", "content": system}, *said]
    asked = dict(model="policy", messages=messages, max_tokens=9)
    with openai.OpenAI().chat.completions.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    said.append({"role": "assistant", "content": text})
    return text
""",
    "responses": """
import openai
def ask(system, said):
    asked = dict(model="policy", instructions=system, input=said, max_output_tokens=9, store=False)
    response = openai.OpenAI().responses.create(**asked)
    said += response.output
    return response.output_text
""",
    "responses, streamed": """
import openai
def ask(system, said):
    asked = dict(model="policy", instructions=system, input=said, max_output_tokens=9)
    with openai.OpenAI().responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    said.append({"role": "assistant", "content": text})
    return text
""",
    "messages": """
import anthropic
def ask(system, said):
    asked = dict(model="policy", system=system, messages=said, max_tokens=9)
    reply = anthropic.Anthropic().messages.create(**asked)
    said.append({"role": reply.role, "content": reply.content})
    return reply.content[0].text
""",
    "messages, streamed": """
import anthropic
def ask(system, said):
    system = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    asked = dict(model="policy", system=system, messages=said, max_tokens=9)
    with anthropic.Anthropic().messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        said.append({"role": "assistant", "content": stream.get_final_message().content})
    return text
""",
}


@pytest.fixture(scope="module")
def agent() -> Policy:
    return small()


@pytest.fixture
def served(agent: Policy) -> Iterator[Served]:
    with serving(agent) as found:
        yield found


@pytest.fixture
def claude(served: Served) -> Iterator[Any]:
    import anthropic

    with anthropic.Anthropic(base_url=served.url, api_key="none") as client:
        yield client


def played(agent: Policy, program: Path) -> list[Trajectory]:
    command = Program(shlex.join([sys.executable, str(program)]), workers=1)
    instances = group([3, 4], 2)
    return play_programs(agent.engine, agent.processes("train", 1), instances, command, temperature=1.0, seed=5)


def test_programs_with_any_client_play_equal_trajectories(agent: Policy, tmp_path: Path) -> None:
    found: dict[str, list[Trajectory]] = {}
    for name, ask in ASKS.items():
        program = tmp_path / f"{name}.py"
        program.write_text(ask + PLAYS)
        found[name] = played(agent, program)
    expected = found["chat"]
    assert all(t.failure is None and not t.contexts and len(t.turn_ends) > 1 for t in expected)
    assert len({tuple(t.ids.tolist()) for t in expected}) == 4
    for name, others in found.items():
        for one, other in zip(expected, others, strict=True):
            for field in fields(Trajectory):
                np.testing.assert_equal(getattr(other, field.name), getattr(one, field.name), f"{name}: {field.name}")


def test_the_events_of_a_message_are_those_of_the_api(claude: Any) -> None:
    asked: Any = {"model": "some-model", "messages": [USER], "max_tokens": 3}
    events = list(claude.messages.create(**asked, stream=True))
    assert [event.type for event in events] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    with claude.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    assert (message.model, message.role, message.stop_reason) == ("some-model", "assistant", "max_tokens")
    assert message.usage.output_tokens == 3
    assert message.usage.input_tokens == claude.messages.create(**asked).usage.input_tokens > 3


def test_the_events_of_a_response_are_those_of_the_api(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client() as client:
        asked: Any = {"model": "some-model", "input": "hello", "max_output_tokens": 3}
        events: list[Any] = list(client.responses.create(**asked, stream=True))
        kinds = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
        kinds += ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
        assert [event.type for event in events] == [f"response.{kind}" for kind in kinds]
        assert [event.sequence_number for event in events] == [*range(9)]
        cut = events[-1].response
        assert (cut.incomplete_details.reason, cut.usage.output_tokens) == ("max_output_tokens", 3)
        chat = served.worker.mdp.chat
        ids = [*chat.tokenizer.encode("Up"), chat.end_id]
        monkeypatch.setattr(served.rollout, "sample", lambda *_: Sampled(ids, [-1.0] * len(ids)))
        with client.responses.stream(model="some-model", input="hello") as stream:
            response: Any = stream.get_final_response()
        assert (response.model, response.status, response.output_text) == ("some-model", "completed", "Up")
        assert response.usage.total_tokens == response.usage.input_tokens + len(ids)
        for model in (cut, response):
            type(model).model_validate(model.model_dump(), strict=False)


def test_a_stop_sequence_ends_the_same_tokens_by_both_names(
    served: Served, claude: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = served.worker.mdp.chat
    ids = [*chat.tokenizer.encode("<think>go left</think><answer>Up || Down</answer>"), chat.end_id]
    monkeypatch.setattr(served.rollout, "sample", lambda *_: Sampled(ids, [-1.0] * len(ids)))
    stop = ["|| Down", "<answer>"]
    message = claude.messages.create(model="policy", messages=[USER], max_tokens=50, stop_sequences=stop)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "<answer>")
    completion = served.ask(stop=stop)
    assert message.content[0].text == completion.choices[0].message.content == "<think>go left</think>"
    first, second = served.worker._episode.conversation.replies  # type: ignore[union-attr]
    assert (first.ids, first.prompt) == (second.ids, second.prompt)
    whole = claude.messages.create(model="policy", messages=[USER], max_tokens=50)
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)


#: Values that change nothing, or are only for names, storage and speed; the others that clients know are refused.
NEUTRAL: dict[str, dict[str, Any]] = {
    "messages": {
        **{"container": None, "diagnostics": {"previous_message_id": None}, "thinking": {"type": "disabled"}},
        **{"tool_choice": {"type": "auto"}, "tools": [], "output_config": {}},
        **{"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "x"}, "service_tier": "auto"},
        **{"speed": "standard", "inference_geo": "eu", "user_profile_id": "x", "workspace_id": "x"},
        **{"stop_sequences": [], "system": "Play.", "stream": False, "temperature": 0.3, "top_p": 1, "top_k": 0},
    },
    "responses": {
        **dict.fromkeys(("access_programs", "background_options", "context_management", "conversation"), None),
        **dict.fromkeys(("image", "moderation", "previous_response_id", "prompt", "reasoning"), None),
        **{"background": False, "include": [], "instructions": "Play.", "max_tool_calls": 3, "metadata": {"a": "b"}},
        **{"parallel_tool_calls": True, "prompt_cache_key": "x", "prompt_cache_options": {}, "truncation": "disabled"},
        **{"prompt_cache_retention": "24h", "safety_identifier": "x", "service_tier": "auto", "store": True},
        **{"stream": False, "stream_options": {}, "temperature": 0.3, "text": {"format": {"type": "text"}}},
        **{"tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1, "user": "x"},
    },
}


@pytest.mark.parametrize("api", NEUTRAL)
def test_every_field_of_the_client_is_honoured_neutral_or_refused(served: Served, api: str) -> None:
    """A field that the client learns tomorrow is refused until somebody has looked at it."""
    import anthropic

    if api == "messages":
        known = anthropic.types.message_create_params.MessageCreateParamsBase.__annotations__
        body: dict[str, Any] = {"messages": [USER], "max_tokens": 3}
    else:
        known = openai.types.responses.response_create_params.ResponseCreateParamsBase.__annotations__
        body = {"input": [USER], "max_output_tokens": 3}
    assert set(known) - set(body) - {"model"} <= set(NEUTRAL[api])
    status, answer = served.post(f"/v1/{api}", {**body, **NEUTRAL[api]})
    assert (status, answer.get("usage", {}).get("output_tokens")) == (200, 3), answer
    status, answer = served.post(f"/v1/{api}", {**body, "a_new_field": 1})
    assert (status, answer["error"]["message"]) == (400, "a_new_field is not supported here (got 1): leave it out.")
    taken = {name for name, value in NEUTRAL[api].items() if value is not None}
    for name in set(known) - taken - set(body) - {"model"}:
        status, answer = served.post(f"/v1/{api}", {**body, name: {"type": "some"}})
        assert (status, name in answer["error"]["message"]) == (400, True), name


def test_errors_are_those_of_the_client(served: Served, claude: Any) -> None:
    import anthropic

    asked: Any = {"model": "policy", "messages": [USER], "max_tokens": 3}
    with pytest.raises(anthropic.BadRequestError, match="tools is not supported") as refused:
        claude.messages.create(**asked, tools=[{"name": "move", "input_schema": {"type": "object"}}])
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="policy", messages=[USER])
    unstored = pytest.raises(openai.BadRequestError, match="previous_response_id is not supported here")
    with served.client() as client, unstored as refused:
        client.responses.create(model="policy", input="hello", previous_response_id="resp_1")
    assert refused.value.code == "unsupported"
    served.worker.end()
    with pytest.raises(anthropic.ConflictError, match="POST to RAGEN_GYM_URL/sessions first") as refused:
        claude.messages.create(**asked)
    assert refused.value.type == "conflict_error"
    with served.client(max_retries=2) as client, pytest.raises(openai.ConflictError):
        client.responses.create(model="policy", input="hello")


def test_a_reply_that_the_client_timed_out_on_is_not_of_the_episode(served: Served, claude: Any) -> None:
    import anthropic

    served.sampling.clear()
    impatient = claude.with_options(timeout=0.4, max_retries=0)
    with pytest.raises(anthropic.APITimeoutError):
        impatient.messages.create(model="policy", messages=[USER], max_tokens=3)
    served.sampling.set()
    served.worker.turn({"reply": "nonsense"})
    assert served.ended().failure == "agent_error: the program's client gave up on each of its 1 requests"
