"""Diagnostics: worked examples, and slow references written with plain loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from ragen_agent import ChatFormat, TokenMDP
from ragen_agent.run.alarm import FOLLOWS, signs_at
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.metrics import piece_decoder, reasoning_spans, reply_figures, reply_parts, turn_spans
from ragen_gym import make_turn

# Ids are characters, so that what a span holds can be read.
PIECES = chr


def spoken(*replies: str, infos: tuple[TurnInfo, ...] = (), failure: str | None = None) -> Trajectory:
    """An episode of these replies, character by character, with a two-character prompt before each."""
    ids, sampled, ends = [], [], []
    for reply in replies:
        ids += [ord(c) for c in "P:" + reply]
        sampled += [False] * 2 + [True] * len(reply)
        ends.append(len(ids) - 1)
    return Trajectory(
        np.array(ids, dtype=np.int64),
        np.array(sampled),
        np.zeros(len(ids), dtype=np.float32),
        tuple(ends),
        (0.0,) * len(ends),
        terminated=True,
        failure=failure,
        level_id="x",
        seed=0,
        turn_infos=infos,
    )


def read(trajectory: Trajectory, spans: list[tuple[int, int]]) -> list[str]:
    return ["".join(map(chr, trajectory.ids[first:end])) for first, end in spans]


# --- reasoning ----------------------------------------------------------------------------------------------------


def test_reasoning_and_parts_by_hand() -> None:
    replies = (
        "<think>up?</think><answer>Up</answer>",
        "<answer>Up</answer>",
        "opened before</think><answer>",
        "<think></think>x",
        "<think>never closed",
    )
    trajectory = spoken(*replies)
    assert read(trajectory, turn_spans(trajectory)) == list(replies)
    assert read(trajectory, reasoning_spans(trajectory, PIECES)) == ["up?", "", "opened before", "", ""]
    assert read(trajectory, reply_parts(trajectory, PIECES, "reasoning")) == [
        "<think>up?</think>",
        "",
        "opened before</think>",
        "<think></think>",
        "",
    ]
    assert read(trajectory, reply_parts(trajectory, PIECES, "answer")) == [
        "<answer>Up</answer>",
        "<answer>Up</answer>",
        "<answer>",
        "x",
        "<think>never closed",
    ]
    with pytest.raises(ValueError, match="part is 'thought'; it must be one of reasoning, answer"):
        reply_parts(trajectory, PIECES, "thought")


def test_a_token_on_the_seam_counts_with_the_text() -> None:
    """The pieces '<thi', 'nk>u', 'p?<', '/think>U', 'p': the thought 'up?' lies in the second and third."""
    pieces = dict(enumerate(["<thi", "nk>u", "p?<", "/think>U", "p"]))
    ids = np.array([0, 1, 2, 3, 4], dtype=np.int64)
    trajectory = Trajectory(
        ids, np.ones(5, dtype=np.bool_), np.zeros(5, dtype=np.float32), (4,), (0.0,), True, False, False, None, "x", 0
    )
    assert reasoning_spans(trajectory, pieces.__getitem__) == [(1, 3)]
    assert reply_parts(trajectory, pieces.__getitem__, "reasoning") == [(0, 4)]
    assert reply_parts(trajectory, pieces.__getitem__, "answer") == [(4, 5)]


def test_spans_of_real_tokenizers(make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast]) -> None:
    """Byte-level merges or whole words: what the spans decode to is the thought that was written."""
    for kind in ("bpe", "words"):
        tokenizer = make_tokenizer(kind, "chatml")
        chat = ChatFormat.from_tokenizer(tokenizer)
        process = TokenMDP(make_turn("FrozenLake", max_turns=2, success_rate=1.0), chat, max_tokens_per_turn=100)
        process.reset(seed=1)
        for thought in ("The goal is above.", "holes are deep"):
            reply = f"<think>{thought}</think><answer>Up</answer>"
            for token in [*tokenizer.encode(reply, add_special_tokens=False), chat.end_id]:
                if not process.done:
                    process.append(token, 0.0)
        trajectory = process.trajectory()
        spans = reasoning_spans(trajectory, piece_decoder(tokenizer))
        said = [tokenizer.decode(trajectory.ids[first:end].tolist()) for first, end in spans]
        assert said == ["The goal is above.", "holes are deep"][: len(said)]
        assert said
        assert [turn.problem for turn in trajectory.turn_infos] == [""] * len(said)


# --- replies ------------------------------------------------------------------------------------------------------


def test_reply_figures_by_hand() -> None:
    """Four turns of episodes that count: 'ab' twice, 'c' and a thought of 2 in 17 characters; two are well formed."""
    good, idle, bad = TurnInfo("", 1, 1, True), TurnInfo("", 1, 1, False), TurnInfo("no_answer", 0, 0, False)
    thinking = "<think>hm</think>"
    played = [
        spoken("ab", "c", infos=(good, bad)),
        spoken("ab", infos=(idle,)),
        spoken(thinking, infos=(bad,)),
        spoken("ab", "ab", failure="environment_error: x"),
    ]
    figures = reply_figures(played, PIECES)
    assert figures == {
        "reply_tokens": (2 + 1 + 2 + 17) / 4,
        "repeated_rate": 2 / 4,
        "invalid_rate": 2 / 4,
        "effective_rate": 1 / 4,
        "reasoning_tokens": 2 / 4,
        "valid_thinking_rate": 1 / 4,
    }
    assert reply_figures(played[3:]) == {}, "nothing is told of failed episodes"
    assert set(reply_figures([spoken("ab")])) == {"reply_tokens", "repeated_rate"}


def test_turn_infos_of_a_real_episode(make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast]) -> None:
    """Without slip, on a level that starts with a wall above: Up does nothing, the oracle's way does."""
    tokenizer = make_tokenizer("bpe", "chatml")
    process = TokenMDP(
        make_turn("FrozenLake", success_rate=1.0, think=False), ChatFormat.from_tokenizer(tokenizer),
        max_tokens_per_turn=200,
    )  # fmt: skip
    process.reset(options={"level": "__P_\n____\nO___\n___G"})
    for reply in ("<answer>Up</answer>", "<answer>Sideways || Down</answer>", "what?"):
        for token in [*tokenizer.encode(reply, add_special_tokens=False), process.chat.end_id]:
            process.append(token, 0.0)
    process.fail("environment_error: enough")
    infos = process.trajectory().turn_infos
    assert infos == (
        TurnInfo("", 1, 1, False),
        TurnInfo("unknown_action", 2, 1, True),
        TurnInfo("no_answer", 0, 0, False),
    )
    assert Trajectory.from_dict(process.trajectory().to_dict()).turn_infos == infos


# --- the alarm ----------------------------------------------------------------------------------------------------


def course(**figures: list[float]) -> list[dict[str, float]]:
    columns = [dict(zip(figures, row, strict=True)) for row in zip(*figures.values(), strict=True)]
    return [{"iteration": i, **row} for i, row in enumerate(columns)]


def names(history: list[dict[str, float]]) -> list[str]:
    return [sign.name for sign in signs_at(history)]


def test_a_steady_run_raises_no_alarm() -> None:
    steady = course(return_std=[0.3] * 40, entropy=[0.8] * 40, grad_norm=[2.0] * 40, invalid_rate=[0.1] * 40)
    assert all(signs_at(steady[:end]) == [] for end in range(41))


def test_each_sign_by_hand() -> None:
    """Up to ten iterations say what the start was; the mean of the last three is held against it."""
    start = [1.0] * 10
    assert names(course(return_std=[*start, 0.3, 0.3, 0.3])) == ["return_std_fall"]
    assert names(course(return_std=[*start, 0.3, 0.3])) == []
    assert names(course(return_std=[1.0, 0.3, 0.3, 0.3])) == ["return_std_fall"], "a run may die at once"
    assert names(course(return_std=[0.3, 0.3, 0.3])) == []
    assert names(course(return_std=[*start, 1.0, 1.0, 0.3])) == [], "one low iteration is no fall"
    assert names(course(return_std=[0.5, 0.0, 0.0, 0.0])) == ["return_std_fall", "return_std_end"]
    assert names(course(return_std=[0.0] * 20)) == [], "it never had any"
    assert names(course(entropy=[*start, 0.3, 0.3, 0.3])) == ["entropy_fall"]
    assert names(course(entropy=[*start, 2.1, 2.1, 2.1])) == ["entropy_jump"]
    assert names(course(grad_norm=[*start, 5.1])) == ["gradient_spike"]
    assert names(course(grad_norm=[*start[:-1], 5.1])) == [], "too early to tell"
    assert names(course(invalid_rate=[*[0.1] * 10, 0.6, 0.6, 0.6])) == ["invalid_rise"]
    assert names(course(invalid_rate=[0.6] * 13)) == [], "malformed from the start is no rise"


def test_a_sign_says_what_it_saw_and_what_follows() -> None:
    (sign,) = signs_at(course(entropy=[*[1.0] * 10, 3.0, 3.0, 3.0]))
    assert (sign.iteration, sign.value, sign.reference) == (12, 3.0, 1.0)
    assert str(sign) == (
        "Echo Trap alarm after iteration 13: entropy jump (3 against 1). What usually follows: "
        f"{FOLLOWS['entropy_jump']}."
    )


def test_a_skipped_update_shows_nothing_new() -> None:
    history = course(return_std=[1.0] * 13, grad_norm=[*[1.0] * 12, 9.0])
    assert names(history) == ["gradient_spike"]
    assert names([*history, {"iteration": 13, "return_std": 1.0}]) == []
