"""A hash chain over the records of a run: whatever is changed in its files after it was played breaks the chain.

Every line of ``episodes.jsonl`` ends with ``chain``, the SHA-256 of the hash before it, of the episode's start and of
this line without ``chain``. The chain begins with the hash of what the run asks (all of ``run.json`` but ``sessions``
and ``seen``: the suite's hash, the agent and its settings, the temperature, the prompts), and includes each session's
entry before the first record of that session. When a session ends, its entry in ``run.json`` keeps how many lines
there are and the last hash.

The starts in ``started.jsonl`` are a chain of their own, and a record's hash includes that of its start. So a start
that left no record cannot be removed once a later one has its record; in a complete run the episode itself has, as it
was started again.

What a chain cannot show: whoever owns the folder can change the records and write a new chain over them. Cutting the
run back to the end of an earlier session leaves a valid chain, too. A hash that was noted elsewhere when the run ended
tells such a chain from the first one (``bench verify --head``). Nor does it show that the replies are a model's, or
that tokens and times are true; only who plays the run again can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.core.storage import json_line

__all__ = ["HashChain", "Link"]

Link = tuple[str | None, str]
"""The hash that a line carries, None without one, and the one that is right."""

_LINK = re.compile(rb'(.*), "chain": "([0-9a-f]{64})"\}', re.DOTALL)


class HashChain:
    """The chain from its start to the line that was added or followed last.

    Args:
        info: what ``run.json`` says.
        starts: key and session of each start so far, in order.
    """

    def __init__(self, info: Mapping[str, Any], starts: Iterable[tuple[str, int]] = ()) -> None:
        #: The hash of each start that has no record so far.
        self.open: dict[tuple[str, int], str] = {}
        self._begun = ""
        for start in starts:
            self.start(*start)
        self.head = _hash("", {name: value for name, value in info.items() if name not in ("sessions", "seen")})
        self.lines, self._entered, self._sessions = 0, 0, list(info["sessions"])

    def start(self, key: str, session: int) -> None:
        """Note the start of an episode."""
        self._begun = self.open[key, session] = _hash(self._begun, {"key": key, "session": session})

    def add(self, record: EpisodeRecord) -> bytes:
        """The line of a record, with its hash and the newline."""
        line = json_line(record.to_dict())[:-1]
        self._extend(line, record)
        return line[:-1] + f', "chain": "{self.head}"}}\n'.encode()

    def follow(self, line: bytes, record: EpisodeRecord) -> Link:
        """Go on to the next line of a file."""
        link = _LINK.fullmatch(line.strip())
        self._extend(line.strip() if link is None else link[1] + b"}", record)
        claimed, right = None if link is None else link[2].decode(), self.head
        self.head = claimed or right  # so that a changed line is one difference, not one of all lines after it
        return claimed, right

    def _extend(self, line: bytes, record: EpisodeRecord) -> None:
        session = -1 if record.session is None else record.session
        while self._entered <= session and self._entered < len(self._sessions):
            entry = {name: value for name, value in self._sessions[self._entered].items() if name != "ended"}
            self.head, self._entered = _hash(self.head, entry), self._entered + 1
        self.head = _hash(self.head + self.open.pop((record.key, session), ""), line)
        self.lines += 1


def _hash(before: str, what: bytes | dict[str, Any]) -> str:
    content = what if isinstance(what, bytes) else json.dumps(what, sort_keys=True).encode()
    return sha256(before.encode() + b"\n" + content).hexdigest()
