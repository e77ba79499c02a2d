"""A language model as the judge of what replies say of the board, behind an OpenAI-compatible server.

VAGEN's state reward (arXiv 2510.16907, section 4) is the verdict of such a model: it is told the true state and what
the reply says of it, and answers YES or NO. Here the true board is known exactly, so a judge is never needed
(``TurnConfig.state_reward``). With ``Config.judge`` its verdicts are paid next to the exact reward, and every iteration
records how often they differ from the truth.

An answer is read strictly: it ends with one ``<answer>YES</answer>`` or ``<answer>NO</answer>``. Whatever else a server
does is a failure. It is counted, and the episode is left out of the loss, since what it should have earned is unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ragen_agent.config import Judge as JudgeSettings
from ragen_agent.trajectory import Trajectory
from ragen_gym.bench.agent import AgentFailure
from ragen_gym.bench.agents.openai import OpenAIAgent
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Description", "Judge", "Verdict", "check_judge", "descriptions", "read_verdict"]

_QUESTION = """\
Compare {what} with the true {when} state of the game.
Answer YES if it matches the true state, or NO if it does not: a thing in a wrong place, a thing that is missing and a \
thing that is not there each make it wrong.

# True {when} state
{truth}

# {title}
{said}

Think step by step, in at most {max_tokens} tokens, and end with <answer>YES</answer> or <answer>NO</answer>."""
_PARTS = {
    "observation": {"what": "the description of the current state", "when": "current", "title": "Description"},
    "prediction": {"what": "the prediction of the next state", "when": "next", "title": "Prediction"},
}
_VERDICT = re.compile(r"<answer>\s*(YES|NO)\s*</answer>\s*\Z")
_TEMPERATURE = 0.0  # so that a verdict may be remembered


class Description(NamedTuple):
    """What a reply says of a board."""

    turn: int  # from 0
    part: str  # "observation" or "prediction"
    said: str
    truth: str  # what it would say of the true board
    right: bool  # whether it is exactly right


class Verdict(NamedTuple):
    """What the judge says of a description."""

    accepted: bool | None  # None where there is no readable answer
    failure: str = ""  # then, as ``"kind: details"`` (``ragen_gym.core.failures.Failure``)


def read_verdict(answer: str) -> bool | None:
    """The verdict at the end of an answer; None of one that ends otherwise, or has several."""
    found = _VERDICT.search(answer)
    return None if found is None or answer.count("<answer>") > 1 else found[1] == "YES"


def descriptions(trajectory: Trajectory, noise_seed: int, env: TurnEnv) -> list[Description]:
    """What the replies without fault of an episode say of the boards.

    Args:
        trajectory: an episode that was played from its start.
        noise_seed: of its transition noise.
        env: an environment like its own, in which it is played again.

    Raises:
        ValueError: the episode goes on otherwise there.
    """
    env.reset(seed=trajectory.seed, options={"noise_seed": noise_seed})
    replies = [plain_text(message["content"]) for message in trajectory.messages if message["role"] == "assistant"]
    found = []
    for turn, (text, reward) in enumerate(zip(replies, trajectory.turn_rewards, strict=True)):
        before = env.env.state[0]
        _, earned, _, _, info = env.step(text)
        if earned != reward:
            raise ValueError(
                f"turn {turn + 1} of an episode on level {trajectory.level_id} earned {reward:g}, but {earned:g} when "
                "it was played again: give the environment and the noise seed with which it was played."
            )
        reply = info["reply"]
        boards = {"observation": before, "prediction": env.env.state[0]}
        for part in () if reply.problem else env.config.state_parts:
            truth = env.state_text.write(boards[part])
            found.append(Description(turn, part, getattr(reply, part), truth, info[f"{part}_right"]))
    return found


class Judge:
    """Asks a judge, and remembers its verdicts.

    Raises:
        ValueError: there is no key for a server that needs one.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self._agent = OpenAIAgent(
            settings.model,
            base_url=settings.base_url,
            max_tokens=settings.max_tokens,
            key_env=settings.key_env,
            timeout=settings.timeout,
            retries=settings.retries,
            reasoning="drop",
        )
        self._remembered: OrderedDict[str, bool] = OrderedDict()
        self._counts = dict.fromkeys(("judged", "judge_failed", "yes", "wrong"), 0)

    def question(self, description: Description) -> str:
        """What the judge is asked."""
        parts = _PARTS[description.part]
        return _QUESTION.format(
            **parts, truth=description.truth, said=description.said.strip(), max_tokens=self.settings.max_tokens
        )

    def ask(
        self, found: Sequence[Description], answered: Callable[[int, Verdict], None] = lambda index, verdict: None
    ) -> list[Verdict]:
        """The verdicts on some descriptions, in their order; ``answered`` is called with each as it comes."""
        return asyncio.run(self._ask(found, answered))

    def rewarded(
        self, trajectories: Sequence[Trajectory], noise_seeds: Iterable[int], env: ReplyEnv
    ) -> list[Trajectory]:
        """The episodes with what the judge's verdicts earn; failed ones where it left a question without a verdict.

        Args:
            trajectories: as they were played, from their starts; failed ones stay as they are.
            noise_seeds: of their transition noise.
            env: an environment like theirs.

        Raises:
            ValueError: the judge answered no question; or see ``descriptions``.
        """
        if not isinstance(env, TurnEnv):
            raise ValueError("judge.base_url: a text task has no boards that a judge could compare; use no judge.")
        found = [
            [] if trajectory.failure is not None else descriptions(trajectory, noise_seed, env)
            for trajectory, noise_seed in zip(trajectories, noise_seeds, strict=True)
        ]
        asked = [description for each in found for description in each]
        verdicts = self.ask(asked)
        self._count(asked, verdicts)
        failures = [verdict.failure for verdict in verdicts if verdict.accepted is None]
        if asked and len(failures) == len(asked):
            raise ValueError(
                f"the judge answered none of {len(asked)} questions, the first with {failures[0]}; see that "
                "judge.model follows the form of the answer and that its server runs, then resume the run."
            )
        given = iter(verdicts)
        return [
            self._paid(trajectory, each, [next(given) for _ in each])
            for trajectory, each in zip(trajectories, found, strict=True)
        ]

    def take_figures(self) -> dict[str, float]:
        """Figures of ``rewarded`` since the last time, see ``ragen_agent.training.metrics.METRICS``."""
        counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
        answered = counts["judged"] - counts["judge_failed"]
        figures: dict[str, float] = {name: counts[name] for name in ("judged", "judge_failed")}
        if answered:
            figures |= {f"judge_{name}": counts[name] / answered for name in ("yes", "wrong")}
        return figures

    async def start(self) -> str | None:
        """See ``OpenAIAgent.start``."""
        try:
            return await self._agent.start()
        finally:
            await self._agent.close()

    async def _ask(self, found: Sequence[Description], answered: Callable[[int, Verdict], None]) -> list[Verdict]:
        free = asyncio.Semaphore(self.settings.concurrency)
        verdicts: dict[str, Verdict] = {}
        same: dict[str, list[int]] = {}
        for index, description in enumerate(found):
            same.setdefault(self.question(description), []).append(index)

        async def judge(question: str) -> None:
            if question in self._remembered:
                self._remembered.move_to_end(question)
                verdicts[question] = Verdict(self._remembered[question])
            else:
                async with free:
                    verdicts[question] = await self._verdict(question)
            for index in same[question]:
                answered(index, verdicts[question])

        try:
            async with asyncio.TaskGroup() as group:
                for question in same:
                    group.create_task(judge(question))
        finally:
            await self._agent.close()
        return [verdicts[self.question(description)] for description in found]

    async def _verdict(self, question: str) -> Verdict:
        messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
        try:
            answer = await self._agent.complete(messages, temperature=_TEMPERATURE, seed=0)
        except AgentFailure as error:
            kind = Failure.TIMEOUT if error.failure is Failure.TIMEOUT else Failure.MODEL_ERROR
            return Verdict(None, f"{kind}: {error.detail}")
        accepted = read_verdict(answer.text)
        if accepted is None:
            cut = " (cut at judge.max_tokens)" if answer.finish_reason == "length" else ""
            return Verdict(None, f"{Failure.MODEL_ERROR}: no verdict at the end of {answer.text[-80:]!r}{cut}")
        self._remembered[question] = accepted
        while len(self._remembered) > self.settings.cache:
            self._remembered.popitem(last=False)
        return Verdict(accepted)

    def _paid(self, trajectory: Trajectory, found: Sequence[Description], verdicts: Sequence[Verdict]) -> Trajectory:
        if not found:
            return trajectory
        rewards = list(trajectory.turn_rewards)
        for description, verdict in zip(found, verdicts, strict=True):
            if verdict.accepted is None:
                kind, _, detail = verdict.failure.partition(": ")
                where = f"the judge of the {description.part} in turn {description.turn + 1}"
                return replace(trajectory, failure=f"{kind}: {where}: {detail}")
            rewards[description.turn] += verdict.accepted * self.settings.reward / 2
        return replace(trajectory, turn_rewards=tuple(rewards))

    def _count(self, found: Sequence[Description], verdicts: Sequence[Verdict]) -> None:
        for description, verdict in zip(found, verdicts, strict=True):
            self._counts["judged"] += 1
            self._counts["judge_failed"] += verdict.accepted is None
            self._counts["yes"] += verdict.accepted is True
            self._counts["wrong"] += verdict.accepted is not None and verdict.accepted != description.right


def check_judge(settings: JudgeSettings) -> str | None:
    """Sees that the judge's server is there, where there is to be one; a notice where it does not list the model.

    Raises:
        ValueError: it cannot be reached, or refuses the key.
        ImportError: the extra ``bench`` is not installed.
    """
    return asyncio.run(Judge(settings).start()) if settings.base_url else None
