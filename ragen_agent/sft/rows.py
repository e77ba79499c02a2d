"""Conversations as rows of tokens with labels: exactly the ids that a rollout would have made of them.

The ids come from `ChatFormat`, piece by piece as in `TokenMDP`: prompt, reply and its end, glue, reply and its end. A
label is an id that the assistant wrote, the end of its reply included, and `IGNORED` everywhere else. (trl's own
`assistant_only_loss` needs a template with generation marks, and renders the conversation as one text, which a
template that rewrites earlier replies makes into other tokens than those of a rollout.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_agent.chat import ChatFormat
from ragen_agent.sft.demonstrations import reply_ids
from ragen_gym.core.storage import read_json_lines

__all__ = ["IGNORED", "read_conversations", "row_of", "rows_of"]

IGNORED = -100
"""The label of a token that is not in the loss, as everywhere in torch and transformers."""

Messages = Sequence[Mapping[str, str]]


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of conversations.

    Raises:
        ValueError: no such file, nothing in it, or a line without a conversation of system (or none), user, assistant,
            user, assistant and so on, the last word the assistant's.
    """
    if not path.is_file():
        raise ValueError(f"--data {path}: there is no such file; make one with ragen-agent sft data --out {path}.")
    lines = read_json_lines(path)
    if not lines:
        raise ValueError(f"--data {path} is empty; make one with ragen-agent sft data.")
    for number, line in enumerate(lines, start=1):
        messages = line.get("messages") if isinstance(line, dict) else None
        if not isinstance(messages, list) or not _fits(messages):
            raise ValueError(
                f"--data {path}, line {number}: messages must be system (or none), user, assistant, user, assistant, "
                "..., each with a content, and end with the assistant."
            )
    return lines


def row_of(chat: ChatFormat, messages: Messages) -> tuple[list[int], list[int]]:
    """The ids of a conversation, and its labels: both as long as each other."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    ids = chat.prompt_ids(system, turns[0]["content"])
    labels = [IGNORED] * len(ids)
    for message in turns[1:]:
        written = message["role"] == "assistant"
        new = reply_ids(chat, message["content"]) if written else chat.glue_ids(message["content"])
        ids += new
        labels += new if written else [IGNORED] * len(new)
    assert len(ids) == len(labels)
    return ids, labels


def rows_of(
    chat: ChatFormat, lines: Sequence[Mapping[str, Any]], longest: int, *, successes_only: bool = False
) -> tuple[list[dict[str, list[int]]], dict[str, int]]:
    """All rows as `{"input_ids", "labels"}`, and what was left out: rows that are `too_long`, and `failures`.

    Raises:
        ValueError: nothing is left.
    """
    rows, left_out = [], {"too_long": 0, "failures": 0}
    for line in lines:
        if successes_only and not line.get("success", False):
            left_out["failures"] += 1
            continue
        ids, labels = row_of(chat, line["messages"])
        if len(ids) > longest:
            left_out["too_long"] += 1
            continue
        rows.append({"input_ids": ids, "labels": labels})
    if not rows:
        raise ValueError(
            f"no conversation is left: {left_out['too_long']} are longer than {longest} tokens, {left_out['failures']} "
            "did not succeed; raise --max-tokens, or leave out --successes-only."
        )
    return rows, left_out


def _fits(messages: Sequence[Any]) -> bool:
    texts = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
    roles = [m.get("role") for m in messages] if texts else []
    roles = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["user", "assistant"] * (len(roles) // 2)
    return bool(roles) and roles == expected
