"""The environments of the server behind one interface of JSON values: single moves, whole replies, and batches."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from threading import Lock
from typing import Any

import gymnasium
import numpy as np

from ragen_gym.core.turn_config import turn_config
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.png import encode_png
from ragen_gym.serve.schemas import CreateRequest, RequestError, ResetRequest, library_errors
from ragen_gym.serve.serialization import Json, Pixels, plain, space_json

__all__ = ["ServedEnv", "ServedStep", "ServedTurn", "make_env"]

_drawing = Lock()  # pygame's fonts are not thread-safe


class ServedEnv:
    """One environment, or one batch, with its state."""

    num_envs: int | None = None  # of a batch

    def __init__(self, env: Any) -> None:
        self.env = env  # as Gymnasium or ``ragen_gym.make_turn`` makes it
        self.playing = False  # whether a move or a reply will be taken
        self._reset_once = False

    def describe(self) -> Json:
        """The actions, spaces and horizon."""
        single = "" if self.num_envs is None else "single_"
        return {
            "action_names": [action.name.capitalize() for action in self.env.unwrapped.game.Action],
            "action_space": space_json(getattr(self.env, f"{single}action_space")),
            "observation_space": space_json(getattr(self.env, f"{single}observation_space")),
            "max_episode_steps": self.env.spec and self.env.spec.max_episode_steps,
            "instructions": None,
        }

    def reset(self, request: ResetRequest) -> Json:
        """Start an episode."""
        with library_errors():
            answer = self._reset(request)
        self._reset_once = self.playing = True
        return answer

    def step(self, action: int | list[int]) -> Json:
        """Play one move, or one in every environment."""
        raise RequestError("bad_value", "this session takes replies: create one with grain='step' for moves.")

    def turn(self, reply: str) -> Json:
        """Take a reply."""
        raise RequestError("bad_value", "this session takes moves: create one with grain='turn' for replies.")

    def state(self) -> Json:
        """Boards and levels as texts, none before the first reset."""
        boards, levels = self._boards_and_levels() if self._reset_once else ([], [])
        return {"playing": self.playing, "boards": boards, "levels": levels}

    def pixels(self, index: int) -> Pixels:
        """The picture of the board of that environment, uint8 (height, width, 3).

        Raises:
            RequestError: it was made without pictures, or there is no such environment in it.
        """
        if self.env.render_mode is None:
            raise RequestError("bad_value", "this session draws nothing: create it with render=true.")
        if index >= (count := self.num_envs or 1):
            raise RequestError(
                "bad_value", f"index={index} is not an environment of this session: choose 0 to {count - 1}."
            )
        with _drawing, library_errors():
            return self._drawn(index)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _drawn(self, index: int) -> Pixels:
        pixels: Pixels = self.env.render()
        return pixels

    def _reset(self, request: ResetRequest) -> Json:
        raise NotImplementedError

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        raise NotImplementedError


class ServedSingle(ServedEnv):
    """One environment, of moves or of replies."""

    def _reset(self, request: ResetRequest) -> Json:
        options = request.model_dump(exclude_none=True)
        if "reset_mask" in options or any(isinstance(value, list) for value in options.values()):
            raise RequestError(
                "bad_value",
                "this session is one environment: give one seed, one level, one noise_seed, and no reset_mask.",
            )
        seed = options.pop("seed", None)
        observation, info = self.env.reset(seed=seed, options=options or None)
        return {**self._observed(observation), "info": self._info(info)}

    def _step(self, action: Any) -> Json:
        with library_errors():
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.playing = not (terminated or truncated)
        ends = {"reward": float(reward), "terminated": terminated, "truncated": truncated}
        return {**self._observed(observation), **ends, "info": self._info(info)}

    def _observed(self, observation: Any) -> Json:
        return {"observation": plain(observation)}

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        env = self.env.env if isinstance(self.env, TurnEnv) else self.env.unwrapped
        return [env.text], [env.level.text]

    def _info(self, info: Json) -> Json:
        return {name: plain(value) for name, value in info.items()}


class ServedStep(ServedSingle):
    """Single moves: ``gymnasium.make`` of the spec's id."""

    def step(self, action: int | list[int]) -> Json:  # noqa: D102
        if isinstance(action, list):
            raise RequestError("bad_value", "this session is one environment: give one action.")
        if not self.playing:
            raise RequestError("no_episode", "the episode is over, or none was started: reset before a step.")
        return self._step(action)


class ServedTurn(ServedSingle):
    """Whole replies: ``ragen_gym.make_turn``."""

    def describe(self) -> Json:
        """The options of a turn and the system message too."""
        lowered = {name: getattr(self.env, name) for name in ("max_turns", "max_actions_per_turn", "max_actions")}
        return {
            **super().describe(),
            "max_episode_steps": self.env.max_turns,
            "instructions": self.env.instructions,
            "budgets": {**asdict(self.env.config), **lowered},  # a short game lowers them
        }

    def turn(self, reply: str) -> Json:  # noqa: D102
        return self._step(reply)

    def _observed(self, observation: Any) -> Json:
        if isinstance(observation, str):
            return {"observation": observation}
        picture = b64encode(encode_png(observation["image"])).decode()
        return {"observation": observation["text"], "images": [picture]}

    def _info(self, info: Json) -> Json:
        reply = info["reply"]  # the client has its text, and the conversation
        fields = reply and {name: value for name, value in vars(reply).items() if name != "text"}
        kept = {name: value for name, value in info.items() if name not in ("messages", "images")}
        return super()._info({**kept, "reply": fields, "action_names": self.env.action_names})


class ServedBatch(ServedEnv):
    """Batches of moves: ``gymnasium.make_vec`` of the spec's id."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_envs = env.num_envs

    def step(self, action: int | list[int]) -> Json:
        given = [action] if isinstance(action, int) else action
        with library_errors():
            moves = np.array(given, dtype=object if any(abs(a) >= 2**62 for a in given) else np.int64)
            observations, rewards, terminated, truncated, infos = self.env.unwrapped.step(moves)
        ends = {"reward": rewards.tolist(), "terminated": terminated.tolist(), "truncated": truncated.tolist()}
        answer = {"observation": plain(observations), **ends, "info": _batch_info(infos)}
        if "final_info" in infos:
            answer["final"] = {**_batch_info(infos["final_info"]), "observation": plain(infos["final_obs"])}
        return answer

    def _drawn(self, index: int) -> Pixels:
        pixels: Pixels = self.env.unwrapped.picture(index)  # ``render`` draws all: gigabytes of a large batch
        return pixels

    def _reset(self, request: ResetRequest) -> Json:
        options: Json = request.model_dump(include={"level", "noise_seed"})
        options["reset_mask"] = None if request.reset_mask is None else np.array(request.reset_mask, np.bool_)
        observations, infos = self.env.unwrapped.reset(seed=request.seed, options=options)
        return {"observation": plain(observations), "info": _batch_info(infos)}

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        env = self.env.unwrapped
        return list(env.texts), [level.text for level in env.levels]


def _batch_info(infos: Json) -> Json:
    which = infos["_success"]
    values = {name: infos[name].tolist() for name in ("level_id", "action_mask", "success")}
    return {"which": None if which.all() else which.tolist(), **values}


def make_env(spec: GameSpec, request: CreateRequest) -> ServedEnv:
    """The environment that a request asks for; its game's options are known to be such.

    Raises:
        RequestError: the library does not allow a value, or arguments of another grain were given.
    """
    by_steps, by_turns = (request.grain == grain for grain in ("step", "turn"))
    for name, given, fits, needs in (
        ("budgets", request.budgets is not None, by_turns, "give grain='turn'"),
        ("num_envs", request.num_envs is not None, by_steps, "make a session of turns for each environment"),
        ("max_episode_steps", request.max_episode_steps is not None, by_steps, "give max_turns, among budgets"),
        ("autoreset", request.autoreset is not None, request.num_envs is not None, "give num_envs"),
        ("observation='grid'", request.observation == "grid", by_steps, "give the observation of turns among budgets"),
    ):
        if given and not fits:
            raise RequestError(
                "bad_value",
                f"{name} does not go with grain={request.grain!r}, num_envs={request.num_envs!r}: {needs}.",
            )
    fields = {"split", "preset", "levels", "skip_invalid", "text_format", "vocabulary", "tile_size"}
    arguments: Json = {**request.env_options, **request.model_dump(include=fields)}
    arguments["render_mode"] = "rgb_array" if request.render else None
    with library_errors(request.env_options):
        if request.render:
            from ragen_gym.render.canvas import load_pygame

            load_pygame()
        if by_turns:
            return ServedTurn(make_turn(spec.name, turn_config(None, request.budgets or {}), **arguments))
        arguments["observation"] = request.observation
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
        if request.num_envs is None:
            return ServedStep(gymnasium.make(spec.id, disable_env_checker=True, **arguments))
        mode: Any = request.autoreset or "NextStep"
        return ServedBatch(gymnasium.make_vec(spec.id, request.num_envs, autoreset_mode=mode, **arguments))
