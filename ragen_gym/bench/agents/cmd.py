"""``cmd:PROGRAM``: an agent in any language, asked by lines of JSON on its standard input.

A question is one line, and so is its answer, in any order; the answer repeats the question's ``id``::

    {"id": 7, "kind": "reply", "messages": [{"role": "system", "content": "…"}, …], "task": {…}}
    {"id": 7, "reply": "<think>…</think><answer>Up</answer>"}

Where a split shows pictures, a content is a list of parts, ``{"type": "text", "text": "…"}`` and ``{"type": "image",
"png": "…"}``, a PNG file in base64.

With ``kind=step`` the program is asked for single moves, and names an action or gives its number from 0::

    {"id": 8, "kind": "step", "observation": "####…", "actions": ["Up", …], "info": {…}, "task": {…}}
    {"id": 8, "action": "Up"}

``task`` says ``suite``, ``split``, ``index``, ``rollout``, ``seed`` and ``temperature``. An answer may also hold
``reasoning``, ``prompt_tokens``, ``completion_tokens`` and ``finish_reason``; ``{"id": 7, "error": "…"}`` ends the
episode as an agent error. Standard output is for answers alone: any other line, or an ``id`` that no question has, ends
the program.

Several questions may be open at once, so a program may answer them together. One that ends has failed the episodes
that wait for it, and is started again for the next question, ten times in all. One that answers nothing until a
question has timed out is ended. When the run is over its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from shutil import which
from typing import Any

from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task, as_png
from ragen_gym.core.failures import Failure

_LONGEST_LINE = 2**24
_GRACE = 5.0
_STARTS = 11
_OPTIONAL = {"reasoning": str, "prompt_tokens": int, "completion_tokens": int, "finish_reason": str}


def load(command: str, *, kind: str = "reply") -> CommandReplies | CommandMoves:
    """The agent of a program.

    Args:
        command: the program and its arguments, as a shell would split them; no shell runs it.
        kind: ``"reply"`` or ``"step"``.
    """
    if kind not in ("reply", "step"):
        raise ValueError(f"cmd: kind={kind!r} must be 'reply' or 'step'.")
    return (CommandReplies if kind == "reply" else CommandMoves)(command, kind)


class _Command:
    def __init__(self, command: str, kind: str) -> None:
        try:
            self._words = shlex.split(command) or [""]
        except ValueError as error:
            raise ValueError(f"cmd:{command}: {error}.") from error
        program = self._words[0]
        if which(program) is None:
            raise ValueError(
                f"cmd: there is no executable program {program!r}: give one of the PATH, ./NAME for one of the folder, "
                "or its interpreter first, such as 'cmd:python my_agent.py'."
            )
        self.name, self.settings = f"cmd:{command}", {"kind": kind}
        self._starts = _STARTS
        self._process: _Process | None = None
        self._starting = asyncio.Lock()

    async def ask(self, question: dict[str, Any], task: Task) -> dict[str, Any]:
        """The program's answer to a question."""
        async with self._starting:
            process = await self._running()
        asked = {key: getattr(task, key) for key in ("suite", "split", "index", "rollout", "seed", "temperature")}
        answer = await process.ask({**question, "task": asked})
        if answer.get("error") is not None:  # many libraries write fields that are empty, too
            raise AgentFailure(Failure.AGENT_ERROR, f"the program says: {answer['error']}")
        return answer

    async def _running(self) -> _Process:
        """The program's process, started again where it has ended."""
        if self._process is None or not self._process.runs:
            if not self._starts:
                last = self._process.last if self._process else ""
                raise AgentFailure(Failure.AGENT_ERROR, f"not started again after {_STARTS} ends; {last}")
            self._starts -= 1
            self._process = await _Process.start(self._words)
        return self._process

    async def close(self) -> None:
        """Close the program's input and wait for its end."""
        if self._process is not None:
            await self._process.close()


class CommandReplies(_Command):
    """A program that replies."""

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The program's reply."""
        answer = await self.ask({"kind": "reply", "messages": as_png(messages)}, task)
        text = answer.get("reply")
        optional = {name: answer[name] for name, kind in _OPTIONAL.items() if type(answer.get(name)) is kind}
        if not isinstance(text, str):
            raise AgentFailure(Failure.AGENT_ERROR, f"an answer needs a 'reply' that is a text: {str(answer)[:200]}")
        return Answer(text, **optional)


class CommandMoves(_Command):
    """A program that moves."""

    async def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The program's move."""
        names = info["action_names"]
        plain = {"level_id": info["level_id"], "actions_left": info["actions_left"]}
        plain |= {"action_mask": info["action_mask"].tolist()}
        question = {"kind": "step", "observation": observation, "actions": list(names), "info": plain}
        action = (await self.ask(question, task)).get("action")
        by_name = {name.casefold(): number for number, name in enumerate(names)}
        number: Any = by_name.get(action.casefold(), -1) if isinstance(action, str) else action
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise AgentFailure(Failure.AGENT_ERROR, f"action {action!r} is not one of {', '.join(names)}")
        return number


class _Process:
    """A process of the program, and the questions that it has not answered yet."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.last = ""
        self._process = process
        self._next = self._answered = 0
        self._said = b""
        self._readers = [asyncio.create_task(reader) for reader in (self._answers(), self._complaints())]

    @classmethod
    async def start(cls, words: list[str]) -> _Process:
        pipe = asyncio.subprocess.PIPE
        try:
            # A session of its own: Ctrl-C is for the runner, which closes the program's input.
            return cls(
                await asyncio.create_subprocess_exec(
                    *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LONGEST_LINE, start_new_session=True
                )
            )
        except OSError as error:
            raise AgentFailure(Failure.AGENT_ERROR, f"cannot start {words[0]}: {error}") from error

    @property
    def runs(self) -> bool:
        return self._process.returncode is None and not self._readers[0].done() and not self.last

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        number, self._next = self._next, self._next + 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.open[number] = future
        answered = self._answered
        try:
            with suppress(ConnectionError):  # it has ended, which its reader will say
                self._process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
                await self._process.stdin.drain()
            return await future
        except asyncio.CancelledError:
            if self._answered == answered:
                self._end("the program answered nothing until a question had timed out")
            raise
        finally:
            self.open.pop(number, None)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE)
        except TimeoutError:
            self._end("the program did not end with its input")
        _, open_pipes = await asyncio.wait(self._readers, timeout=2.0)
        for reader in open_pipes:  # children of the program hold it
            reader.cancel()

    async def _answers(self) -> None:
        """Hand out answers until the program ends or writes something else."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                if line.strip() and (wrong := self._hand_out(line)):
                    self._end(wrong)
                    break
        except ValueError:
            self._end(f"the program wrote a line of more than {_LONGEST_LINE} bytes")
        code = await self._process.wait()
        await asyncio.wait([self._readers[1]], timeout=1.0)  # what it said last; its children may keep the pipe open
        said = self._said.decode("utf-8", "replace").strip().splitlines()
        self.last = self.last or f"the program ended with code {code}" + (f": {said[-1]}" if said else "")
        for future in self.open.values():
            if not future.done():
                future.set_exception(AgentFailure(Failure.AGENT_ERROR, self.last))

    def _hand_out(self, line: bytes) -> str:
        """Give an answer to whoever asked; what is wrong with the line, or ""."""
        try:
            answer = json.loads(line)
            number = answer["id"]
            future = self.open.get(number)
        except (ValueError, TypeError, KeyError, RecursionError):
            return f"the program wrote a line that is no answer: {line[:200].decode('utf-8', 'replace').strip()!r}"
        if future is None and (not isinstance(number, int) or not 0 <= number < self._next):
            return f"the program answered id {number!r}, which no question has: an answer repeats its question's id"
        self._answered += 1
        if future is not None and not future.done():  # else nobody waits any more
            future.set_result(answer)
        return ""

    async def _complaints(self) -> None:
        """Keep the end of what the program writes to its standard error."""
        assert self._process.stderr is not None
        while said := await self._process.stderr.read(4096):
            self._said = (self._said + said)[-2000:]

    def _end(self, why: str) -> None:
        self.last = self.last or why
        # Not kill() of the process: it looks whether the process has ended, and takes its exit code from asyncio.
        with suppress(ProcessLookupError, PermissionError):  # on macOS the latter, of a zombie
            os.killpg(self._process.pid, signal.SIGKILL)
