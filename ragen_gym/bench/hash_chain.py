"""A hash chain over the records of a run: whatever is changed in its files after it was played breaks the chain.

Every line of ``episodes.jsonl`` ends with ``chain``, the SHA-256 of the hash before it and of this line without
``chain``. The chain begins with the hash of what the run asks (all of ``run.json`` but its sessions: the suite's hash,
the agent and its settings, the temperature, the prompts), and includes each session's entry before the first record of
that session. When a session ends, its entry in ``run.json`` keeps how many lines there are and the last hash.

What a chain cannot show: whoever owns the folder can change the records and write a new chain over them, or remove it.
Cutting the run back to the end of an earlier session leaves a valid chain, too. A hash that was noted elsewhere when
the run ended tells such a chain from the first one (``bench verify --head``). Nor does it show that the replies are a
model's, or that tokens and times are true; only who plays the run again can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.core.storage import json_line

__all__ = ["HashChain"]

_LINK = re.compile(rb'(.*), "chain": "([0-9a-f]{64})"\}', re.DOTALL)


class HashChain:
    """The chain from its start to the line that was added or followed last.

    Args:
        info: what ``run.json`` says.
    """

    def __init__(self, info: Mapping[str, Any]) -> None:
        self.head = _hash("", {name: value for name, value in info.items() if name != "sessions"})
        self.lines, self._entered, self._sessions = 0, 0, list(info["sessions"])

    def add(self, record: EpisodeRecord) -> bytes:
        """The line of a record, with its hash and the newline."""
        line = json_line(record.to_dict())[:-1]
        self._extend(line, record)
        return line[:-1] + f', "chain": "{self.head}"}}\n'.encode()

    def follow(self, line: bytes, record: EpisodeRecord) -> tuple[str | None, str]:
        """Go on to the next line of a file: the hash that it carries, None without one, and the one that is right."""
        link = _LINK.fullmatch(line.strip())
        self._extend(line.strip() if link is None else link[1] + b"}", record)
        claimed, right = None if link is None else link[2].decode(), self.head
        self.head = claimed or right  # so that a changed line is one difference, not one of all lines after it
        return claimed, right

    def _extend(self, line: bytes, record: EpisodeRecord) -> None:
        session = record.extra.get("session")
        while type(session) is int and self._entered <= session and self._entered < len(self._sessions):
            entry = {name: value for name, value in self._sessions[self._entered].items() if name != "ended"}
            self.head, self._entered = _hash(self.head, entry), self._entered + 1
        self.head, self.lines = _hash(self.head, line), self.lines + 1


def _hash(before: str, what: bytes | dict[str, Any]) -> str:
    content = what if isinstance(what, bytes) else json.dumps(what, sort_keys=True).encode()
    return sha256(before.encode() + b"\n" + content).hexdigest()
