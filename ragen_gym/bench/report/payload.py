"""Episodes as they lie in a page: compressed in blocks that are opened one at a time, and no more than fit."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Archive", "Entry", "pack", "packed"]

#: Characters of JSON in a block: opening one takes a few milliseconds.
_BLOCK = 400_000


@dataclass(frozen=True)
class Entry:
    """An episode that may be packed.

    Attributes:
        heading: its line in the list.
        details: makes all else, when it is its turn.
    """

    heading: dict[str, Any]
    details: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Archive:
    """What was packed.

    Attributes:
        headings: of the episodes that fitted, each with the ``block`` it lies in and its place ``at`` there.
        blocks: lists of details as `packed` text.
    """

    headings: list[dict[str, Any]]
    blocks: list[str]


def pack(groups: Iterable[list[Entry]], megabytes: float) -> Archive:
    """Pack groups of episodes, each whole or not at all, in order, until the next block would exceed ``megabytes``."""
    headings: list[dict[str, Any]] = []
    blocks: list[str] = []
    room = megabytes * 1e6
    waiting: list[tuple[dict[str, Any], str]] = []

    def close() -> bool:
        """Pack what is waiting; whether it fits."""
        nonlocal room
        text = _compressed(f"[{','.join(details for _, details in waiting)}]")
        if len(text) > room and blocks:
            return False
        room -= len(text)
        headings.extend({**heading, "block": len(blocks), "at": at} for at, (heading, _) in enumerate(waiting))
        blocks.append(text)
        waiting.clear()
        return True

    for group in groups:
        waiting += [(entry.heading, _json(entry.details())) for entry in group]
        if sum(len(details) for _, details in waiting) > _BLOCK and not close():
            return Archive(headings, blocks)
    if waiting:
        close()
    return Archive(headings, blocks)


def packed(value: Any) -> str:
    """JSON, compressed by gzip, in base64: text that cannot end a script or say anything in HTML."""
    return _compressed(_json(value))


def _compressed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _json(value: Any) -> str:
    # Half a surrogate pair, which a model may write, is no UTF-8: only then everything else is escaped, too.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _is_utf8(text) else json.dumps(value, separators=(",", ":"))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
