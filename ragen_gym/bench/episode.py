"""One episode: an agent against one instance of a split, to an `EpisodeRecord`, whatever goes wrong on the way.

An agent that answers messages plays a `TurnEnv`, one reply a turn. An agent that moves plays the `StepEnv` inside it,
one move at a time, for as many moves as the split's budgets allow: the least of ``max_actions`` and ``max_turns *
max_actions_per_turn``. Both meet the same level with the same luck.

What an agent answers at once, whether from a plain function or from a coroutine that never waits, is taken at once:
an episode of a scripted agent never leaves its task, so it costs little more than the game itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import operator
import time
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import AgentFailure, Answer, ReplyAgent, StepAgent, StopRun, Task
from ragen_gym.bench.records import EpisodeRecord, Failure, TurnRecord
from ragen_gym.bench.suite import Split
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Job", "Limits", "Prices", "make_env", "play_episode", "prompt_hash"]

_LONGEST_DETAIL = 2000


@dataclass(frozen=True)
class Job:
    """One episode to play.

    Attributes:
        suite: name of the suite.
        split: what is played.
        index: place of the instance in the split.
        rollout: which of its rollouts.
        noise_seed: of the episode's luck.
        seed: for the agent's own randomness.
        temperature: at which a language model is to be sampled.
        key: see `EpisodeRecord.key`.
    """

    suite: str
    split: Split
    index: int
    rollout: int
    noise_seed: int
    seed: int
    temperature: float
    key: str


@dataclass(frozen=True)
class Limits:
    """Patience.

    Attributes:
        request: seconds for one answer, or None.
        episode: seconds for a whole episode, or None.
    """

    request: float | None = None
    episode: float | None = None


@dataclass(frozen=True)
class Prices:
    """What tokens cost, for a million of them.

    Attributes:
        prompt: tokens read.
        completion: tokens written.
    """

    prompt: float
    completion: float

    def of(self, turns: list[TurnRecord]) -> float | None:
        """The cost of these turns, or None where some tokens were not counted."""
        total = 0.0
        for turn in turns:
            if turn.prompt_tokens is None or turn.completion_tokens is None:
                return None
            total += turn.prompt_tokens * self.prompt + turn.completion_tokens * self.completion
        return total / 1e6


def make_env(split: Split, observation: str = "text") -> TurnEnv:
    """The environment that plays any instance of a split; ``observation`` is what an agent that moves is shown."""
    if observation != "text":
        split = replace(split, knobs={**split.knobs, "observation": observation})
    env = split.make_env()
    env.reset(seed=0)
    return env


def prompt_hash(split: Split) -> str:
    """16 hexadecimal digits that change with the messages: those that begin the split's first episode."""
    env = make_env(split)
    _, info = env.reset(options={"level": split.levels[0], "noise_seed": 0})
    return hashlib.sha256(json.dumps(info["messages"]).encode()).hexdigest()[:16]


async def play_episode(
    agent: ReplyAgent | StepAgent,
    env: TurnEnv,
    job: Job,
    limits: Limits,
    prices: Prices | None = None,
    extra: dict[str, Any] | None = None,
) -> EpisodeRecord:
    """Play one episode to its end or its failure.

    Args:
        agent: who plays.
        env: of `make_env` for the job's split; after an `Failure.ENVIRONMENT_ERROR` it is not to be used again.
        job: what is played.
        limits: how long the agent may take.
        prices: for the record's cost.
        extra: what else the record is to hold.

    Raises:
        StopRun: the agent ends the run.
        asyncio.CancelledError: the caller's task was cancelled.
    """
    episode = _Episode(agent, env, job, limits)
    failure, detail = None, ""
    try:
        if episode.replies:
            await episode.converse()
        else:
            await episode.move()
    except _Failed as failed:
        failure, detail = failed.failure, failed.detail
    record = EpisodeRecord(
        key=job.key,
        split=job.split.name,
        index=job.index,
        rollout=job.rollout,
        level_id=job.split.levels[job.index].id,
        noise_seed=job.noise_seed,
        turns=tuple(episode.turns),
        success=episode.success and failure is None,
        total_reward=float(sum(turn.reward for turn in episode.turns)),
        terminated=episode.terminated,
        truncated=episode.truncated,
        last_board=episode.last_board(),
        system=env.instructions if episode.replies else "",
        failure=failure,
        detail=detail,
        seconds=time.perf_counter() - episode.began,
        cost=prices.of(episode.turns) if prices else None,
        extra=extra or {},
    )
    if end := getattr(agent, "end", None):
        try:
            await episode.ask(end, episode.task, record)
        except _Failed as failed:
            record = replace(record, failure=failed.failure, detail=failed.detail)
    return record


class _Failed(Exception):
    """How an episode failed."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure, self.detail = failure, detail[:_LONGEST_DETAIL]


class _Episode:
    """What has happened in an episode so far."""

    def __init__(self, agent: Any, env: TurnEnv, job: Job, limits: Limits) -> None:
        self.agent, self.env, self.job, self.limits = agent, env, job, limits
        self.replies = hasattr(agent, "reply")
        self.turns: list[TurnRecord] = []
        self.success = self.terminated = self.truncated = False
        self.began = time.perf_counter()
        self.task = Task(
            suite=job.suite,
            split=job.split.name,
            index=job.index,
            rollout=job.rollout,
            seed=job.seed,
            temperature=job.temperature,
            env=env,
        )

    async def converse(self) -> None:
        """Play by replies."""
        reply = self.agent.reply
        message, info = self._game(self.env.reset)
        await self._begin()
        while not (self.terminated or self.truncated):
            asked = time.perf_counter()
            answer = await self.ask(reply, info["messages"], self.task)
            seconds = time.perf_counter() - asked
            if isinstance(answer, str):
                answer = Answer(answer)
            elif not isinstance(answer, Answer) or not isinstance(answer.text, str):
                raise _Failed(Failure.AGENT_ERROR, f"a reply is a text or an Answer, not {answer!r}")
            said, reward, self.terminated, self.truncated, info = self._game(self.env.step, answer.text)
            self.success = info["success"]
            problem = info["reply"].problem
            self.turns.append(
                TurnRecord(
                    message=message,
                    reply=answer.text,
                    actions=info["actions"],
                    reward=reward,
                    problem=None if problem is None else problem.value,
                    reasoning=answer.reasoning,
                    prompt_tokens=answer.prompt_tokens,
                    completion_tokens=answer.completion_tokens,
                    finish_reason=answer.finish_reason,
                    retries=answer.retries,
                    seconds=seconds,
                )
            )
            message = said

    async def move(self) -> None:
        """Play by single moves."""
        env, act = self.env.env, self.agent.act
        observation, info = self._game(env.reset)
        await self._begin()
        names = env.action_names
        left = min(self.env.max_actions, self.env.max_turns * self.env.max_actions_per_turn)
        while not (self.terminated or self.truncated):
            info |= {"actions_left": left, "action_names": names}
            board = env.text
            asked = time.perf_counter()
            action = _action(await self.ask(act, observation, info, self.task), len(names))
            seconds = time.perf_counter() - asked
            observation, reward, self.terminated, _, info = self._game(env.step, action)
            left -= 1
            self.success = info["success"]
            self.truncated = left == 0 and not self.terminated
            self.turns.append(
                TurnRecord(message=board, reply=None, actions=(action,), reward=float(reward), seconds=seconds)
            )

    async def ask(self, question: Any, *arguments: Any) -> Any:
        """What the agent answers; raises `_Failed` for whatever else it does."""
        try:
            answer = question(*arguments)
            if isawaitable(answer):
                answer = await self._wait(answer)
            elif self.limits.episode is not None and time.perf_counter() - self.began > self.limits.episode:
                raise TimeoutError  # a plain function cannot be interrupted, but its episode can be ended
        except StopRun:
            raise
        except TimeoutError as error:
            raise _Failed(Failure.TIMEOUT, str(error) or self._patience()) from error
        except AgentFailure as failure:
            raise _Failed(failure.failure, failure.detail) from failure
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _Failed(Failure.AGENT_ERROR, "the agent's own task was cancelled") from error
        except (Exception, SystemExit) as error:  # whatever an agent does, it ends its episode and not the run
            raise _Failed(Failure.AGENT_ERROR, _described(error)) from error
        return answer

    def last_board(self) -> str:
        """The board as it stands, or "" where the game cannot say."""
        try:
            return self.env.board
        except Exception:  # the game is broken, which is what the record is to say
            return ""

    async def _begin(self) -> None:
        if begin := getattr(self.agent, "begin", None):
            await self.ask(begin, self.task)

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer as long as the limits allow."""
        wait = None if getattr(self.agent, "keeps_time", False) else self.limits.request
        if self.limits.episode is not None:
            left = self.limits.episode - (time.perf_counter() - self.began)
            wait = left if wait is None else min(wait, left)
        if wait is None:
            return await answer
        async with asyncio.timeout(wait):
            return await answer

    def _patience(self) -> str:
        episode = self.limits.episode
        if episode is not None and time.perf_counter() - self.began >= episode:
            return f"the episode took longer than {episode:g} s"
        return f"no answer within {self.limits.request:g} s" if self.limits.request else "the agent timed out"

    def _game(self, method: Any, *arguments: Any) -> Any:
        """What the environment does; raises `_Failed` if it raises."""
        try:
            if arguments:
                return method(*arguments)
            level = self.job.split.levels[self.job.index]
            return method(options={"level": level, "noise_seed": self.job.noise_seed})
        except Exception as error:
            raise _Failed(Failure.ENVIRONMENT_ERROR, _described(error)) from error


def _action(answer: Any, actions: int) -> int:
    """The id of an action; raises `_Failed` for anything else."""
    try:
        action = int(operator.index(answer))
    except TypeError:
        raise _Failed(Failure.AGENT_ERROR, f"an action is an integer, not {answer!r}") from None
    if not 0 <= action < actions:
        raise _Failed(Failure.AGENT_ERROR, f"action {action} is not one of 0 to {actions - 1}")
    return action


def _described(error: BaseException) -> str:
    """An exception in a line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
