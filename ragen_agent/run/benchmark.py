"""Evaluation through the benchmark's runner: the suite of a run's fixed levels, and the policy as its agent.

The runner holds the games and keeps the records. Here the policy plays as in training (``Policy.play``, around
``TokenMDP``): the same prompts and ids, history, limits of tokens, draws, pictures and agent programs. In place of a
game each token process has a ``_RunnerEnv``, whose messages come from the runner and whose replies go there. On one
machine this gives the episodes of the training loop's own evaluation again, bit for bit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.bench.agent import AgentFailure, Answer, Message, StopRun, Task
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.suites import SUITE_FILE, Suite, load_suite
from ragen_gym.bench.suites.freeze import write_frozen
from ragen_gym.bench.suites.problems import Problem
from ragen_gym.core.failures import Failure, failure_kind
from ragen_gym.core.levels import Level
from ragen_gym.core.settings import declared
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.turn import TurnEnv

__all__ = ["PolicyAgent", "evaluation_suite"]

_POLL = 0.2  # seconds after which a wait looks whether the run has ended


def evaluation_suite(games: Sequence[Config], folder: Path) -> Suite:
    """The suite of the levels on which these games of a run are evaluated, written into a folder.

    Args:
        games: the settings of each game; see ``measured_settings``.
        folder: of the suite; its files are replaced.

    Raises:
        ValueError: see ``evaluated_levels``; or a level that cannot be read back from its text.
    """
    import tomli_w

    folder.mkdir(parents=True, exist_ok=True)
    rows, found = [], []
    for place, config in enumerate(games):
        env, instances = evaluated_levels(config)
        levels: list[Level | Problem] = []
        for instance in instances:
            said, info = env.reset(seed=instance.seed)
            levels.append(env.level if isinstance(env, TurnEnv) else Problem(instance.seed, info["level_id"], said))
        options = {name: value for name, value in config.env_options.items() if name != "levels" and value is not None}
        if not isinstance(env, TurnEnv):
            options["split"] = config.evaluation.split
        file = f"{place}.{'txt' if isinstance(env, TurnEnv) else 'jsonl'}"
        write_frozen(folder / file, levels)
        turns = config.turns.of_environment(states_limit=pretrained(config.model))
        usual = {name: each.default for name, each in declared(TurnConfig).items()}
        budgets = {name: value for name, value in asdict(turns).items() if value != usual[name]}
        rows.append({"name": config.game, "env": config.game, "levels": file, "env_options": options})
        rows[-1]["budgets"] = budgets
        found.append(levels)
    evaluation = games[0].evaluation
    table = {
        "name": f"{'+'.join(config.game for config in games)}-{evaluation.split}-{evaluation.levels}",
        "temperature": evaluation.temperature,
        "noise": "index",
        "splits": rows,
    }
    write_atomic(folder / SUITE_FILE, tomli_w.dumps(table))
    suite = load_suite(folder)
    for split, levels in zip(suite.splits, found, strict=True):
        if [*split.levels] != levels:
            raise ValueError(
                f"a level of {split.env} is another one when its text is read again, so it cannot be evaluated on "
                "fixed levels: see `ragen-gym check`."
            )
    return suite


@dataclass(eq=False)
class _Episode:
    """An episode of the runner, as the policy's thread sees it."""

    news: queue.SimpleQueue[tuple[Sequence[Message], Task] | EpisodeRecord] = field(default_factory=queue.SimpleQueue)
    asked: asyncio.Future[Answer] | None = None  # of the reply that the runner waits for


class PolicyAgent:
    """A policy that answers the runner; it plays in a thread of its own, from ``start`` to ``close``.

    Args:
        name: as it stands in the results.
        policy: plays.
        games: the settings of each split of the suite, in order.
        weights: what tells its weights from others, such as a hash.
        kept: (split, index) of episodes that the results hold already.
        seen: path of the record of the levels that it was trained on, or None.

    Attributes:
        error: what ended the policy's play, or None.
    """

    whole_replies = True  # what the template begins is in the text already, as the token process decodes it

    def __init__(
        self,
        name: str,
        policy: Policy,
        games: Sequence[Config],
        weights: Mapping[str, Any],
        kept: Collection[tuple[str, int]] = (),
        seen: Path | None = None,
    ) -> None:
        self.name, self.policy, self.games, self.kept, self.seen = name, policy, games, kept, seen
        turns = games[0].turns
        limits = {each.game: [each.turns.max_tokens_per_turn, each.turns.max_tokens_per_episode] for each in games}
        self.settings = {
            "weights": dict(weights),
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "max_tokens": limits,
            "history": {each.game: each.turns.history for each in games},
            "keep_thinking": turns.keep_thinking,
            "template": turns.template_options,
            "program": games[0].program.command,
        }
        self.circumstances = {"device": policy.model.device.type, "batch": games[0].evaluation.batch}
        self.error: BaseException | None = None
        self.closed = False
        self._episodes: defaultdict[tuple[str, int], _Episode] = defaultdict(_Episode)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._play, name="policy agent")

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The policy's reply.

        Raises:
            AgentFailure: the engine broke, or the conversation outgrew ``turns.max_tokens_per_episode``.
            StopRun: the policy cannot play; see ``error``.
        """
        episode = self.episode(task.split, task.index)
        with self._lock:
            if self.error is not None:
                raise StopRun(str(self.error))
            asked: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            episode.asked = asked
        episode.news.put((messages, task))  # after which the other thread may answer at any time
        return await asked

    def end(self, task: Task, record: EpisodeRecord) -> None:
        """The episode has ended."""
        self.episode(task.split, task.index).news.put(record)

    async def close(self) -> None:
        """End the play, and wait for its thread."""
        self.closed = True
        if self._thread.is_alive():
            stops = self.policy.engine.stops.copy()
            self.policy.engine.stops[:] = True  # replies in the making end with their next token, whatever it is
            await asyncio.to_thread(self._thread.join)
            self.policy.engine.stops[:] = stops

    def episode(self, split: str, index: int) -> _Episode:
        """The episode of an instance."""
        with self._lock:
            return self._episodes[split, index]

    def next(self, episode: _Episode) -> tuple[Sequence[Message], Task] | EpisodeRecord:
        """The next message of an episode, or its record at its end; raises ``_ClosedError`` where the run has ended."""
        while not self.closed:
            try:
                return episode.news.get(timeout=_POLL)
            except queue.Empty:
                continue
        raise _ClosedError

    def answer(self, episode: _Episode, outcome: Answer | Exception) -> None:
        """Give the runner what it waits for, if it does."""
        with self._lock:
            asked, episode.asked = episode.asked, None
        if asked is not None and not self.closed:
            asked.get_loop().call_soon_threadsafe(_settle, asked, outcome)

    def _play(self) -> None:
        """All games, one after another. Runs in the thread."""
        try:
            for config in self.games:
                if not self.closed:
                    self._play_game(config)
        except _ClosedError:
            pass
        except BaseException as error:
            with self._lock:
                self.error = error
                waiting = [*self._episodes.values()]
            for episode in waiting:
                self.answer(episode, StopRun(str(error)))

    def _play_game(self, config: Config) -> None:
        evaluation, policy = config.evaluation, replace(self.policy, config=config)
        instances = [Instance(index, index) for index in range(evaluation.levels)]
        envs = [_RunnerEnv(self, config.game) for _ in instances[: evaluation.batch]]
        for env in envs:
            env.process = TokenMDP.from_settings(env, policy.chat, config.turns)
        processes = [env.process for env in envs]

        def settle(_: int) -> None:
            for env in envs:
                if env.process.done and env.process.ids and env.episode is not None:
                    self._fail(env.episode, env.process.trajectory())

        seed = derive_seed(0, SeedStream.EVALUATION)
        played = policy.play(processes, instances, evaluation.temperature, seed, settle)
        for index, trajectory in enumerate(played):
            self._fail(self.episode(config.game, index), trajectory)

    def _fail(self, episode: _Episode, played: Trajectory) -> None:
        """End an episode that the policy has left while the runner waits for a reply; any other is left alone."""
        if played.failure is not None:
            kind, _, detail = played.failure.partition(": ")
            failure = AgentFailure(failure_kind(kind), detail)
        elif played.overflowed:
            failure = AgentFailure(
                Failure.CONTEXT_OVERFLOW, "the conversation has outgrown turns.max_tokens_per_episode"
            )
        else:
            failure = AgentFailure(Failure.AGENT_ERROR, "the program ended the episode before its end")
        self.answer(episode, failure)


class _ClosedError(BaseException):
    """The run has ended: nobody waits for replies any more."""


class _RunnerEnv(gymnasium.Env[Any, str]):
    """An environment whose episodes are the runner's; ``reset(seed=i)`` waits for that of the i-th instance."""

    process: TokenMDP

    def __init__(self, agent: PolicyAgent, split: str) -> None:
        self.agent, self.split = agent, split
        self.episode: _Episode | None = None
        self.instructions = self.name = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        if (self.split, seed) in self.agent.kept:
            raise RuntimeError("the results hold this episode already")
        self.episode = self.agent.episode(self.split, seed)
        said, _, _, _, info = self._next()
        if said is None:
            raise RuntimeError(info["detail"])
        return said, info

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.episode is not None
        self.agent.answer(self.episode, self._answer(action))
        result = self._next()
        if "detail" in result[-1]:
            raise RuntimeError(result[-1]["detail"])
        return result

    def _next(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the runner's environment said; of a failed episode no message, and in ``info`` why."""
        assert self.episode is not None
        news = self.agent.next(self.episode)
        if isinstance(news, EpisodeRecord):
            if news.failure is not None:
                return None, 0.0, False, True, {"detail": f"{news.failure}: {news.detail}"}
            return news.last_board, 0.0, news.terminated, news.truncated, {"success": news.success}
        messages, task = news
        env = task.env
        self.instructions, self.name = plain_text(messages[0]["content"]), env.name
        if isinstance(env, TurnEnv):
            self.action_names = env.action_names
        info = {"success": False, "turn": env.turn, "actions_left": getattr(env, "actions_left", None)}
        content = messages[-1]["content"]
        if isinstance(content, str):
            return content, 0.0, False, False, info
        images = [part["image"] for part in content if part["type"] == "image"]
        parts = [{"type": "image"} if part["type"] == "image" else part for part in content]
        messages = [*messages[:-1], {**messages[-1], "content": parts}]
        return plain_text(parts), 0.0, False, False, {**info, "images": images, "messages": messages}

    def _answer(self, reply: str) -> Answer:
        """A reply, with its tokens where the process has sampled it: a program's has none of its own."""
        process = self.process
        if not process.ids:
            return Answer(reply)
        ended = process.ids[-1] in process.chat.stop_ids
        return Answer(
            reply,
            prompt_tokens=process.reply_start,
            completion_tokens=len(process.ids) - process.reply_start,
            finish_reason="stop" if ended else "length",
        )


def _settle(future: asyncio.Future[Answer], outcome: Answer | Exception) -> None:
    if future.done():  # the runner has stopped waiting
        return
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
