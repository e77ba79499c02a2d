"""The reply grammar: it never raises, and never guesses which answer is meant."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.envs.reply import Problem, open_thinking, parse_reply, whole_reply
from ragen_gym.testing import replies

NAMES = ("Left", "Down", "Right", "Up")

# reply, thinks, (thinking, names, actions, problem)
WORKED: list[tuple[str, bool, tuple[Any, ...]]] = [
    ("<think>Go.</think><answer>Up</answer>", True, ("Go.", ("Up",), (3,), None)),
    (
        " <think>\nIt is\nright.\n</think>\n<answer> Up || Left </answer>\n",
        True,
        ("It is\nright.", ("Up", "Left"), (3, 0), None),
    ),
    ("<think></think><answer>uP||LEFT||dOWN</answer>", True, ("", ("uP", "LEFT", "dOWN"), (3, 0, 1), None)),
    ("<answer>Up || Up</answer>", False, (None, ("Up", "Up"), (3, 3), None)),
    ("<think>a | b || c</think><answer>Up</answer>", True, ("a | b || c", ("Up",), (3,), None)),
    ("<think>x</think><answer>Up || Jump</answer>", True, ("x", ("Up", "Jump"), (3,), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up,Left</answer>", True, ("x", ("Up,Left",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up ||</answer>", True, ("x", ("Up", ""), (3,), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up|Left</answer>", True, ("x", ("Up|Left",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>3</answer>", True, ("x", ("3",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer> </answer>", True, ("x", (), (), Problem.NO_ACTION)),
    ("<think>x</think><answer>||</answer>", True, ("x", (), (), Problem.NO_ACTION)),
    ("<answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer>", False, (None, (), (), Problem.NO_ANSWER)),
    ("", True, (None, (), (), Problem.NO_ANSWER)),
    ("Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think>Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer> Done.", True, (None, (), (), Problem.NO_ANSWER)),
    ("Well. <think>x</think><answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think> so <answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<answer>Up</answer><think>x</think>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<THINK>x</THINK><ANSWER>Up</ANSWER>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think><answer>Up</answer></think>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer><answer>Down</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<think><answer>Up</answer></think><answer>Down</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<think>x</think><think>y</think><answer>Up</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<answer><answer>Up</answer></answer>", False, (None, (), (), Problem.SEVERAL_ANSWERS)),
]


@pytest.mark.parametrize(("text", "think", "expected"), WORKED)
def test_replies_by_hand(text: str, think: bool, expected: tuple[Any, ...]) -> None:
    reply = parse_reply(text, NAMES, think=think)
    assert (reply.thinking, reply.names, reply.actions, reply.problem) == expected
    assert reply.text == text


@given(replies(NAMES) | replies(NAMES, think=False) | st.text(), st.booleans())
def test_a_reply_never_raises_and_never_chooses(text: str, think: bool) -> None:
    """Whatever comes: moves are played only where a single answer, in the form asked for, names them in this order."""
    reply = parse_reply(text, NAMES, think=think)
    assert reply.text == text
    tags = re.findall(r"</?(?:think|answer)>", text)
    form = ["<think>", "</think>", "<answer>", "</answer>"] if think else ["<answer>", "</answer>"]
    if not reply.actions:
        assert reply.problem is not None
        return
    assert tags == form
    before, _, rest = text.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    assert after.strip() == ""
    assert re.fullmatch(r"\s*<think>.*</think>\s*" if think else r"\s*", before, re.DOTALL)
    named = [name.strip() for name in answer.split("||")]
    assert list(reply.names) == named
    lower = [name.lower() for name in NAMES]
    assert list(reply.actions) == [lower.index(name.lower()) for name in named if name.lower() in lower]
    assert (reply.problem is None) == all(name.lower() in lower for name in named)


def test_a_reply_of_nothing_but_tags_takes_no_time() -> None:
    for text in ("<think></think><answer>" * 20_000, "</think><answer></answer> " * 20_000, " " * 200_000 + "<answer>"):
        start = time.process_time()
        assert parse_reply(text, NAMES).problem is not None
        assert time.process_time() - start < 2


def test_a_thought_of_nothing_but_openings_takes_no_time() -> None:
    for tags in ("<observation>" * 20_000, "</observation><observation>" * 10_000):
        start = time.process_time()
        reply = parse_reply(f"<think>{tags}</think><answer>Up</answer>", NAMES, parts=("observation",))
        assert reply.problem is Problem.NO_STATE
        assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "said", "whole"),
    [
        ("go</think><answer>Up</answer>", {}, "<think>go</think><answer>Up</answer>"),
        ("\n</think>\n\n<answer>Up</answer>", {}, "<think>\n</think>\n\n<answer>Up</answer>"),
        ("go</think><answer>Up</answer>", {"reasoning": "I "}, "<think>I go</think><answer>Up</answer>"),
        ("<answer>Up</answer>", {"reasoning": "I go"}, "<think>I go</think><answer>Up</answer>"),
        ("r", {"reasoning": "a<b></think>c"}, "<think>a<b>/thinkc</think>r"),
        ("<think>go</think>r", {"reasoning": "I go"}, "<think>go</think>r"),
        ("<answer>Up</answer>", {"reasoning": "I go", "think": False}, "<answer>Up</answer>"),
        ("go</think>r", {"think": False}, "go</think>r"),
        ("a</think>b</think>r", {}, "a</think>b</think>r"),
        ("<answer>Up</answer>", {}, "<answer>Up</answer>"),
        ("go</think>r", {"begun": "<think>\n"}, "<think>\ngo</think>r"),
        ("go</think>r", {"begun": ""}, "go</think>r"),
        ("\n<think>go</think>r", {"begun": "<think>\n"}, "\n<think>go</think>r"),
        ("go</think>r", {"begun": "<think>", "think": False}, "<think>go</think>r"),
    ],
)
def test_a_reply_gets_the_thinking_that_its_prompt_began(text: str, said: dict[str, Any], whole: str) -> None:
    assert whole_reply(text, **said) == whole


@given(replies(["Up", "Down"]))
def test_a_whole_reply_stays_as_it_is(text: str) -> None:
    if "<think>" in text or "</think>" not in text:
        assert whole_reply(text) == text
    once = whole_reply(text)
    assert whole_reply(once) == once


@pytest.mark.parametrize(
    ("prompt", "message", "begun"),
    [
        ("Reply with <think>\nassistant\n<think>\n", "Reply with <think>", "<think>\n"),
        ("Reply with <think>\nassistant\n", "Reply with <think>", ""),
        ("Reply with <think>\nassistant\n", "  Reply with <think> \n", ""),
        ("Hi\nassistant\n<think>\n\n</think>\n\n", "Hi", ""),
        ("Hi\nassistant\n<think>", "", "<think>"),
        ("Hi\nassistant\n<think>", "not there", "<think>"),
    ],
)
def test_the_thinking_that_a_prompt_opens_after_its_last_message(prompt: str, message: str, begun: str) -> None:
    assert open_thinking(prompt, message) == begun
