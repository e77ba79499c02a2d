"""Sessions of many environments that are moved together."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from ragen_gym.envs.vector import BatchEnv
from ragen_gym.registry import Row
from ragen_gym.serve.grains import Grain, Json, Pixels, picture, plain, space_json
from ragen_gym.serve.refusals import library_errors
from ragen_gym.serve.requests import BatchResetRequest, ResetRequest

__all__ = ["BatchGrain"]


class BatchGrain(Grain):
    """Batches of moves: ``gymnasium.make_vec`` of the row's id."""

    def __init__(self, row: Row, num_envs: int, autoreset: str, arguments: Json) -> None:
        self.env = gymnasium.make_vec(row.id, num_envs, autoreset_mode=autoreset, **arguments)
        base: Any = self.env.unwrapped
        self._base: BatchEnv = base
        self._horizon = self.env.spec and self.env.spec.max_episode_steps
        self.num_envs = num_envs

    def about(self) -> Json:
        """See `Grain`."""
        return {
            "action_names": [action.name.capitalize() for action in self._base.game.Action],
            "action_space": space_json(self.env.single_action_space),
            "observation_space": space_json(self.env.single_observation_space),
            "max_episode_steps": self._horizon,
        }

    def reset(self, request: BatchResetRequest | ResetRequest) -> Json:
        """See `Grain`."""
        which = getattr(request, "which", None)
        options: Json = {
            "level": request.level,
            "noise_seed": request.noise_seed,
            "reset_mask": None if which is None else np.array(which, np.bool_),
        }
        with library_errors():
            observations, infos = self._base.reset(seed=request.seed, options=options)
        self.playing = True
        return {"observations": plain(observations), "info": _batch_info(infos)}

    def step(self, actions: list[int]) -> Json:
        """Play one move in every environment."""
        with library_errors():
            moves = np.array(actions, dtype=object if any(abs(a) >= 2**62 for a in actions) else np.int64)
            observations, rewards, terminated, truncated, infos = self._base.step(moves)
        answer = {
            "observations": plain(observations),
            "rewards": rewards.tolist(),
            "terminated": terminated.tolist(),
            "truncated": truncated.tolist(),
            "info": _batch_info(infos),
        }
        if "final_info" in infos:
            answer["final"] = {**_batch_info(infos["final_info"]), "observations": plain(infos["final_obs"])}
        return answer

    def boards(self) -> list[str]:
        """See `Grain`."""
        return list(self._base.texts) if self.playing else []

    def levels(self) -> list[str]:
        """See `Grain`."""
        return [level.text for level in self._base.levels] if self.playing else []

    def pixels(self, index: int) -> Pixels:
        """See `Grain`."""
        return picture(self.env, index, self.num_envs)

    def close(self) -> None:
        """See `Grain`."""
        self.env.close()


def _batch_info(infos: Json) -> Json:
    which = infos["_success"]
    return {
        "which": None if which.all() else which.tolist(),
        "level_id": infos["level_id"].tolist(),
        "action_mask": infos["action_mask"].tolist(),
        "success": infos["success"].tolist(),
    }
