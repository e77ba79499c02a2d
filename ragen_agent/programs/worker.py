"""A started program, and the answers to its requests: the episode that it plays, in the game and in tokens."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ragen_agent.config.settings import Program
from ragen_agent.inference import Sampled
from ragen_agent.programs.conversation import ContextOverflowError, Conversation
from ragen_agent.programs.request import Completion, Request, RequestError
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_gym.core.failures import Failure

_LAST = 4096  # bytes of standard error to read for its last line


class ProgramProcess:
    """A command in a process group of its own; its standard output is dropped, its standard error kept.

    Raises:
        ValueError: the command cannot be started.
    """

    def __init__(self, command: str, variables: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                shlex.split(command) or [""],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            raise ValueError(f"program.command {command!r} cannot be started: {error}") from None

    @property
    def running(self) -> bool:
        """True while it runs."""
        return self._process.poll() is None

    @property
    def failed(self) -> bool:
        """True if it ended with an exit code other than 0."""
        return bool(self._process.poll())

    def ask_to_end(self) -> None:
        """Send SIGTERM to it and its children."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send them SIGKILL."""
        self._signal(signal.SIGKILL)

    def end(self, wait: float = 0.0) -> str:
        """End it and its children if it has not ended within ``wait`` seconds.

        Returns its exit code and the last line of its standard error.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        self.kill()
        self._process.wait()
        if self._errors.closed:
            return ""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _LAST))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self._errors.close()
        return f"exit code {self._process.returncode}" + (f": {lines[-1].strip()[:300]}" if lines else "")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # on macOS PermissionError for a zombie
            os.killpg(self._process.pid, number)


class Source(Protocol):
    """Source and sink of episodes; called from the threads of the server."""

    def next(self) -> tuple[int, Instance] | None:
        """The next episode and its number; None if none is left."""
        ...

    def sample(self, ids: list[int], limit: int, episode: int, number: int, gone: Callable[[], bool]) -> Sampled:
        """Reply ``number`` of an episode after these ids.

        Raises:
            ConnectionAbortedError: the client is ``gone``.
            RuntimeError: the engine failed.
            TimeoutError: no reply in time.
        """
        ...

    def over(self, episode: int, trajectory: Trajectory) -> None:
        """An episode has ended."""
        ...


@dataclass
class _Episode:
    """An episode in play."""

    index: int
    seed: int
    conversation: Conversation
    first: dict[str, Any]  # its first message, in the form of ragen-gym serve
    level_id: str
    board: str | None
    #: the game's turns: the number of the last reply before each (-1 for none), its reward, and its facts
    turns: list[tuple[int, float, TurnInfo | None]] = field(default_factory=list)
    overflowed: bool = False  # the messages no longer fitted
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    failure: str | None = None

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated or self.failure is not None


class Worker:
    """The ``Player`` of one program at a time and its episode.

    Args:
        program: the command and its settings.
        process: gives the turn environment, template and limits.
        source: source and sink of episodes.
        check: called with unsampled ids; it may raise.
    """

    def __init__(
        self, program: Program, process: TokenMDP, source: Source, check: Callable[[Sequence[int]], None]
    ) -> None:
        self.program, self.mdp, self.source, self.check = program, process, source, check
        self.env = process.env
        self.url = ""  # the program's address for it
        self.process: ProgramProcess | None = None
        self.episodes = 0  # number of episodes that the process has begun
        self._since = 0.0  # time.monotonic of the process's start, or of its last episode's start or end
        self._late = False  # True if the process took too long
        self._lock = threading.RLock()
        self._episode: _Episode | None = None

    def start(self) -> None:
        """Start the program."""
        key = self.url.rpartition("/")[2]
        addresses = {"OPENAI_BASE_URL": f"{self.url}/v1", "ANTHROPIC_BASE_URL": self.url, "RAGEN_GYM_URL": self.url}
        variables = {**addresses, "OPENAI_API_KEY": key, "ANTHROPIC_API_KEY": key}
        self.episodes, self._late = 0, False
        self.process, self._since = ProgramProcess(self.program.command, variables), time.monotonic()

    def look_after(self) -> str | None:
        """Ends a program that takes too long. Once it has ended, ends its episode and returns its exit; else None."""
        process, limit = self.process, self.program.timeout
        if process is not None and process.running:
            if time.monotonic() - self._since <= limit:
                return None
            self._late = True
            process.kill()  # without the lock, which a busy program holds nearly always
        if not self._lock.acquire(blocking=False):  # one of its requests is being answered
            return None
        try:
            if process is None:  # a request in flight at the program's end may have begun an episode
                self._finish(f"{Failure.AGENT_ERROR}: the program ended as it began the episode")
                return None
            failed, how = process.failed, process.end()
            if self._late:
                how = how if self._episode else f"no episode within {limit:g} s"
                self._finish(f"{Failure.TIMEOUT}: the program took more than {limit:g} s")
            else:
                self._finish(f"{Failure.AGENT_ERROR}: {how}" if failed else None)
            self.process = None
            return how
        finally:
            self._lock.release()

    def complete(self, request: Request, gone: Callable[[], bool] = lambda: False) -> Completion:
        """See ``Player``; requests of one program are sampled together."""
        with self._lock:
            episode = self._playing()
            try:
                reply = episode.conversation.request(request.messages, request.most)
            except ContextOverflowError as error:
                episode.truncated = episode.overflowed = True
                raise RequestError(400, "context_length_exceeded", str(error)) from None
            except ValueError as error:
                raise RequestError(400, "invalid", str(error)) from None
        sampled, failure = None, ""
        try:
            sampled = self.source.sample(reply.prompt, reply.limit, episode.index, reply.number, gone)
        except ConnectionAbortedError:
            pass
        except TimeoutError as error:
            failure = f"{Failure.GENERATION_TIMEOUT}: {error}"
        except RuntimeError as error:
            failure = f"{Failure.ENGINE_ERROR}: {error}"
        with self._lock:
            if self._episode is not episode:
                raise RequestError(409, "no_episode", "the episode was over before the reply was sampled.")
            if sampled is not None and not gone():
                try:
                    episode.conversation.add(reply, sampled, request.stop)
                except ValueError as error:
                    failure = f"{Failure.ENGINE_NAN}: {error}"
                else:
                    return Completion(reply.text, len(reply.prompt), len(reply.ids), reply.stopped, reply.stop)
            if not failure:
                raise RequestError(408, "abandoned", "the client closed the connection before the reply was sampled.")
            episode.failure = episode.failure or failure
            raise RequestError(500, "engine_error", failure)

    def begin(self) -> dict[str, Any]:
        """See ``Player``."""
        with self._lock:
            self._finish(None)
            found, mdp = self.source.next(), self.mdp
            if found is None:
                raise RequestError(410, "no_episode", "there is no episode left to play.")
            index, instance = found
            self.episodes += 1
            conversation = Conversation(mdp.chat, mdp.max_tokens_per_turn, mdp.max_tokens_per_episode, self.check)
            try:
                observation, info = self.env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
            except Exception as error:  # as in a turn
                failure = f"{Failure.ENVIRONMENT_ERROR}: {type(error).__name__}: {error}"
                self.source.over(index, conversation.trajectory((), (), failure=failure, seed=instance.seed))
                raise RequestError(500, "environment_error", str(error)) from None
            self._episode = _Episode(
                index,
                instance.seed,
                conversation,
                {"observation": observation, "info": _public(info)},
                str(info.get("level_id", "")),
                self._text("board"),
            )
            self._since = time.monotonic()
            games = self.env.has_wrapper_attr("action_names")  # a text task has no list of actions
            return {
                "session": str(index),
                "env": self._text("name") or "",
                "grain": "turn",
                "action_names": list(self.env.get_wrapper_attr("action_names")) if games else [],
                "instructions": str(self.env.get_wrapper_attr("instructions")),
                "start": self._episode.first,
            }

    def reset(self) -> dict[str, Any]:
        """See ``Player``; after a turn it begins the next episode."""
        with self._lock:
            if self._episode is None or self._episode.turns:
                self.begin()
            return self._playing().first

    def turn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Player``."""
        with self._lock:
            episode = self._playing()
            if episode.terminated or episode.truncated:
                raise RequestError(409, "episode_over", "the episode is over: reset it.")
            reply = body.get("reply")
            if not isinstance(reply, str):
                raise RequestError(422, "invalid", f"reply must be a text, not {type(reply).__name__}.")
            state = self._text("state_id") if self.mdp.record_states else None
            try:
                observation, reward, terminated, truncated, info = self.env.step(reply)
                if not math.isfinite(reward):
                    raise ValueError(f"the turn's reward is {reward}")
            except Exception as error:  # a game's error fails its own episode, never the run
                episode.failure = f"{Failure.ENVIRONMENT_ERROR}: {type(error).__name__}: {error}"
                raise RequestError(500, "environment_error", str(error)) from None
            before, episode.board = episode.board, self._text("board")
            replies = episode.conversation.replies
            facts = TurnInfo.of(info, before, episode.board, bool(terminated), state)
            episode.turns.append((replies[-1].number if replies else -1, float(reward), facts))
            episode.terminated, episode.truncated = bool(terminated), bool(truncated) and not terminated
            episode.success = bool(info.get("success", False))
            return {
                "observation": observation,
                "reward": float(reward),
                "terminated": episode.terminated,
                "truncated": episode.truncated,
                "info": _public(info),
            }

    def end(self) -> None:
        """See ``Player``."""
        with self._lock:
            self._finish(None)

    def _playing(self) -> _Episode:
        if self._episode is None or self._episode.failure is not None:
            raise RequestError(409, "no_episode", "no episode is being played: POST to RAGEN_GYM_URL/sessions first.")
        return self._episode

    def _finish(self, failure: str | None) -> None:
        """Hand over the episode as it is; ``failure`` is the reason if it had not ended before."""
        episode, self._episode = self._episode, None
        if episode is None:
            return
        self._since = time.monotonic()
        failure = episode.failure or (None if episode.over else failure)
        conversation, replies = episode.conversation, episode.conversation.replies
        if failure is None and not replies:
            overflow = f"{Failure.CONTEXT_OVERFLOW}: the first messages of the program"
            nothing = f"{Failure.AGENT_ERROR}: the program ended the episode without asking the model"
            late = f"{Failure.AGENT_ERROR}: the program's client gave up on each of its {conversation.asked} requests"
            failure = overflow if episode.overflowed else late if conversation.asked else nothing
        rewards = [0.0] * len(replies)
        facts: list[list[TurnInfo | None]] = [[] for _ in replies]
        for number, reward, info in episode.turns if replies else ():
            place = bisect_right(replies, number, key=lambda reply: reply.number) - 1
            rewards[max(0, place)] += reward
            if place >= 0:
                facts[place].append(info)
        infos = [info for each in facts for info in each if info is not None]
        limit = conversation.max_tokens_per_episode
        trajectory = conversation.trajectory(
            rewards,
            infos if all(len(each) == 1 for each in facts) and len(infos) == len(replies) else (),
            terminated=episode.terminated and failure is None,
            truncated=not episode.terminated and failure is None,
            success=episode.success and failure is None,
            overflowed=episode.overflowed
            or any(not reply.stopped and len(reply.prompt) + len(reply.ids) >= limit for reply in replies),
            failure=failure,
            level_id=episode.level_id,
            seed=episode.seed,
        )
        self.source.over(episode.index, trajectory)

    def _text(self, name: str) -> str | None:
        return str(self.env.get_wrapper_attr(name)) if self.env.has_wrapper_attr(name) else None


def _public(info: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an environment's ``info`` that a program gets, as JSON; ragen-gym serve gives more."""
    return {name: info[name] for name in ("success", "level_id", "turn", "actions_left") if name in info}
