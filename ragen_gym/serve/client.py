"""Environments played on a server, as Gymnasium environments: single moves, whole replies, and batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ragen_gym.core.levels import Level
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config
from ragen_gym.envs.batch_observations import batched
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.serve.http_client import Connection
from ragen_gym.serve.serialization import create_body, given, options_body, pixels, space_of

__all__ = ["RemoteBatchEnv", "RemoteEnv", "RemoteTurnEnv"]


class _Remote(gymnasium.Env[Any, Any]):
    """What both grains share."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's

    def __init__(
        self,
        url: str,
        body: dict[str, Any],
        render_mode: str | None,
        token: str | None,
        timeout: float,
        again: dict[str, Any],
    ) -> None:
        if render_mode not in (*self.metadata["render_modes"], None):
            raise ValueError(f"render_mode={render_mode!r} is not known: choose 'ansi', 'rgb_array' or None.")
        self.render_mode = render_mode
        self._connection = Connection(url, token, timeout)
        try:
            made = self._connection.ask("POST", "/sessions", {**body, "render": render_mode == "rgb_array"})
        except BaseException:
            self._connection.close()
            raise
        self.session: str = made["session"]
        self.about: dict[str, Any] = made
        self.action_space, self.observation_space = (
            space_of(made[kind]) for kind in ("action_space", "observation_space")
        )
        self._path = f"/sessions/{self.session}"
        self._closed = False
        name = made["env"].removesuffix("-v0")
        self.spec = EnvSpec(
            f"{name}-remote-{made['grain']}-v0",
            f"{type(self).__module__}:{type(self).__name__}",
            order_enforce=False,
            disable_env_checker=True,
            max_episode_steps=made["max_episode_steps"],
            kwargs={"url": url, "env": made["env"], "timeout": timeout, **again},  # never the token
        )

    @property
    def level(self) -> Level:
        """The level of this episode."""
        text = self._connection.ask("GET", self._path)["levels"]
        if not text:
            raise gymnasium.error.ResetNeeded("there is no level yet: call reset() first.")
        return Level(self.about["env"].removeprefix("ragen/").removesuffix("-v0"), text[0])

    @property
    def board(self) -> str:
        """The board as it stands, as text."""
        boards = self._connection.ask("GET", self._path)["boards"]
        if not boards:
            raise gymnasium.error.ResetNeeded("there is no board yet: call reset() first.")
        text: str = boards[0]
        return text

    def render(self) -> Any:
        """The board as text in mode ``"ansi"``, a uint8 (height, width, 3) array in ``"rgb_array"``, else None."""
        if self.render_mode == "ansi":
            return self.board
        return pixels(self._connection.picture(f"{self._path}/render.png")) if self.render_mode else None

    def close(self) -> None:
        """Close the session; a server that is gone has closed it already."""
        if self._closed:
            return
        self._closed = True
        try:
            self._connection.ask("DELETE", self._path)
        except (ConnectionError, RuntimeError):
            pass
        finally:
            self._connection.close()

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        super().reset(seed=seed)
        body = {"seed": seed, **options_body(options)}
        answer: dict[str, Any] = self._connection.ask("POST", f"{self._path}/reset", given(body))
        return answer


class RemoteEnv(_Remote):
    """A game of single moves on a server: what ``gymnasium.make`` of its id makes, played over HTTP.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        env: name or id of the game.
        render_mode: ``"ansi"``, ``"rgb_array"`` (needs Pillow) or None.
        max_episode_steps: moves after which an episode is truncated; None for the id's own.
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
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        **arguments: Any,
    ) -> None:
        body = create_body(env, arguments, max_episode_steps=max_episode_steps)
        super().__init__(url, body, render_mode, token, timeout, arguments)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, as the local environment does."""
        answer = self._reset(seed, options)
        return self._observation(answer["observation"]), _info(answer["info"])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one move.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: the action is not one of the game's.
            ragen_gym.serve.SessionLost: the server no longer has the session.
            ragen_gym.serve.ServerUnreachable: no answer came.
        """
        number = np.asarray(action)
        if number.ndim or number.dtype.kind not in "iu":
            raise ValueError(f"action {action!r} is not an integer.")
        answer = self._connection.ask("POST", f"{self._path}/step", {"action": int(action)})
        observation = self._observation(answer["observation"])
        return observation, answer["reward"], answer["terminated"], answer["truncated"], _info(answer["info"])

    def _observation(self, observation: Any) -> Any:
        return observation if isinstance(observation, str) else np.array(observation, self.observation_space.dtype)


class RemoteTurnEnv(_Remote):
    """A game of whole replies on a server: what `ragen_gym.make_turn` makes, played over HTTP.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        env: name or id of the game.
        config: the options of a turn.
        render_mode: ``"ansi"``, ``"rgb_array"`` (needs Pillow) or None.
        token: the server's token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds after which an answer is no longer waited for.
        arguments: those of `ragen_gym.make_turn`.

    Attributes:
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
        budgets = asdict(self.config)
        body = create_body(env, env_options, grain="turn", budgets=budgets)
        super().__init__(url, body, render_mode, token, timeout, {**budgets, **env_options})
        self.instructions: str = self.about["instructions"]
        self.action_names: tuple[str, ...] = tuple(self.about["action_names"])
        self.over = True
        self._messages: list[dict[str, str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as the local environment does."""
        answer = self._reset(seed, options)
        self._messages = [{"role": "system", "content": self.instructions}]
        self.over = False
        return answer["observation"], self._heard(answer, None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply; raises as `RemoteEnv.step` does."""
        if not isinstance(action, str):
            raise ValueError(f"a turn's action is the reply's text, not {type(action).__name__}: {action!r}.")
        answer = self._connection.ask("POST", f"{self._path}/turn", {"reply": action})
        self._messages.append({"role": "assistant", "content": action})
        terminated, truncated = answer["terminated"], answer["truncated"]
        self.over = terminated or truncated
        return answer["observation"], answer["reward"], terminated, truncated, self._heard(answer, action)

    def _heard(self, answer: dict[str, Any], text: str | None) -> dict[str, Any]:
        """The information of the local environment; the conversation is kept here, and not sent again each turn."""
        self._messages.append({"role": "user", "content": answer["observation"]})
        info = dict(answer["info"])
        self.action_names = tuple(info.pop("action_names"))
        reply = info["reply"]
        return {
            **info,
            "messages": tuple(map(dict, self._messages)),
            "reply": None if reply is None or text is None else _reply(text, reply),
            "actions": tuple(info["actions"]),
            "rewards": tuple(info["rewards"]),
        }


def _info(info: dict[str, Any]) -> dict[str, Any]:
    return {**info, "action_mask": np.array(info["action_mask"], np.int8)}


def _reply(text: str, read: dict[str, Any]) -> Reply:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}
    return Reply(text, **{**values, "problem": values["problem"] and Problem(values["problem"])})


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
