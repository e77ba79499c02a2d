"""The games as a taskset and an environment of verifiers (0.4). A task is a level; the game answers the one agent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import verifiers.v1 as vf

from ragen_gym.integrations.rollout import METRICS, Rollout, noise_seed_of


class GameConfig(vf.TasksetConfig):
    """Levels, under ``--env.taskset.*``: the arguments of ``Rollout``, and the seed of the first task."""

    game: str = "FrozenLake"
    split: str | None = "train"
    first_seed: int = 0
    options: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it


class GameData(vf.TaskData):
    """One level."""

    seed: int
    game: str
    split: str | None
    options: dict[str, Any]


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    """Scores what the environment noted in ``trace.info``; a trace that was never played has earned nothing."""

    def rollout(self) -> Rollout:  # noqa: D102
        return Rollout(self.data.game, split=self.data.split, **self.data.options)

    @vf.reward(weight=1.0)
    async def game_return(self, trace: vf.Trace) -> float:
        """The sum of the turns' rewards."""
        return float(trace.info.get("game_return", 0.0))

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """See ``ragen_gym.integrations.METRICS``."""
        return dict(trace.info.get("episode", dict.fromkeys(METRICS, 0.0) | {"unfinished": 1.0}))

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        """True if the level can be won within the budgets, by the oracle; None where there is none."""
        rollout = self.rollout()
        rollout.begin(self.data.seed)
        chance = rollout.optimal_success()
        return None if chance is None else chance > 0


class GameTaskset(vf.Taskset[GameTask, GameConfig]):
    """One task for each seed, without end."""

    INFINITE = True

    def load(self) -> Iterator[GameTask]:  # noqa: D102
        row = {name: getattr(self.config, name) for name in ("game", "split", "options")}
        rollout = Rollout(row["game"], split=row["split"], **row["options"])
        for seed in count(self.config.first_seed):
            message = rollout.begin(seed)
            name = f"{rollout.env.name}-{self.config.split or 'all'}-{seed}"
            data = GameData(name=name, system_prompt=rollout.instructions, prompt=message, seed=seed, **row)
            yield GameTask(data.model_copy(update={"id": rollout.level_id}), self.config.task)


class GameEnvConfig(vf.EnvConfig):
    """The one agent; a chat loop in a process of its own, unless ``--env.agent.*`` says otherwise."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class GameEnv(vf.Env[GameEnvConfig]):
    """The game answers the agent. The trace's id seeds the transition noise: rollouts of a task differ in it."""

    async def run(self, task: GameTask, agents: vf.Agents) -> None:  # noqa: D102
        rollout = task.rollout()
        async with agents.agent.interaction(task) as interaction:
            info = interaction.trace.info
            info["noise_seed"] = noise_seed_of(interaction.trace.id)
            rollout.begin(task.data.seed, info["noise_seed"])
            segment = await interaction.turn()
            while not segment.terminated:
                said = next((each for each in reversed(segment.messages) if each.role == "assistant"), "")
                message = rollout.reply_message(said)
                info |= {"game_return": rollout.total, "episode": rollout.metrics()}
                if rollout.over:
                    break
                segment = await interaction.turn(message)


def environment(package: str, **options: Any) -> vf.Env[Any]:
    """Result of an exported package's ``load_environment``, with fields of its ``GameConfig``."""
    return vf.load_environment(vf.env_config_type(package)(taskset={"id": package, **options}))
