"""Environments played on a server, as Gymnasium environments: single moves and whole replies."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import gymnasium
import httpx
import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import Level, item_text
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config
from ragen_gym.core.validation import checked_options, items_of, shown
from ragen_gym.envs.messages import parts_of
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.envs.reply_env import text_of_action
from ragen_gym.serve.serialization import Json, Pixels, pixels, space_of

#: Arguments of ``ragen_gym.StepEnv`` that the server takes as fields of their own; all others are options of the game.
_FIELDS = ("split", "preset", "levels", "skip_invalid", "observation", "text_format", "vocabulary", "tile_size")


class ServerUnreachable(ConnectionError):
    """No response came: the server is not there, or the connection broke. Whether a move was played is not known."""


class SessionLost(RuntimeError):
    """The server no longer has the session: it expired, was closed, or the server was restarted.

    Its episode is lost; a new environment plays it again from its seed.
    """


class ServerError(RuntimeError):
    """The server has a reason of its own not to carry a request out: it is full, or wants a token.

    Attributes:
        code: the server's code of the reason.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Remote(gymnasium.Env[Any, Any]):
    """A session on a server, and the kept-alive connection to it."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's

    def __init__(self, url: str, body: Json, render_mode: str | None, token: str | None, timeout: float) -> None:
        if render_mode not in (*self.metadata["render_modes"], None):
            raise ValueError(f"render_mode={render_mode!r} is not known: choose 'ansi', 'rgb_array' or None.")
        self.render_mode, self.url = render_mode, url
        token = token or os.environ.get("RAGEN_GYM_TOKEN")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        try:
            self.about = _json(self._send("POST", "/sessions", {**body, "render": render_mode == "rgb_array"}))
        except BaseException:
            self._http.close()
            raise
        self.session: str = self.about["session"]
        self.action_space = space_of(self.about["action_space"])
        self.observation_space = space_of(self.about["observation_space"])

    @property
    def level(self) -> Level:
        """The level of this episode."""
        return Level(self.about["env"].removeprefix("ragen/").removesuffix("-v0"), self._stands("level"))

    @property
    def board(self) -> str:
        """The board as it stands, as text."""
        return self._stands("board")

    def render(self) -> Any:
        """The board as text in mode ``"ansi"``, a uint8 (height, width, 3) array in ``"rgb_array"``, else None."""
        if self.render_mode == "ansi":
            return self.board
        return pixels(self._send("GET", f"/sessions/{self.session}/render.png").content) if self.render_mode else None

    def close(self) -> None:
        """Close the session; a server that is gone has closed it already."""
        if not self._http.is_closed:
            with closing(self._http), suppress(ConnectionError, RuntimeError):
                self._send("DELETE", f"/sessions/{self.session}")

    def _stands(self, what: str) -> str:
        text: str | None = _json(self._send("GET", f"/sessions/{self.session}"))[what]
        if text is None:
            raise gymnasium.error.ResetNeeded(f"there is no {what} yet: call reset() first.")
        return text

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Json:
        body = {"seed": seed, **checked_options(options, ("level", "noise_seed"))}
        if isinstance(body.get("level"), Level):
            body["level"] = body["level"].text
        answer = self._post("reset", {name: value for name, value in body.items() if value is not None})
        super().reset(seed=int(seed) if isinstance(seed, np.integer) else seed)  # which the server has checked
        return answer

    def _post(self, operation: str, body: Json) -> Json:
        return _json(self._send("POST", f"/sessions/{self.session}/{operation}", body))

    def _send(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        if self._http.is_closed:
            raise gymnasium.error.ClosedEnvironmentError("this environment was closed: make a new one.")
        content = None if body is None else json.dumps(body, default=_of_numpy).encode()
        try:
            answer = self._http.request(method, path, content=content)
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"no answer from {self.url} to {method} {path} ({type(error).__name__}: {error}): is the server "
                "running? Start it with ragen-gym serve, or correct the address; a server's sessions end with it, so "
                "make a new environment then."
            ) from None  # the causes are the HTTP library's own frames, and end in the words that are quoted
        if answer.is_error:
            raise _error(answer)
        return answer


class RemoteEnv(_Remote):
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
        body = _create_body(env, arguments, max_episode_steps=max_episode_steps)
        super().__init__(url, body, render_mode, token, timeout)
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
        answer = self._post("step", {"action": action})
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


class RemoteTurnEnv(_Remote):
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
        body = _create_body(env, env_options, grain="turn", budgets=asdict(self.config))
        super().__init__(url, body, render_mode, token, timeout)
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
        answer = self._post("turn", {"reply": action})
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
            **({"budget": tuple(info["budget"])} if "budget" in info else {}),
        }


def _observation(observation: Any, dtype: Any) -> Any:
    return observation if isinstance(observation, str) else np.array(observation, dtype)


def _info(info: Json) -> Json:
    return {**info, "action_mask": np.array(info["action_mask"], np.int8)}


def _reply(text: str, fields: Json) -> Reply:
    values: Json = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    values["problem"] = values["problem"] and Problem(values["problem"])
    return Reply(text, **values)


def _create_body(env: str, arguments: Json, **fields: Any) -> Json:
    """The request that makes an environment of these arguments of ``ragen_gym.StepEnv``."""
    body: Json = {"env": env, **{name: value for name, value in fields.items() if value is not None}}
    body["env_options"] = {name: value for name, value in arguments.items() if name not in _FIELDS}
    body |= {name: arguments[name] for name in _FIELDS if arguments.get(name) is not None}
    if "levels" in body:
        levels = items_of(body["levels"])
        if not levels:
            raise ValueError(
                f"levels={shown(body['levels'])} holds no level, and a server reads no files; give the boards, such as "
                "ragen_gym.core.levels.read_levels(path)."
            )
        texts = map(item_text, levels)
        body["levels"] = [each.text if isinstance(each, Level) else each for each in texts]
    return body


def _of_numpy(value: Any) -> Any:
    """NumPy's numbers and arrays as plain ones, such as seeds that a generator drew."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} cannot be sent to a server: it is not JSON.")


def _json(answer: httpx.Response) -> Json:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or not found.keys() & {"session", "observation", "error"}
        or not isinstance(found.get("error", {}), dict)
    ):
        raise ServerError("no_ragen_gym", f"{answer.url} answered {answer.status_code} and is no ragen-gym server.")
    return found


def _error(answer: httpx.Response) -> Exception:
    """The Python exception for a server's refusal."""
    problem = _json(answer).get("error", {})
    code, message = str(problem.get("code")), str(problem.get("message"))
    if code == "unknown_session":
        return SessionLost(message)
    if code == "no_episode":
        return gymnasium.error.ResetNeeded(message)
    return ValueError(message) if code in ("bad_value", "bad_request") else ServerError(code, message)
