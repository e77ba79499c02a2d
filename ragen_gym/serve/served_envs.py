"""The environments of the server behind one interface of JSON values: single moves and whole replies."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from threading import Lock
from typing import Any

import gymnasium

from ragen_gym.core.turn_config import turn_config
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.png import encode_png
from ragen_gym.serve.schemas import CreateRequest, RequestError, ResetRequest, library_errors
from ragen_gym.serve.serialization import Json, Pixels, plain, space_json

__all__ = ["ServedEnv", "ServedStep", "ServedTurn", "make_env"]

_drawing = Lock()  # pygame's fonts are not thread-safe


class ServedEnv:
    """One environment, with its state."""

    def __init__(self, env: Any) -> None:
        self.env = env  # as Gymnasium or ``ragen_gym.make_turn`` makes it
        self.playing = False  # whether a move or a reply will be taken
        self._reset_once = False

    def describe(self) -> Json:
        """The actions, spaces and horizon."""
        return {
            "action_names": [action.name.capitalize() for action in self.env.unwrapped.game.Action],
            "action_space": space_json(self.env.action_space),
            "observation_space": space_json(self.env.observation_space),
            "max_episode_steps": self.env.spec and self.env.spec.max_episode_steps,
            "instructions": None,
        }

    def reset(self, request: ResetRequest) -> Json:
        """Start an episode."""
        options = request.model_dump(exclude_none=True)
        seed = options.pop("seed", None)
        with library_errors():
            observation, info = self.env.reset(seed=seed, options=options or None)
        self._reset_once = self.playing = True
        return {**self._observed(observation), "info": self._info(info)}

    def step(self, action: int) -> Json:
        """Play one move."""
        raise RequestError("bad_value", "this session takes replies: create one with grain='step' for moves.")

    def turn(self, reply: str) -> Json:
        """Take a reply."""
        raise RequestError("bad_value", "this session takes moves: create one with grain='turn' for replies.")

    def state(self) -> Json:
        """Board and level as texts, None before the first reset."""
        inner = self.env.env if isinstance(self.env, TurnEnv) else self.env.unwrapped
        board, level = (inner.text, inner.level.text) if self._reset_once else (None, None)
        return {"playing": self.playing, "board": board, "level": level}

    def pixels(self) -> Pixels:
        """The picture of the board, uint8 (height, width, 3).

        Raises:
            RequestError: it was made without pictures, or no episode was started.
        """
        if self.env.render_mode is None:
            raise RequestError("bad_value", "this session draws nothing: create it with render=true.")
        with _drawing, library_errors():
            pixels: Pixels = self.env.render()
        return pixels

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _step(self, action: Any) -> Json:
        with library_errors():
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.playing = not (terminated or truncated)
        ends = {"reward": float(reward), "terminated": terminated, "truncated": truncated}
        return {**self._observed(observation), **ends, "info": self._info(info)}

    def _observed(self, observation: Any) -> Json:
        return {"observation": plain(observation)}

    def _info(self, info: Json) -> Json:
        return {name: plain(value) for name, value in info.items()}


class ServedStep(ServedEnv):
    """Single moves: ``gymnasium.make`` of the spec's id."""

    def step(self, action: int) -> Json:  # noqa: D102
        if not self.playing:
            raise RequestError("no_episode", "the episode is over, or none was started: reset before a step.")
        return self._step(action)


class ServedTurn(ServedEnv):
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


def make_env(spec: GameSpec, request: CreateRequest) -> ServedEnv:
    """The environment that a request asks for; its game's options are known to be such.

    Raises:
        RequestError: the library does not allow a value, or arguments of the other grain were given.
    """
    by_turns = request.grain == "turn"
    for name, given, fits, needs in (
        ("budgets", request.budgets is not None, by_turns, "give grain='turn'"),
        ("max_episode_steps", request.max_episode_steps is not None, not by_turns, "give max_turns, among budgets"),
        ("observation='grid'", request.observation == "grid", not by_turns, "give the observation among budgets"),
    ):
        if given and not fits:
            raise RequestError("bad_value", f"{name} does not go with grain={request.grain!r}: {needs}.")
    fields = {"split", "preset", "levels", "skip_invalid", "text_format", "vocabulary", "tile_size"}
    arguments: Json = {**request.env_options, **request.model_dump(include=fields)}
    arguments["render_mode"] = "rgb_array" if request.render else None
    with library_errors(request.env_options):
        if request.render:
            from ragen_gym.render.canvas import load_pygame

            load_pygame()
        if by_turns:
            return ServedTurn(make_turn(spec.name, turn_config(None, request.budgets or {}), **arguments))
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
        made = gymnasium.make(spec.id, disable_env_checker=True, observation=request.observation, **arguments)
        return ServedStep(made)
