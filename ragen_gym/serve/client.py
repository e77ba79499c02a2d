"""Environments played on a server, as Gymnasium environments: single moves, whole replies, and batches."""

from __future__ import annotations

from base64 import b64decode
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ragen_gym.core.levels import Level
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config
from ragen_gym.core.validation import BatchType, items_of
from ragen_gym.envs.batch_outputs import batched
from ragen_gym.envs.messages import parts_of
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.envs.reply_env import text_of_action
from ragen_gym.serve.http_client import RemoteSession
from ragen_gym.serve.serialization import (
    Json,
    Pixels,
    create_body,
    options_body,
    pixels,
    space_of,
)

__all__ = ["RemoteBatchEnv", "RemoteEnv", "RemoteTurnEnv"]

_RENDER_MODES = ("ansi", "rgb_array")


def _opened(url: str, body: Json, render_mode: str | None, token: str | None, timeout: float) -> RemoteSession:
    if render_mode not in (*_RENDER_MODES, None):
        raise ValueError(f"render_mode={render_mode!r} is not known: choose 'ansi', 'rgb_array' or None.")
    return RemoteSession(url, {**body, "render": render_mode == "rgb_array"}, token, timeout)


class _RemoteSingle(gymnasium.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": list(_RENDER_MODES), "render_fps": 4}  # noqa: RUF012  # Gymnasium's

    def __init__(self, remote: RemoteSession, render_mode: str | None) -> None:
        self.render_mode = render_mode
        self._remote = remote
        self.session, self.about = remote.id, remote.about
        self.action_space = space_of(self.about["action_space"])
        self.observation_space = space_of(self.about["observation_space"])

    @property
    def level(self) -> Level:
        """The level of this episode."""
        return Level(self.about["env"].removeprefix("ragen/").removesuffix("-v0"), self._first("levels"))

    @property
    def board(self) -> str:
        """The board as it stands, as text."""
        return self._first("boards")

    def render(self) -> Any:
        """The board as text in mode ``"ansi"``, a uint8 (height, width, 3) array in ``"rgb_array"``, else None."""
        if self.render_mode == "ansi":
            return self.board
        return pixels(self._remote.picture(0)) if self.render_mode else None

    def close(self) -> None:
        """Close the session; a server that is gone has closed it already."""
        self._remote.close()

    def _first(self, what: str) -> str:
        texts: list[str] = self._remote.state()[what]
        if not texts:
            raise gymnasium.error.ResetNeeded(f"there are no {what} yet: call reset() first.")
        return texts[0]

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Json:
        body = {"seed": seed, **options_body(options)}
        answer = self._remote.post("reset", {name: value for name, value in body.items() if value is not None})
        super().reset(seed=int(seed) if isinstance(seed, np.integer) else seed)  # which the server has checked
        return answer


class RemoteEnv(_RemoteSingle):
    """A game of single moves on a server: what ``gymnasium.make`` of its id makes, played over HTTP.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        env: name or id of the game.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        max_episode_steps: moves after which an episode is truncated; None for the id's own.
        token: the server's token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds to wait for a response.
        arguments: those of ``ragen_gym.StepEnv``, but ``regret``.

    Raises:
        ValueError: the server's library does not allow an argument.
        ragen_gym.serve.ServerError: the server is full, wants a token, or the like.
        ragen_gym.serve.ServerUnreachable: no response came.
    """

    def __init__(
        self,
        url: str,
        env: str,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        **arguments: Any,
    ) -> None:
        body = create_body(env, arguments, max_episode_steps=max_episode_steps)
        super().__init__(_opened(url, body, render_mode, token, timeout), render_mode)
        self._mask: npt.NDArray[np.int8] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, as the local environment does."""
        answer = self._reset(seed, options)
        return _observation(answer["observation"], self.observation_space.dtype), self._noted(answer["info"])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one move.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: the action is not one of the game's.
            ragen_gym.serve.SessionLost: the server no longer has the session.
            ragen_gym.serve.ServerUnreachable: no response came.
        """
        answer = self._remote.post("step", {"action": action})
        observation = _observation(answer["observation"], self.observation_space.dtype)
        return observation, answer["reward"], answer["terminated"], answer["truncated"], self._noted(answer["info"])

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """``info["action_mask"]`` of the last reset or step, bool (actions,), under the name that sb3-contrib reads."""
        if self._mask is None:
            raise gymnasium.error.ResetNeeded("no episode was started: call reset() first.")
        return self._mask.astype(np.bool_)

    def _noted(self, info: Json) -> Json:
        info = _info(info)
        self._mask = info["action_mask"].copy()
        return info


class RemoteTurnEnv(_RemoteSingle):
    """A game of whole replies on a server: what ``ragen_gym.make_turn`` makes, played over HTTP.

    Arguments and errors are those of ``RemoteEnv`` and of ``ragen_gym.make_turn``.

    Attributes:
        config: the options of a turn.
        instructions: the system message.
        action_names: what a reply calls the actions.
        over: whether the episode has ended, or none was started.
    """

    def __init__(
        self,
        url: str,
        env: str,
        config: TurnConfig | None = None,
        *,
        render_mode: str | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        **arguments: Any,
    ) -> None:
        turn_options, env_options = split_turn_options(arguments)
        self.config = turn_config(config, turn_options)
        body = create_body(env, env_options, grain="turn", budgets=asdict(self.config))
        super().__init__(_opened(url, body, render_mode, token, timeout), render_mode)
        self.instructions: str = self.about["instructions"]
        self.action_names: tuple[str, ...] = tuple(self.about["action_names"])
        self.over = True
        self._messages: list[dict[str, Any]] = []
        self._images: list[Pixels] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, as the local environment does."""
        answer = self._reset(seed, options)
        self._messages, self._images = [], []
        self._add("system", self.instructions)
        self.over = False
        return self._observed(answer), self._info(answer, None)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a reply; raises as ``RemoteEnv.step`` does."""
        action = text_of_action(action)
        answer = self._remote.post("turn", {"reply": action})
        self._add("assistant", action)
        terminated, truncated = answer["terminated"], answer["truncated"]
        self.over = terminated or truncated
        return self._observed(answer), answer["reward"], terminated, truncated, self._info(answer, action)

    @property
    def images(self) -> tuple[Pixels, ...]:
        """The pictures of the conversation so far, uint8 (height, width, 3), in the order of its image parts."""
        return tuple(self._images)

    def _observed(self, answer: Json) -> Any:
        text = answer["observation"]
        self._add("user", text)
        if not self.config.sees:
            return text
        picture = pixels(b64decode(answer["images"][0]))
        self._images.append(picture)
        return {"text": text, "image": picture.copy()}

    def _add(self, role: str, text: str) -> None:
        content = parts_of(text, picture=role == "user") if self.config.sees else text
        self._messages.append({"role": role, "content": content})

    def _info(self, answer: Json, text: str | None) -> Json:
        """The information of the local environment; the conversation is kept here, and not sent again each turn."""
        info = dict(answer["info"])
        self.action_names = tuple(info.pop("action_names"))
        reply = info["reply"]
        return {
            **info,
            "messages": tuple(map(deepcopy if self.config.sees else dict, self._messages)),
            **({"images": [self._images[-1].copy()]} if self.config.sees else {}),
            "reply": None if reply is None or text is None else _reply(text, reply),
            "actions": tuple(info["actions"]),
            "rewards": tuple(info["rewards"]),
        }


class RemoteBatchEnv(VectorEnv[Any, Any, Any], metaclass=BatchType):
    """``num_envs`` environments on a server: what ``gymnasium.make_vec`` of the id makes, played over HTTP.

    ``autoreset_mode`` is a ``gymnasium.vector.AutoresetMode`` or its value; the other arguments, and the errors, are
    those of ``RemoteEnv``.
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
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        fields = {"num_envs": num_envs, "autoreset": self.autoreset_mode.value, "max_episode_steps": max_episode_steps}
        self._remote = _opened(url, create_body(env, arguments, **fields), render_mode, token, timeout)
        self.session, self.about = self._remote.id, self._remote.about
        self.single_action_space = space_of(self.about["action_space"])
        self.single_observation_space = space_of(self.about["observation_space"])
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batched(self.single_observation_space, num_envs)
        self.metadata = {"render_modes": list(_RENDER_MODES), "autoreset_mode": self.autoreset_mode}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes, as the local batch does."""
        body = options_body(options, "reset_mask")
        if "reset_mask" in body:
            body["reset_mask"] = np.asarray(body["reset_mask"]).tolist()
        if seed is not None:
            body["seed"] = items_of(seed) or seed
        answer = self._remote.post("reset", body)
        return self._observations(answer["observation"]), _infos(answer["info"])

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one move in every environment; raises as ``RemoteEnv.step`` does."""
        answer = self._remote.post("step", {"action": np.asarray(actions)})
        infos = _infos(answer["info"])
        if answer.get("final"):
            final = _infos(answer["final"])
            observations = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(final["_success"]):
                observations[i] = _observation(answer["final"]["observation"][i], np.uint8)
            mask = final["_success"]
            infos |= {"final_obs": observations, "_final_obs": mask, "final_info": final, "_final_info": mask.copy()}
        return (
            self._observations(answer["observation"]),
            np.array(answer["reward"], np.float64),
            np.array(answer["terminated"], np.bool_),
            np.array(answer["truncated"], np.bool_),
            infos,
        )

    def render(self) -> tuple[Any, ...] | None:
        """The boards as text in render mode ``"ansi"``, as pictures in ``"rgb_array"``, None without a mode."""
        if self.render_mode == "ansi":
            return tuple(self._remote.state()["boards"])
        return tuple(pixels(self._remote.picture(i)) for i in range(self.num_envs)) if self.render_mode else None

    def close_extras(self, **kwargs: Any) -> None:
        """Close the session; a server that is gone has closed it already."""
        self._remote.close()

    def _observations(self, observations: list[Any]) -> Any:
        if isinstance(self.single_observation_space, gymnasium.spaces.Text):
            return tuple(observations)
        return np.array(observations, self.single_observation_space.dtype)


def _observation(observation: Any, dtype: Any) -> Any:
    return observation if isinstance(observation, str) else np.array(observation, dtype)


def _info(info: Json) -> Json:
    return {**info, "action_mask": np.array(info["action_mask"], np.int8)}


def _reply(text: str, fields: Json) -> Reply:
    values: Json = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    values["problem"] = values["problem"] and Problem(values["problem"])
    return Reply(text, **values)


def _infos(info: Json) -> Json:
    which = info["which"]
    mask = np.ones(len(info["success"]), np.bool_) if which is None else np.array(which, np.bool_)
    values = {
        "level_id": np.array(info["level_id"], dtype=object),
        "action_mask": np.array(info["action_mask"], np.int8),
        "success": np.array(info["success"], np.bool_),
    }
    return values | {f"_{name}": mask.copy() for name in values}
