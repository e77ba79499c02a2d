"""The endpoint as OpenAI's own client meets it: what a field does, who gave up, and what is sampled together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ragen_agent.inference import Sampled
from ragen_agent.programs.conversation import Conversation
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.message_encoding import decode, encode
from tests.ragen_agent.programs.served import USER, Served


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


CHANGING = {
    "n": 3,
    "logprobs": True,
    "top_p": 0.5,
    "seed": 7,
    "frequency_penalty": 0.5,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "low",
    "tools": [{"type": "function", "function": {"name": "move"}}],
    "top_k": 20,
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("field", CHANGING)
def test_a_field_that_would_change_the_reply_is_refused_by_name(served: Served, field: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{field} is not supported"):
        served.ask(extra_body={field: CHANGING[field]})
    assert served.replies() == 0


def test_every_field_of_the_official_client_is_honoured_neutral_or_refused(served: Served) -> None:
    """A field that the client learns tomorrow is refused until somebody has looked at it."""
    nulls = "audio moderation reasoning_effort seed stream_options web_search_options"
    zeros = "frequency_penalty presence_penalty temperature top_logprobs min_p"
    anything = "metadata prompt_cache_key prompt_cache_retention safety_identifier store user"
    neutral: dict[str, Any] = {
        **dict.fromkeys(nulls.split(), None),
        **dict.fromkeys(zeros.split(), 0),
        **dict.fromkeys(anything.split(), "x"),
        **dict.fromkeys(["max_tokens", "max_completion_tokens"], 3),
        **dict.fromkeys(["logprobs", "stream"], False),
        **dict.fromkeys(["n", "top_p", "repetition_penalty"], 1),
        **{"function_call": "none", "tool_choice": "auto", "parallel_tool_calls": True, "top_k": -1, "logit_bias": {}},
        **{"modalities": ["text"], "response_format": {"type": "text"}, "prompt_cache_options": {}},
        **{"prediction": {"type": "content", "content": "Up"}, "service_tier": "auto", "verbosity": "medium"},
        **{"functions": [], "stop": [], "tools": []},
    }
    known = openai.types.chat.completion_create_params.CompletionCreateParamsBase.__annotations__
    assert set(known) - {"messages", "model"} <= set(neutral)
    answer = served.ask(extra_body=neutral)
    assert answer.usage.completion_tokens <= 3
    with pytest.raises(openai.BadRequestError, match="a_new_field is not supported"):
        served.ask(extra_body={"a_new_field": 1})


@pytest.mark.parametrize("field", ["name", "tool_calls", "reasoning_content"])
def test_a_field_of_a_message_that_is_not_shown_to_the_model_is_refused(served: Served, field: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"has {field}, which is not supported"):
        served.ask(messages=[{**USER, field: "x"}])
    sent_back = served.ask().choices[0].message.model_dump()  # with a null for all that it does not have
    assert served.ask(messages=[USER, sent_back, USER]).choices[0].message.role == "assistant"
    assert len(served.ended().contexts) == 0, "it continues the row"


@pytest.mark.parametrize("stop", ["", [3], {"a": 1}])
def test_a_stop_that_is_no_text_is_refused(served: Served, stop: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="it must be a text or a list of texts"):
        served.ask(extra_body={"stop": stop})


def test_a_reply_ends_before_its_stop_sequence_and_its_tokens_with_it(
    served: Served, agent: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after a stop sequence no other endpoint returns, and the program never saw it."""
    ids = [*agent.tokenizer.encode("<think>go left</think><answer>Up || Down</answer>"), agent.chat.end_id]
    monkeypatch.setattr(served.rollout, "sample", lambda *_: Sampled(ids, [-0.5 - n for n in range(len(ids))]))
    messages = [{"role": "system", "content": "Play."}, USER]
    answer = served.ask(messages=messages, stop=["|| Down", "<answer>"])
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("<think>go left</think>", "stop")
    assert answer.usage.completion_tokens == 6
    messages += [{"role": "assistant", "content": choice.message.content}, USER]
    served.ask(messages=messages)
    played = served.ended()
    first, second = played.split_contexts()
    assert first.ids[first.sampled].tolist() == ids[:6], "the stop sequence is the action that ended the reply"
    assert first.log_probs[first.sampled].tolist() == [-0.5 - n for n in range(6)]
    assert first.ids[-1] == ids[5]
    prompt = second.ids[~second.sampled].tolist()
    assert prompt == agent.chat.conversation_ids(messages), "without the stop sequence, as the program sends it"
    assert played.messages[2]["content"] == "<think>go left</think>"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_stop_sequence_cuts_text_and_tokens_where_it_is_first_complete(
    make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast], data: st.DataObject
) -> None:
    tokenizer = make_tokenizer("bpe", data.draw(st.sampled_from(["chatml", "qwen3", "llama3"])))
    chat = ChatFormat.from_tokenizer(tokenizer)
    text = data.draw(st.text(st.sampled_from("ab é🙂\nObservation: the lake"), min_size=1, max_size=40))
    stop = data.draw(st.lists(st.text(st.sampled_from("ab é🙂\nOs: l"), min_size=1, max_size=3), max_size=3))
    ids = encode(tokenizer, text) + ([chat.end_id] if data.draw(st.booleans()) else [])
    conversation = Conversation(chat, 100, 2000)
    reply = conversation.request([USER])
    conversation.add(reply, Sampled(ids, [-1.0] * len(ids)), stop)
    lengths = [n for n in range(1, len(ids) + 1) if any(each in decode(tokenizer, ids[:n]) for each in stop)]
    if not lengths:
        assert (reply.ids, reply.text) == (ids, text)
        return
    assert reply.ids == ids[: lengths[0]]
    assert reply.stopped
    assert text.startswith(reply.text)
    assert not any(each in reply.text for each in stop)
    assert any(text[len(reply.text) :].startswith(each) for each in stop)


def test_a_reply_that_the_client_timed_out_on_is_not_of_the_episode(served: Served) -> None:
    """OpenAI's client asks again after its timeout: both replies were trained on, and the first one could earn."""
    served.sampling.clear()
    threading.Timer(1.5, served.sampling.set).start()
    with served.client(timeout=0.6, max_retries=5) as client:
        answer = client.chat.completions.create(model="policy", messages=[USER])  # type: ignore[list-item]
    served.worker.turn({"reply": answer.choices[0].message.content})
    played = served.ended()
    assert len(played.turn_ends) == 1
    assert sum(served.engine.rows) == 1, "nobody waits for the others, so they are not even sampled"
    assert served.worker._episode is None
    assert played.turn_rewards[0] != 0


def test_an_episode_without_a_reply_that_was_read_says_so(served: Served) -> None:
    served.sampling.clear()
    with pytest.raises(openai.APITimeoutError):
        served.client(timeout=0.3).chat.completions.create(model="policy", messages=[USER])  # type: ignore[list-item]
    served.worker.turn({"reply": "nonsense"})
    assert served.ended().failure == "agent_error: the program's client gave up on each of its 1 requests"


def test_parallel_requests_of_one_program_are_sampled_together(served: Served) -> None:
    """A lock was held while a reply was sampled: eight requests were eight calls of the engine."""
    served.sampling.clear()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(served.ask, messages=[{**USER, "content": f"vote {n}"}]) for n in range(8)]
        try:
            until(lambda: served.rollout._waiting.qsize() >= 7)  # the loop may hold one
        finally:
            served.sampling.set()
        texts = [each.result().choices[0].message.content for each in asked]
    assert max(served.engine.rows) >= 7
    assert len(served.engine.rows) <= 2
    served.worker.turn({"reply": "nonsense"})
    played = served.ended()
    assert len(played.turn_ends) == len(played.contexts) == 8
    assert np.count_nonzero(played.turn_rewards) == 1
    assert played.turn_rewards[-1] < 0, "the last one asked for"
    said = {m["content"] for m in played.messages if m["role"] == "assistant"}
    assert said == set(texts)


def test_what_is_asked_wrongly_is_refused_and_told(served: Served) -> None:
    ask = served.post
    chat = "/v1/chat/completions"
    for body, said in (
        ({"messages": []}, "messages must be a list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "has the role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must hold text"),
        (b"{", "the body is not JSON"),
        (b"[]", "must be a JSON object"),
    ):
        status, answer = ask(chat, body)
        assert status == 400
        assert said in answer["error"]["message"]
    assert ask("/sessions/0/turn", {"reply": 3})[0] == 422
    assert ask("/nothing", {})[0] == 404
    half = {"role": "user", "content": "half a pair: \ud83d"}
    limits = {"max_tokens": 2, "max_completion_tokens": None}
    status, answer = ask(chat, {"messages": [half], "temperature": 0.0, **limits})
    assert status == 200
    assert answer["usage"]["completion_tokens"] <= 2
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert ask("/sessions/0", {}, "DELETE") == (204, None)
    assert ask("/sessions", {})[0] == 410
    assert served.rollout.played[0].truncated
    served.url = served.url[:-1] + "?"
    assert ask("/sessions", {})[0] == 404
