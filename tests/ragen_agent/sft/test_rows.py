"""Labels are exactly the assistant's tokens, and the tokens exactly those of a rollout, for every kind of template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_agent.chat import ChatFormat
from ragen_agent.config import Demonstrations
from ragen_agent.rollout import group
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.sft.rows import IGNORED, read_conversations, row_of, rows_of
from ragen_agent.token_mdp import TokenMDP, Trajectory
from ragen_gym import make_turn

HOW = Demonstrations(moves=[0.5, 0.5], mistakes=0.5, thought="none")


def shown(chat: ChatFormat) -> list[Trajectory]:
    env = make_turn("FrozenLake", split="train", max_turns=3)
    process = TokenMDP(env, chat, max_tokens_per_turn=400, max_tokens_per_episode=8192)
    return demonstrate(process, group(range(6), 1), HOW, 0)


def test_a_row_is_the_rollout_of_its_conversation(chat: ChatFormat) -> None:
    for episode in shown(chat):
        ids, labels = row_of(chat, episode.messages[:-1])
        length = episode.turn_ends[-1] + 1
        assert ids == episode.ids[:length].tolist()
        expected = np.where(episode.sampled[:length], episode.ids[:length], IGNORED)
        assert labels == expected.tolist()


def test_the_labels_are_the_replies_and_their_ends_and_nothing_else(chat: ChatFormat) -> None:
    messages = shown(chat)[0].messages[:-1]
    ids, labels = row_of(chat, messages)
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    assert labels.count(chat.end_id) == len(replies)
    written: list[list[int]] = [[]]
    for label in labels:
        if label != IGNORED:
            written[-1].append(label)
        elif written[-1]:
            written.append([])
    assert [chat.decode_reply(reply) for reply in written if reply] == replies
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))


def test_rows_that_are_left_out_are_counted(chat: ChatFormat) -> None:
    lines: list[dict[str, Any]] = [{"messages": list(t.messages[:-1]), "success": t.success} for t in shown(chat)]
    wins = sum(line["success"] for line in lines)
    lengths = sorted(len(row_of(chat, line["messages"])[0]) for line in lines)
    rows, left_out = rows_of(chat, lines, lengths[2])
    assert len(rows) + left_out["too_long"] == 6
    assert max(len(row["input_ids"]) for row in rows) == lengths[2]
    won, left_out = rows_of(chat, [*lines, {**lines[0], "success": True}], 8192, successes_only=True)
    assert (len(won), left_out["failures"]) == (wins + 1, 6 - wins)
    with pytest.raises(ValueError, match="no conversation is left: 6 are longer than 3 tokens"):
        rows_of(chat, lines, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "is empty"),
        ({"text": "hello"}, "line 1: messages must be"),
        ({"messages": [{"role": "user", "content": "x"}]}, "end with the assistant"),
        ({"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]}, "line 1"),
        ({"messages": [{"role": "system", "content": "x"}]}, "line 1"),
    ],
)
def test_a_file_that_holds_no_conversations_is_refused(line: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with pytest.raises(ValueError, match="there is no such file"):
        read_conversations(path)
    path.write_text("" if line is None else json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=message):
        read_conversations(path)
