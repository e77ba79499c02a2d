"""The benchmark's suites as a task of Inspect AI (0.3.285), with the scores of ``ragen-gym bench``.

``inspect eval ragen_gym/suite -T name=ragen-v1 --model MODEL`` plays one rollout of each level, ``--epochs K`` plays K.
Inspect generates the replies and writes the log; the benchmark plays the episode. ``all`` is its overall score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inspect_ai import Task, model, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, grouped, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ragen_gym.bench.agent import Answer, Message, as_data_urls
from ragen_gym.bench.episode import play_episode
from ragen_gym.bench.episode_plan import PlannedEpisode, RunOptions, Timeouts, make_env
from ragen_gym.bench.suites import Suite, load_suite, noise_seed

SUCCESS = [grouped(mean(), "split", all="groups"), stderr(cluster="family")]


@task
def suite(name: str = "smoke", split: str | None = None, limit: int | None = None) -> Task:
    """A suite, by name or path: all of it, or one split, or the first ``limit`` instances of each split."""
    chosen, samples = load_suite(name), []
    RunOptions(limit=limit)  # which checks it
    if split is not None and split not in (names := [each.name for each in chosen.splits]):
        raise ValueError(f"{name} has no split {split!r}: choose one of {', '.join(names)}.")
    for each in (each for each in chosen.splits if split in (None, each.name)):
        env = make_env(each)
        for index in range(len(each.levels[:limit])):
            about = {"split": each.name, "index": index, "family": each.families[index], "suite": chosen.hash}
            each.begin(env, index, 0)
            samples.append(Sample(input=env.message_text, id=f"{each.name}/{index}", metadata=about))
    config = model.GenerateConfig(temperature=chosen.temperature)
    return Task(dataset=samples, solver=play(chosen), scorer=episode(), config=config, name=chosen.name)


@solver
def play(chosen: Suite) -> Solver:
    """Plays a sample's episode; its record goes into the store as ``episode``."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        split = next(each for each in chosen.splits if each.name == state.metadata["split"])
        place = split, state.metadata["index"], state.epoch - 1
        agent = _Model(state, generate)
        planned = PlannedEpisode(chosen.name, *place, noise_seed(chosen, *place), 0, chosen.temperature, "")
        record = await play_episode(agent, make_env(split), planned, Timeouts())
        if agent.error or record.failure:
            raise agent.error or RuntimeError(f"{record.failure}: {record.detail}")
        state.store.set("episode", record.to_dict())
        return state

    return solve


class _Model:
    """The model under evaluation as an agent of the benchmark; its error is kept for Inspect."""

    name = "inspect"

    def __init__(self, state: TaskState, generate: Generate) -> None:
        self.state, self.generate = state, generate
        self.error: Exception | None = None

    async def reply(self, messages: Sequence[Message], task: Any) -> Answer:
        self.state.messages = [_chat_message(each) for each in as_data_urls(messages)]
        try:
            message = (await self.generate(self.state)).output.message
        except Exception as error:
            self.error = error
            raise
        thought = [part.reasoning for part in message.content if isinstance(part, model.ContentReasoning)]
        return Answer(message.text, reasoning="\n".join(thought) or None)


def _chat_message(message: Message) -> Any:
    kind, parts = getattr(model, f"ChatMessage{message['role'].capitalize()}"), message["content"]
    if isinstance(parts, str):
        return kind(content=parts)
    seen = {"text": model.ContentText, "image_url": lambda image_url, type: model.ContentImage(image=image_url["url"])}
    return kind(content=[seen[part["type"]](**part) for part in parts])


@scorer(metrics={"success": SUCCESS, "return": [mean()], "malformed": [mean()]})
def episode() -> Scorer:
    """Success (0 or 1), the sum of rewards, and the share of malformed replies."""

    async def score(state: TaskState, target: Target) -> Score:
        played = state.store.get("episode")
        malformed = sum(turn["problem"] is not None for turn in played["turns"]) / len(played["turns"])
        rates = {"success": float(played["success"]), "malformed": malformed}
        return Score(value=rates | {"return": played["total_reward"]})

    return score
