"""What an environment is to the server: one interface of JSON values for single moves, whole replies and batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.text import Vocabulary
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import make_turn
from ragen_gym.envs.vector import BatchEnv
from ragen_gym.games.registry import GameSpec, build_game
from ragen_gym.serve.errors import library_errors, refuse
from ragen_gym.serve.schemas import BatchResetRequest, CreateRequest, ResetRequest

__all__ = [
    "BatchGrain",
    "Grain",
    "Json",
    "Pixels",
    "SingleGrain",
    "StepGrain",
    "TurnGrain",
    "make_grain",
    "picture",
    "plain",
    "space_json",
]

Json = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Grain:
    """One environment, or one batch, with its state."""

    playing = False

    def about(self) -> Json:
        """What a client must know of it: actions, spaces, horizon."""
        raise NotImplementedError

    def reset(self, request: BatchResetRequest | ResetRequest) -> Json:
        """Start an episode."""
        raise NotImplementedError

    def boards(self) -> list[str]:
        """The boards as text, none before the first reset."""
        raise NotImplementedError

    def levels(self) -> list[str]:
        """The levels being played."""
        raise NotImplementedError

    def messages(self) -> list[dict[str, str]] | None:
        """The conversation of a grain that has one."""
        return None

    def pixels(self, index: int) -> Pixels:
        """The picture of the board of that environment, uint8 (height, width, 3)."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of it."""
        raise NotImplementedError


def space_json(space: Any) -> Json:
    """A space of the suite as JSON: ``Discrete``, ``Text`` or ``Box``."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n)}
    if isinstance(space, spaces.Text):
        charset = "".join(sorted(space.character_set))
        return {"type": "Text", "min_length": space.min_length, "max_length": space.max_length, "charset": charset}
    return {
        "type": "Box",
        "low": int(space.low.min()),
        "high": int(space.high.max()),
        "shape": list(space.shape),
        "dtype": str(space.dtype),
    }


def plain(observation: Any) -> Any:
    """An observation, or those of a batch, as JSON."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, np.ndarray) and observation.dtype != object:
        return observation.tolist()
    return [None if one is None else plain(one) for one in observation]


def picture(env: Any, index: int, num_envs: int) -> Pixels:
    """The picture of an environment, or of one of a batch.

    Raises:
        Refusal: it was made without pictures, or there is no such environment in it.
    """
    if env.render_mode is None:
        refuse("not_rendering", "this session draws nothing: create it with render=true.")
    if not 0 <= index < num_envs:
        refuse("bad_value", f"index={index} is not an environment of this session: choose 0 to {num_envs - 1}.")
    with library_errors():
        drawn = env.render()
    pixels: Pixels = drawn[index] if isinstance(drawn, tuple) else drawn
    return pixels


class SingleGrain(Grain):
    """A grain that is one environment."""


class StepGrain(SingleGrain):
    """Single moves: ``gymnasium.make`` of the spec's id."""

    def __init__(self, spec: GameSpec, arguments: Json) -> None:
        self.env = gymnasium.make(spec.id, disable_env_checker=True, **arguments)
        base: Any = self.env.unwrapped
        self._base: StepEnv = base
        self._horizon = self.env.spec and self.env.spec.max_episode_steps
        self._begun = False

    def about(self) -> Json:
        """See `Grain`."""
        return {
            "action_names": _names(self._base),
            "action_space": space_json(self.env.action_space),
            "observation_space": space_json(self.env.observation_space),
            "max_episode_steps": self._horizon,
        }

    def reset(self, request: BatchResetRequest | ResetRequest) -> Json:
        """See `Grain`."""
        seed, options = _single(request)
        with library_errors():
            observation, info = self.env.reset(seed=seed, options=options)
        self._begun = self.playing = True
        return {"observation": plain(observation), "info": _info(info)}

    def step(self, action: int) -> Json:
        """Play one move."""
        with library_errors():
            if not self.playing:
                raise gymnasium.error.ResetNeeded("the episode is over, or none was started: reset before a step.")
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.playing = not (terminated or truncated)
        return {
            "observation": plain(observation),
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
            "info": _info(info),
        }

    def boards(self) -> list[str]:
        """See `Grain`."""
        return [self._base.text] if self._begun else []

    def levels(self) -> list[str]:
        """See `Grain`."""
        return [self._base.level.text] if self._begun else []

    def pixels(self, index: int) -> Pixels:
        """See `Grain`."""
        return picture(self.env, index, 1)

    def close(self) -> None:
        """See `Grain`."""
        self.env.close()


class TurnGrain(SingleGrain):
    """Whole replies: `ragen_gym.make_turn`."""

    def __init__(self, spec: GameSpec, arguments: Json, max_reply: int) -> None:
        self.env = make_turn(spec.name, **arguments)
        self._kept, self._max_reply = 0, max_reply
        self._begun = False

    def about(self) -> Json:
        """See `Grain`."""
        env = self.env
        lowered = ("max_turns", "max_actions_per_turn", "max_actions")  # by a short game
        return {
            "action_names": _names(env.env),
            "action_space": space_json(env.action_space),
            "observation_space": space_json(env.observation_space),
            "max_episode_steps": env.max_turns,
            "instructions": env.instructions,
            "budgets": {**asdict(env.config), **{name: getattr(env, name) for name in lowered}},
        }

    def reset(self, request: BatchResetRequest | ResetRequest) -> Json:
        """See `Grain`."""
        seed, options = _single(request)
        with library_errors():
            message, info = self.env.reset(seed=seed, options=options)
        self._begun = self.playing = True
        self._kept = 0
        return {"observation": message, "info": self._info(info)}

    def turn(self, reply: str) -> Json:
        """Take a reply."""
        if self.playing and self._kept + len(reply) > self._max_reply:
            refuse(
                "conversation_full",
                f"the replies of this episode would have {self._kept + len(reply)} characters, and this server keeps "
                f"{self._max_reply}: give a shorter reply, or start the next episode.",
            )
        with library_errors():
            message, reward, terminated, truncated, info = self.env.step(reply)
        self._kept += len(reply)
        self.playing = not (terminated or truncated)
        return {
            "observation": message,
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
            "info": self._info(info),
        }

    def boards(self) -> list[str]:
        """See `Grain`."""
        return [self.env.board] if self._begun else []

    def levels(self) -> list[str]:
        """See `Grain`."""
        return [self.env.level.text] if self._begun else []

    def messages(self) -> list[dict[str, str]] | None:
        """See `Grain`."""
        return list(self._said) if self._begun else []

    def pixels(self, index: int) -> Pixels:
        """See `Grain`."""
        return picture(self.env, index, 1)

    def close(self) -> None:
        """See `Grain`."""
        self.env.close()

    def _info(self, info: Json) -> Json:
        self._said = info.pop("messages")
        reply = info["reply"]
        read = reply and {name: value for name, value in vars(reply).items() if name != "text"}
        return {**info, "reply": read, "action_names": list(self.env.action_names)}


def _names(env: StepEnv) -> list[str]:
    return [action.name.capitalize() for action in env.game.Action]


def _single(request: BatchResetRequest | ResetRequest) -> tuple[int | None, Json | None]:
    """Seed and options for one environment."""
    chosen = request.model_dump(exclude_none=True)
    if "which" in chosen or any(isinstance(value, list) for value in chosen.values()):
        refuse("bad_value", "this session is one environment: give one seed, one level, one noise_seed, and no which.")
    seed = chosen.pop("seed", None)
    return seed, chosen or None


def _info(info: Json) -> Json:
    return {
        "level_id": info["level_id"],
        "action_mask": info["action_mask"].tolist(),
        "success": bool(info["success"]),
    }


class BatchGrain(Grain):
    """Batches of moves: ``gymnasium.make_vec`` of the spec's id."""

    def __init__(self, spec: GameSpec, num_envs: int, autoreset: str, arguments: Json) -> None:
        self.env = gymnasium.make_vec(spec.id, num_envs, autoreset_mode=autoreset, **arguments)
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


def make_grain(spec: GameSpec, request: CreateRequest, max_reply: int) -> Grain:
    """The environment that a request asks for.

    Raises:
        Refusal: the library refuses a value, or arguments of another grain were given.
    """
    for name, given, fits in (
        ("budgets", request.budgets is not None, request.grain == "turn"),
        ("num_envs", request.num_envs is not None, request.grain == "step"),
        ("max_episode_steps", request.max_episode_steps is not None, request.grain == "step"),
        ("autoreset", request.autoreset is not None, request.num_envs is not None),
        ("observation='grid'", request.observation == "grid", request.grain == "step"),
    ):
        if given and not fits:
            refuse("bad_value", f"{name} does not go with grain={request.grain!r}, num_envs={request.num_envs!r}.")
    arguments: Json = {
        **request.knobs,
        "split": request.split,
        "preset": request.preset,
        "levels": request.levels,
        "observation": request.observation,
        "text_format": request.text_format,
        "vocabulary": request.vocabulary,
        "tile_size": request.tile_size,
        "render_mode": "rgb_array" if request.render else None,
    }
    with library_errors():
        build_game(spec, request.knobs, request.preset)  # refuses what is no knob, such as the path of a level file
        if request.vocabulary is not None and not isinstance(request.vocabulary, str):
            arguments["vocabulary"] = Vocabulary(request.vocabulary.name, request.vocabulary.symbols)
        if request.render:
            from ragen_gym.render.canvas import load_pygame

            load_pygame()
        if request.grain == "turn":
            return TurnGrain(
                spec, {**(request.budgets.model_dump() if request.budgets else {}), **arguments}, max_reply
            )
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
        if request.num_envs is None:
            return StepGrain(spec, arguments)
        return BatchGrain(spec, request.num_envs, request.autoreset or "NextStep", arguments)
