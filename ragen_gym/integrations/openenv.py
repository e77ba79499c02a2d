"""The games as an environment of OpenEnv (0.10), one for each session of its server, and the app around it."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from openenv.core.env_server import Environment, create_app, types

from ragen_gym import __version__
from ragen_gym.core.levels import SPLITS
from ragen_gym.integrations.rollout import Rollout

TASKS = 10_000  # of each split; task i is the level of seed i


class GameReply(types.Action):
    """A model's whole reply."""

    text: str


class GameMessage(types.Observation):
    """The next user message; the first one begins with the instructions. The reward is 1 for the reply that wins."""

    text: str
    success: bool = False
    game_reward: float = 0.0  # the game's own, of the turn
    metrics: dict[str, float] = {}  # noqa: RUF012  # pydantic copies it; see ragen_gym.integrations.METRICS


class GameEnvironment(Environment[GameReply, GameMessage, types.State]):
    """A game of the registry. Arguments as of ``Rollout``; ``reset`` chooses the split."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, game: str, /, **options: Any) -> None:
        super().__init__()
        self._game, self._now = game, types.State()
        self._rollout_of = cache(lambda split: Rollout(game, split=split, **options))
        self._rollout = self._rollout_of("train")

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, split: str = "train", **chosen: Any
    ) -> GameMessage:
        """Start an episode of the level ``seed`` (None draws one) or of the task ``index``, with ``seed`` as its noise.

        ``chosen`` may hold ``index``, ``noise_seed``, in which the members of a rollout group differ, and
        ``injected_state``: the ``seed``, ``split``, ``noise_seed`` and ``replies`` of a state to start from.
        """
        state = chosen.get("injected_state") or {}
        index, split = chosen.get("index"), state.get("split", split)
        level = state.get("seed", seed if index is None else self.get_task(split, index)["seed"])
        noise = state.get("noise_seed", chosen.get("noise_seed", None if index is None else seed))
        self._rollout = self._rollout_of(split)
        text = self._rollout.begin(level, noise)
        for reply in state.get("replies", ()):
            text = self._rollout.reply(reply)
        level, name = self._rollout.seed, episode_id or self._rollout.level_id
        self._now = types.State(episode_id=name, split=split, seed=level, noise_seed=noise)
        return GameMessage(text=f"{self._rollout.instructions}\n\n{text}")

    def step(self, action: GameReply, timeout_s: float | None = None, **others: Any) -> GameMessage:
        """Take a reply."""
        rollout, text = self._rollout, self._rollout.reply(action.text)
        self._now.step_count += 1
        won, earned = rollout.info["success"], {"game_reward": rollout.rewards[-1], "metrics": rollout.metrics()}
        return GameMessage(text=text, success=won, **earned, reward=float(won), done=rollout.over)

    @property
    def state(self) -> types.State:  # noqa: D102
        return self._now

    def get_metadata(self) -> types.EnvironmentMetadata:  # noqa: D102
        about = self._rollout.instructions
        return types.EnvironmentMetadata(name=self._game, description=about, version=__version__, author="ragen-gym")

    def list_splits(self) -> list[str]:  # noqa: D102
        return list(SPLITS)

    def num_tasks(self, split: str) -> int:  # noqa: D102
        return TASKS if split in SPLITS else 0

    def get_task(self, split: str, index: int) -> dict[str, Any]:  # noqa: D102
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(f"{split} has {self.num_tasks(split)} tasks and no task {index}.")
        return {"id": f"{split}-{index}", "index": index, "split": split, "seed": index}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:  # noqa: D102
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

    list_tasks = get_task_range


def game_app(game: str, /, *, name: str, sessions: int = 64, **options: Any) -> Any:
    """The FastAPI app that serves a game to at most so many sessions at once."""
    Rollout(game, **options)  # an unknown game or option is an error here, not in a session
    return create_app(partial(GameEnvironment, game, **options), GameReply, GameMessage, name, sessions)
