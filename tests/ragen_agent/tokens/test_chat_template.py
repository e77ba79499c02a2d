"""Templates as plain functions: which can serve a row that only grows, and what is said of those which cannot."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ragen_agent.tokens.chat_template import Render, read_template

HEAD = "{% for m in messages %}<{{ m.role }}>"
TAIL = "</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def jinja(template: str, **variables: Any) -> Render:
    def fail(message: str) -> None:
        raise RuntimeError(message)

    compiled = ImmutableSandboxedEnvironment().from_string(template)
    compiled.globals["raise_exception"] = fail
    return lambda messages, generate: compiled.render(messages=messages, add_generation_prompt=generate, **variables)


def test_texts_around_the_messages() -> None:
    text = read_template(jinja("^" + HEAD + "{{ m.content }}" + TAIL))
    assert (text.before_system, text.before_user, text.without_system) == ("^<system>", "</><user>", "^<user>")
    assert (text.opening, text.past_opening) == ("</><assistant>", "</><assistant>")
    assert (text.after_reply, text.closing) == ("</><user>", "</>")
    assert not any((text.fold_system, text.trims_messages, text.trims_replies))
    assert text.keeps_thinking


def test_first_message_stripped_only_at_its_end_counts_as_stripped() -> None:
    """Llama 2 puts the system message into the first user message and strips the two together."""
    text = read_template(
        jinja(
            "{% if messages[0].role == 'system' %}{% set s = '<<' + messages[0].content + '>>' %}"
            "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
            "{% for m in rest %}{% if m.role == 'user' %}[{{ ((s if loop.first else '') + m.content) | trim }}]"
            "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
        )
    )
    assert (text.before_system, text.before_user) == ("[<<", ">>")
    assert text.trims_messages
    assert not text.trims_replies
    text = read_template(jinja(HEAD + "{{ m.content | trim }}" + TAIL))
    assert all((text.trims_messages, text.trims_replies, text.keeps_thinking))


@pytest.mark.parametrize(
    "system",
    [
        "{{ raise_exception('System role not supported') }}",  # Gemma 2
        "",  # dropped without a word
    ],
)
def test_system_message_without_a_place_is_folded(system: str) -> None:
    text = read_template(
        jinja(
            "{% for m in messages %}{% if m.role == 'system' %}" + system + "{% else %}<{{ m.role }}>{{ m.content }}"
            "</>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        )
    )
    assert text.fold_system
    assert (text.before_system, text.before_user, text.without_system) == ("", "", "<user>")


def test_system_message_that_moves_to_the_last_user_message_is_folded() -> None:
    """Mistral 7B v0.3 writes it into the last user message, so that every turn moves it."""
    moves = (
        "{% set s = messages[0].content + '~' if messages[0].role == 'system' else '' %}"
        "{% for m in messages %}{% if m.role == 'user' %}[{{ s if loop.last else '' }}{{ m.content }}]"
        "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}"
    )
    text = read_template(jinja(moves))
    assert (text.fold_system, text.without_system) == (True, "[")


def test_demanded_system_message() -> None:
    demand = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    assert read_template(jinja(demand + HEAD + "{{ m.content }}" + TAIL)).without_system is None


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content.split('</think>')[-1] }}",
        "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}",
        "{{ m.content | replace('<think>\n', '<think>') }}",
    ],
)
def test_thinking_that_is_dropped_or_rewritten_is_noticed(content: str) -> None:
    text = read_template(jinja(HEAD + content + TAIL))
    assert not text.keeps_thinking
    assert not text.trims_replies


def test_more_before_a_reply_than_before_an_earlier_one() -> None:
    text = read_template(jinja(HEAD + "{{ m.content }}" + TAIL.replace("<assistant>", "<assistant><think>\n")))
    assert text.opening == text.past_opening + "<think>\n"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (HEAD + "{{ m.content }}" + TAIL, ""),
        (
            HEAD + "{{ m.content | e if m.role == 'assistant' else m.content }}" + TAIL,
            "changes the text of the assistant's past replies",
        ),
        (HEAD + "{{ m.content }}" + TAIL.replace("<assistant>", "Your turn"), "before a past reply but '</>Your turn'"),
    ],
)
def test_replies_of_the_past_that_are_rewritten_are_noticed(template: str, says: str) -> None:
    text = read_template(jinja(template))
    assert bool(text.rewrites) == bool(says)
    assert says in text.rewrites
    assert text.deviations(appended=False) == ()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (HEAD + "{{ m.content }}</>{% endfor %}", "add_generation_prompt"),
        (HEAD + "{{ m.content | e }}" + TAIL, "changes the text of system or user messages"),
        (HEAD + "{{ m.content | replace('\n', ' ') }}" + TAIL, "changes the text of system or user messages"),
        (HEAD.replace("messages", "messages | reverse") + "{{ m.content }}" + TAIL, "once and in order"),
        (HEAD + "{{ m.content }}{{ m.content }}" + TAIL, "once and in order"),
        (HEAD + "{{ m.content if loop.last else '...' }}" + TAIL, "once and in order"),
        (HEAD + "{{ loop.index }}{{ m.content }}" + TAIL, "at every turn"),
        ("{{ messages | length }}" + HEAD + "{{ m.content }}" + TAIL, "rewrites a conversation"),
        ("{{ raise_exception('never') }}", "fails on the messages .*never"),
    ],
)
def test_refused(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_template(jinja(template))
