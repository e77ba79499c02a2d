"""A batch that is played on a server, as a Gymnasium vector environment: one request moves all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ragen_gym.envs.looks import batched
from ragen_gym.serve.connection import Connection
from ragen_gym.serve.wire import create_body, options_body, pixels, space_of

__all__ = ["RemoteBatchEnv"]


class RemoteBatchEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments on a server: what ``gymnasium.make_vec`` of the id makes, played over HTTP.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        env: name or id of the game.
        num_envs: number of environments.
        max_episode_steps: steps after which an episode is truncated; None for the id's own.
        autoreset_mode: a `gymnasium.vector.AutoresetMode` or its value.
        render_mode: ``"ansi"``, ``"rgb_array"`` (needs Pillow) or None.
        token: the server's token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds after which an answer is no longer waited for.
        arguments: those of `ragen_gym.StepEnv`.

    Raises:
        ValueError: the server's library refuses an argument.
        ragen_gym.serve.ServerRefused: the server is full, wants a token, or the like.
        ragen_gym.serve.ServerUnreachable: no answer came.
    """

    def __init__(
        self,
        url: str,
        env: str,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        **arguments: Any,
    ) -> None:
        if render_mode not in ("ansi", "rgb_array", None):
            raise ValueError(f"render_mode={render_mode!r} is not a batch's: choose 'ansi', 'rgb_array' or None.")
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        fields = {"num_envs": num_envs, "autoreset": self.autoreset_mode.value, "max_episode_steps": max_episode_steps}
        body = {**create_body(env, arguments, **fields), "render": render_mode == "rgb_array"}
        self._connection = Connection(url, token, timeout)
        try:
            self.about: dict[str, Any] = self._connection.ask("POST", "/sessions", body)
        except BaseException:
            self._connection.close()
            raise
        self.session: str = self.about["session"]
        self._path = f"/sessions/{self.session}"
        self.single_action_space = space_of(self.about["action_space"])
        self.single_observation_space = space_of(self.about["observation_space"])
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batched(self.single_observation_space, num_envs)
        self.metadata = {"render_modes": ["ansi", "rgb_array"], "autoreset_mode": self.autoreset_mode}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes, as the local batch does."""
        body = options_body(options)
        if "reset_mask" in body:
            body["which"] = np.asarray(body.pop("reset_mask")).tolist()
        if seed is not None:
            body["seed"] = seed if isinstance(seed, int) else list(seed)
        answer = self._connection.ask("POST", f"{self._path}/batch/reset", body)
        return self._observations(answer["observations"]), _infos(answer["info"])

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one move in every environment; raises as `ragen_gym.serve.RemoteEnv.step` does."""
        moves = np.asarray(actions)
        if moves.shape != (self.num_envs,) or moves.dtype.kind not in "iu":
            raise ValueError(f"actions must be {self.num_envs} integers; got {moves.dtype} of shape {moves.shape}.")
        answer = self._connection.ask("POST", f"{self._path}/batch/step", {"actions": moves.tolist()})
        infos = _infos(answer["info"])
        if answer.get("final"):
            final = _infos(answer["final"])
            observations = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(final["_success"]):
                observations[i] = self._one(answer["final"]["observations"][i])
            mask = final["_success"]
            infos |= {"final_obs": observations, "_final_obs": mask, "final_info": final, "_final_info": mask.copy()}
        return (
            self._observations(answer["observations"]),
            np.array(answer["rewards"], np.float64),
            np.array(answer["terminated"], np.bool_),
            np.array(answer["truncated"], np.bool_),
            infos,
        )

    def render(self) -> tuple[Any, ...] | None:
        """The boards as text in render mode ``"ansi"``, as pictures in ``"rgb_array"``, None without a mode."""
        if self.render_mode is None:
            return None
        if self.render_mode == "ansi":
            return tuple(self._connection.ask("GET", self._path)["boards"])
        paths = [f"{self._path}/render.png?index={i}" for i in range(self.num_envs)]
        return tuple(pixels(self._connection.picture(path)) for path in paths)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the session; a server that is gone has closed it already."""
        try:
            self._connection.ask("DELETE", self._path)
        except (ConnectionError, RuntimeError):
            pass
        finally:
            self._connection.close()

    def _observations(self, observations: list[Any]) -> Any:
        return tuple(observations) if isinstance(observations[0], str) else self._one(observations)

    def _one(self, observation: Any) -> Any:
        return observation if isinstance(observation, str) else np.array(observation, np.uint8)


def _infos(info: dict[str, Any]) -> dict[str, Any]:
    which = info["which"]
    mask = np.ones(len(info["success"]), np.bool_) if which is None else np.array(which, np.bool_)
    values = {
        "level_id": np.array(info["level_id"], dtype=object),
        "action_mask": np.array(info["action_mask"], np.int8),
        "success": np.array(info["success"], np.bool_),
    }
    return values | {f"_{name}": mask.copy() for name in values}
