"""The games as environments of SkyRL-gym (0.4). Its rows are those of ``rows`` with a column ``env_class``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_gym.integrations.requirement import requirement
from ragen_gym.integrations.rollout import Rollout, episode_name, noise_seed_of

with requirement("skyrl-gym"):
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class GameEnv(BaseTextEnv):
    """One episode. Arguments as of ``Rollout``; ``extras`` are the columns of the row, which name split and seed.

    Args:
        env_config: SkyRL's configuration of environments; what it says under the environment's id are options.
        extras: ``game``, ``split``, ``seed`` and, where an episode is to be replayed, ``noise_seed``.
    """

    def __init__(
        self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__()
        row = {"game": "FrozenLake", "split": "train", "seed": None, **options, **(extras or {})}
        self._seed, self._noise_seed = row["seed"], row.get("noise_seed")
        self._rollout = Rollout(row["game"], split=row["split"], **{**dict(env_config or {}), **row.get("options", {})})
        self.max_turns = self._rollout.env.max_turns

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Start the episode; the conversation, which is the row's ``prompt``, and its ids.

        Raises:
            ValueError: the prompt is not that of the row's level.
        """
        noise_seed = noise_seed_of(episode_name()) if self._noise_seed is None else self._noise_seed
        self._rollout.begin(self._seed, noise_seed)
        begun = self._rollout.messages
        if prompt and [message["content"] for message in prompt] != [message["content"] for message in begun]:
            raise ValueError(
                f"the prompt is not that of seed {self._seed}: were the rows written with other options of the game?"
            )
        return begun, {"level_id": self._rollout.level_id, "seed": self._rollout.seed, "noise_seed": noise_seed}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take a reply; at the end there is no further observation."""
        message = self._rollout.reply(action)
        self.turns += 1
        over, reward = self._rollout.over, self._rollout.rewards[-1]
        observations = [] if over else [{"role": "user", "content": message}]
        return BaseTextEnvStepOutput(
            observations=observations, reward=reward, done=over, metadata={"success": self._rollout.info["success"]}
        )

    def get_metrics(self) -> dict[str, Any]:
        """See ``ragen_gym.integrations.METRICS``; SkyRL averages them."""
        return self._rollout.metrics()


def register_game(name: str, game: str, /, **options: Any) -> None:
    """Make a game known to ``skyrl_gym.make`` and to ``env_class`` of rows under a name."""
    skyrl_gym.register(name, "ragen_gym.integrations.skyrl:GameEnv", {"game": game, "options": options})
