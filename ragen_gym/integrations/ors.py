"""The games as environments of the Open Reward Standard (openreward 0.1): a task is a level."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ragen_gym.core.levels import SPLITS
from ragen_gym.integrations.requirement import requirement
from ragen_gym.integrations.rollout import Rollout, episode_name, noise_seed_of

with requirement("'openreward>=0.1.167'"):
    from openreward.environments import Environment, Message, Server, TextBlock, ToolOutput, tool
    from pydantic import BaseModel, Field

TASKS = 10_000  # of each split; task i is the level of seed i


class Task(BaseModel, extra="forbid"):
    """The level of an episode."""

    seed: int = Field(ge=0, strict=True)
    split: Literal["train", "validation", "test"]
    noise_seed: int | None = Field(None, ge=0, strict=True)  # of the transition noise; None: of this session alone
    id: str | None = None


class Reply(BaseModel):
    """Argument of the tool."""

    text: str = Field(description="The whole reply to the last message, in the form that the instructions ask for.")


class GameEnvironment(Environment):
    """A session of one game. It plays one episode, whose reward is the sum of the rewards of the replies."""

    game: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}  # see ``Rollout``

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {})
        task = Task.model_validate(self.task_spec)
        self._rollout = Rollout(self.game, split=task.split, **self.options)
        noise_seed = noise_seed_of(episode_name()) if task.noise_seed is None else task.noise_seed
        self._rollout.begin(task.seed, noise_seed)
        self._begun = self._rollout.messages
        self._level = {"seed": task.seed, "noise_seed": noise_seed, "level_id": self._rollout.level_id}

    @classmethod
    def list_splits(cls) -> list[str]:  # noqa: D102
        return list(SPLITS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """The first levels of a split.

        Raises:
            ValueError: no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown: choose one of {', '.join(SPLITS)}.")
        return [{"id": f"{split}-{seed}", "seed": seed, "split": split} for seed in range(TASKS)]

    def get_prompt(self) -> list[TextBlock]:
        """The instructions and the first message, for harnesses that know no roles."""
        return [TextBlock(text=each["content"]) for each in self._begun]

    def get_messages(self) -> list[Message]:
        """The system message and the first user message."""
        return [Message(role=each["role"], blocks=[TextBlock(text=each["content"])]) for each in self._begun]

    @tool
    async def reply(self, given: Reply) -> ToolOutput:
        """Answer the last message with a reply in the form that the instructions ask for; returns the next message."""
        text = self._rollout.reply(given.text)
        return ToolOutput(
            blocks=[TextBlock(text=text)],
            reward=self._rollout.rewards[-1],
            finished=self._rollout.over,
            metadata={**self._level, **self._rollout.metrics()},
        )


def game_server(game: str, /, **options: Any) -> Server:
    """The server of a game. Arguments as of ``Rollout``, but for ``split``, which the task names.

    Raises:
        ValueError: see ``Rollout``.
    """
    name = Rollout(game, **options).env.name  # an unknown game or option is an error here, not in a session
    environment = type(name, (GameEnvironment,), {"game": game, "options": options, "__doc__": GameEnvironment.__doc__})
    return Server([environment])
