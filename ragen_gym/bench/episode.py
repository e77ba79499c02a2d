"""One episode: an agent against one instance of a split, to an ``EpisodeRecord``, whatever fails on the way.

An agent that answers messages plays a ``TurnEnv``, one reply a turn. An agent that moves plays the ``StepEnv`` inside
it, one move at a time, for as many moves as the split's budgets allow: the least of ``max_actions`` and ``max_turns *
max_actions_per_turn``. Both meet the same level with the same noise. A text task, a ``TaskEnv``, is played by replies.

What an agent is shown of the environment (``Task.env``) stands where the one that scores it does, and draws other
noise: an agent that tries its moves on a copy does not learn what will happen.

A method that does not wait, a plain function or a coroutine, is not scheduled: the episode of a scripted agent costs
little more than the game itself.
"""

from __future__ import annotations

import asyncio
import operator
import reprlib
import time
from dataclasses import replace
from inspect import isawaitable
from typing import Any
from weakref import WeakKeyDictionary

from ragen_gym.bench.agent import AgentFailure, Answer, ReplyAgent, StepAgent, Task, plain_dict
from ragen_gym.bench.agents.builtin import OracleAgent, RandomAgent
from ragen_gym.bench.episode_plan import PlannedEpisode, Timeouts
from ragen_gym.bench.records import MOST, EpisodeRecord, TurnRecord, check_values
from ragen_gym.bench.suites import Split
from ragen_gym.core.failures import Failure, describe_error, failure_from, shown_safely
from ragen_gym.core.text import replace_surrogates, without_controls
from ragen_gym.envs.messages import with_images
from ragen_gym.envs.reply import whole_reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv

#: Characters to which a longer reply, or its reasoning, is cut; the finish reason is then "max_reply".
MAX_REPLY = 2**18
_LONGEST_DETAIL = 2000


class EpisodeFailed(Exception):
    """Failure of an episode.

    Args:
        failure: what kind of failure.
        detail: what exactly; cut to 2,000 characters, without those that a terminal would obey.
    """

    def __init__(self, failure: Failure, detail: str) -> None:
        self.failure, self.detail = failure, without_controls(detail[:_LONGEST_DETAIL])
        super().__init__(self.detail)


class AgentCaller:
    """Calls an agent's methods through one episode.

    Args:
        agent: whose methods are called.
        timeouts: how long it may take.
    """

    def __init__(self, agent: Any, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.began = time.perf_counter()
        self._keeps_time = bool(getattr(agent, "keeps_time", False))

    async def call(self, method: Any, *arguments: Any) -> Any:
        """Result of the method; raises ``EpisodeFailed`` for whatever it raises, but for the end of the run."""
        try:
            answer = method(*arguments)
            if isawaitable(answer):
                async with asyncio.timeout(self._wait()):
                    answer = await answer
            # What does not wait cannot be interrupted, but its episode can be ended.
            if self.timeouts.episode is not None and self._elapsed() > self.timeouts.episode:
                raise TimeoutError
            return answer
        except TimeoutError as error:
            raise EpisodeFailed(Failure.TIMEOUT, str(error) or self._timeout_detail()) from error
        except AgentFailure as failure:
            raise EpisodeFailed(failure_from(failure.failure), failure.detail) from failure
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EpisodeFailed(Failure.AGENT_ERROR, "the agent raised CancelledError") from error
        except (Exception, SystemExit) as error:
            raise EpisodeFailed(Failure.AGENT_ERROR, describe_error(error)) from error

    def _elapsed(self) -> float:
        return time.perf_counter() - self.began

    def _wait(self) -> float | None:
        """Seconds that one answer may take now."""
        limits = [] if self._keeps_time or self.timeouts.request is None else [self.timeouts.request]
        if self.timeouts.episode is not None:
            limits.append(self.timeouts.episode - self._elapsed())
        return min(limits, default=None)

    def _timeout_detail(self) -> str:
        episode = self.timeouts.episode
        if episode is not None and self._elapsed() >= episode:
            return f"the episode took longer than {episode:g} s"
        return f"no answer within {self.timeouts.request:g} s" if self.timeouts.request else "the agent timed out"


async def play_episode(
    agent: ReplyAgent | StepAgent,
    env: TurnEnv | TaskEnv,
    planned: PlannedEpisode,
    timeouts: Timeouts,
    extra: dict[str, Any] | None = None,
) -> EpisodeRecord:
    """Play one episode to its end or its failure.

    Args:
        agent: who plays.
        env: of ``make_env`` for the split; not to be used again after a ``Failure.ENVIRONMENT_ERROR``.
        planned: what is played.
        timeouts: how long the agent may take.
        extra: the record's ``extra``.

    Raises:
        asyncio.CancelledError: the caller's task was cancelled.
    """
    episode = _Episode(agent, env, planned, AgentCaller(agent, timeouts))
    failure, detail = None, ""
    try:
        await (episode.play_turns() if episode.replies else episode.play_moves())
    except EpisodeFailed as failed:
        failure, detail = failed.failure, failed.detail
    record = EpisodeRecord(
        key=planned.key,
        split=planned.split.name,
        index=planned.index,
        rollout=planned.rollout,
        level_id=planned.split.levels[planned.index].id,
        noise_seed=planned.noise_seed,
        turns=tuple(episode.turns),
        success=episode.success and failure is None,
        total_reward=float(sum(turn.reward for turn in episode.turns)),
        terminated=episode.terminated,
        truncated=episode.truncated,
        last_board=episode.last_board(),
        system=env.instructions if episode.replies else "",
        failure=failure,
        detail=detail,
        seconds=time.perf_counter() - episode.agent_calls.began,
        extra=dict(extra or {}),
    )
    if end := getattr(agent, "end", None):
        try:
            await episode.agent_calls.call(end, episode.task, record)
            added = await episode.agent_calls.call(plain_dict, record, "extra")
            record = replace(record, extra=added | dict(extra or {}))
        except EpisodeFailed as failed:  # the outcome, which `end` was shown, stands
            said = record.detail or f"the agent's end() failed: {failed.detail}"
            record = replace(record, detail=said, extra=dict(extra or {}))
    return record


class _Episode:
    """Record of an episode so far."""

    def __init__(self, agent: Any, env: TurnEnv | TaskEnv, planned: PlannedEpisode, calls: AgentCaller) -> None:
        self.agent, self.env, self.planned = agent, env, planned
        self.replies = hasattr(agent, "reply") or isinstance(env, TaskEnv)
        self.turns: list[TurnRecord] = []
        self.success = self.terminated = self.truncated = False
        self.earned = 0.0
        self.agent_calls = calls
        self.shown = _shown(agent, env, planned.split)
        self.task = Task(
            suite=planned.suite,
            split=planned.split.name,
            index=planned.index,
            rollout=planned.rollout,
            seed=planned.seed,
            temperature=planned.temperature,
            env=self.shown,
        )

    async def play_turns(self) -> None:
        """Play by replies."""
        reply = getattr(self.agent, "reply", None) or self.agent.task_reply
        _, info = self._begin_env(self.env)
        await self._begin()
        while not (self.terminated or self.truncated):
            called = time.perf_counter()
            message = self.env.message_text
            messages = with_images(info["messages"], self.env.images)
            answer = self._checked(await self.agent_calls.call(reply, messages, self.task))
            seconds = time.perf_counter() - called
            text = answer.text
            _, reward, self.terminated, self.truncated, info = self._step(self.env.step, text)
            self.success = info["success"]
            problem = info["reply"] and info["reply"].problem
            self.turns.append(
                TurnRecord(
                    message=message,
                    reply=text,
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

    async def play_moves(self) -> None:
        """Play by single moves."""
        assert isinstance(self.env, TurnEnv)
        env, act = self.env.env, self.agent.act
        observation, info = self._begin_env(env)
        await self._begin()
        names = env.action_names
        left = self.env.action_budget
        while not (self.terminated or self.truncated):
            info |= {"actions_left": left, "action_names": names}
            board = env.text
            called = time.perf_counter()
            action = _action(await self.agent_calls.call(act, observation, info, self.task), len(names))
            seconds = time.perf_counter() - called
            observation, reward, self.terminated, _, info = self._step(env.step, action)
            left -= 1
            self.success = info["success"]
            self.truncated = left == 0 and not self.terminated
            self.turns.append(
                TurnRecord(message=board, reply=None, actions=(action,), reward=float(reward), seconds=seconds)
            )

    def last_board(self) -> str:
        """The board as it stands, or "" where the game cannot say; of a text task its last message."""
        try:
            return self.env.board if isinstance(self.env, TurnEnv) else self.env.message_text
        except Exception:  # the game is broken, as the record says
            return ""

    async def _begin(self) -> None:
        if begin := getattr(self.agent, "begin", None):
            await self.agent_calls.call(begin, self.task)

    def _checked(self, answer: Any) -> Answer:
        """The answer as it is recorded; raises ``EpisodeFailed`` where no record can hold it."""
        answer = Answer(answer) if isinstance(answer, str) else answer
        if not isinstance(answer, Answer):
            raise EpisodeFailed(Failure.AGENT_ERROR, f"a reply is a text or an Answer, not {shown_safely(answer)}")
        try:
            check_values(TurnRecord, {"message": answer.text, **vars(answer)})
        except (TypeError, ValueError) as error:
            raise EpisodeFailed(Failure.AGENT_ERROR, f"no record can hold the answer: {error}") from error
        text, reasoning, reason = answer.text, answer.reasoning, answer.finish_reason
        if not getattr(self.agent, "whole_replies", False):
            text = whole_reply(text, reasoning=reasoning, think=self.env.config.think)
        if max(len(text), len(reasoning or "")) > MAX_REPLY:
            text, reasoning, reason = text[:MAX_REPLY], reasoning and reasoning[:MAX_REPLY], "max_reply"
        reasoning = reasoning and replace_surrogates(reasoning)
        return replace(answer, text=replace_surrogates(text), reasoning=reasoning, finish_reason=reason)

    def _step(self, step: Any, action: Any) -> Any:
        """What the environment does; raises ``EpisodeFailed`` for a reward, or a sum, that no record can hold."""
        result = self._env_call(step, action)
        self._env_call(self._show)
        self.earned += result[1]
        if not (abs(result[1]) <= MOST and abs(self.earned) <= MOST):  # NaN is neither
            detail = (
                f"the reward is {result[1]:g}, and of the episode {self.earned:g}: they must be from -2**53 to 2**53"
            )
            raise EpisodeFailed(Failure.ENVIRONMENT_ERROR, detail)
        return result

    def _begin_env(self, env: ReplyEnv | StepEnv) -> Any:
        begun = self._env_call(self.planned.split.begin, env, self.planned.index, self.planned.noise_seed)
        if isinstance(self.shown, TaskEnv) and self.shown is not self.env:
            self._env_call(self.planned.split.begin, self.shown, self.planned.index, self.planned.seed)
        self._env_call(self._show)
        return begun

    def _show(self) -> None:
        """Bring the environment that the agent is shown to where the episode stands."""
        if isinstance(self.shown, TurnEnv) and isinstance(self.env, TurnEnv):
            self.shown.follow(self.env, self.planned.seed)

    def _env_call(self, method: Any, *arguments: Any) -> Any:
        """What the environment does; raises ``EpisodeFailed`` if it raises."""
        try:
            return method(*arguments)
        except Exception as error:
            raise EpisodeFailed(Failure.ENVIRONMENT_ERROR, describe_error(error)) from error


def _shown(agent: Any, env: TurnEnv | TaskEnv, split: Split) -> TurnEnv | TaskEnv:
    """What the agent is shown of an environment; made once for each.

    A text task keeps its noise to itself, so the agent is shown one that stays at the first message, but for the
    agents of the package that ask the task for a reply.
    """
    if isinstance(env, TaskEnv) and type(agent) in (OracleAgent, RandomAgent):
        return env
    if env not in _SHOWN:
        _SHOWN[env] = env.twin() if isinstance(env, TurnEnv) else split.make_env()
    return _SHOWN[env]


_SHOWN: WeakKeyDictionary[TurnEnv | TaskEnv, TurnEnv | TaskEnv] = WeakKeyDictionary()


def _action(answer: Any, actions: int) -> int:
    """The id of an action; raises ``EpisodeFailed`` for anything else."""
    try:
        action = int(operator.index(answer))
    except Exception:  # a TypeError, or whatever its ``__index__`` raises
        raise EpisodeFailed(Failure.AGENT_ERROR, f"an action is an integer, not {shown_safely(answer)}") from None
    if not 0 <= action < actions:
        raise EpisodeFailed(Failure.AGENT_ERROR, f"action {reprlib.repr(action)} is not one of 0 to {actions - 1}")
    return action
