"""What an environment is to the server: one interface of JSON values for single moves, whole replies and batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np

from ragen_gym.core.text import Vocabulary
from ragen_gym.envs.regret import REGRET_KEYS
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.game import Game
from ragen_gym.games.registry import GameSpec, build_game
from ragen_gym.serve.errors import RequestError, library_errors
from ragen_gym.serve.limits import REGRET_ENTRIES, check_options
from ragen_gym.serve.schemas import BatchResetRequest, CreateRequest, ResetRequest
from ragen_gym.serve.serialization import (
    Json,
    Pixels,
    images_json,
    number_json,
    observation_json,
    space_json,
    turn_value_json,
)

__all__ = ["ServedBatch", "ServedEnv", "ServedSingle", "ServedStep", "ServedTurn", "make_env"]

AnyReset = BatchResetRequest | ResetRequest


class ServedEnv:
    """One environment, or one batch, with its state."""

    num_envs = 1  # of a batch
    slow = False  # whether a reply may take long: to draw, to score boards in the thinking, or to value a turn

    def __init__(self, env: Any) -> None:
        self.env = env  # as Gymnasium or ``ragen_gym.make_turn`` makes it
        self.playing = False  # whether a move or a reply will be taken
        self._reset_once = False

    def describe(self) -> Json:
        """What a client must know of it: actions, spaces, horizon."""
        return {
            "action_names": [action.name.capitalize() for action in self.env.unwrapped.game.Action],
            "action_space": space_json(self._space("action_space")),
            "observation_space": space_json(self._space("observation_space")),
            "max_episode_steps": self.env.spec and self.env.spec.max_episode_steps,
        }

    def reset(self, request: AnyReset) -> Json:
        """Start an episode."""
        with library_errors():
            answer = self._reset(request)
        self._reset_once = self.playing = True
        return answer

    def state(self) -> Json:
        """Boards and levels as texts, none before the first reset; the conversation, where there is one."""
        boards, levels = self._boards_and_levels() if self._reset_once else ([], [])
        return {"playing": self.playing, "boards": boards, "levels": levels, "messages": self._messages()}

    def pixels(self, index: int) -> Pixels:
        """The picture of the board of that environment, uint8 (height, width, 3).

        Raises:
            RequestError: it was made without pictures, or there is no such environment in it.
        """
        if self.env.render_mode is None:
            raise RequestError("not_rendering", "this session draws nothing: create it with render=true.")
        if not 0 <= index < self.num_envs:
            raise RequestError(
                "bad_value", f"index={index} is not an environment of this session: choose 0 to {self.num_envs - 1}."
            )
        with library_errors():
            return self._drawn(index)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _space(self, name: str) -> Any:
        return getattr(self.env, name)

    def _drawn(self, index: int) -> Pixels:
        pixels: Pixels = self.env.render()
        return pixels

    def _reset(self, request: AnyReset) -> Json:
        raise NotImplementedError

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        raise NotImplementedError

    def _messages(self) -> list[dict[str, Any]] | None:
        return None


class ServedSingle(ServedEnv):
    """One environment, of moves or of replies."""

    def _reset(self, request: AnyReset) -> Json:
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
        return {
            **self._observed(observation),
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
            "info": self._info(info),
        }

    def _observed(self, observation: Any) -> Json:
        """An observation as fields of the answer."""
        return {"observation": observation_json(observation)}

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        env = self.env.env if isinstance(self.env, TurnEnv) else self.env.unwrapped
        return [env.text], [env.level.text]

    def _info(self, info: Json) -> Json:
        raise NotImplementedError


class ServedStep(ServedSingle):
    """Single moves: ``gymnasium.make`` of the spec's id."""

    def step(self, action: int) -> Json:
        """Play one move."""
        if not self.playing:
            raise RequestError("no_episode", "the episode is over, or none was started: reset before a step.")
        return self._step(action)

    def _info(self, info: Json) -> Json:
        return {
            "level_id": info["level_id"],
            "action_mask": info["action_mask"].tolist(),
            "success": bool(info["success"]),
            **{key: number_json(info[key]) for key in REGRET_KEYS if key in info},
        }


class ServedTurn(ServedSingle):
    """Whole replies: ``ragen_gym.make_turn``. ``max_reply`` is the most characters of all replies of an episode."""

    def __init__(self, env: TurnEnv, max_reply: int) -> None:
        super().__init__(env)
        self.slow = bool(env.config.sees or env.config.state_parts or env.env.regret)
        self._conversation: list[dict[str, Any]] = []
        self._characters, self._max_reply = 0, max_reply

    def describe(self) -> Json:
        """The options of a turn and the system message too."""
        lowered = {name: getattr(self.env, name) for name in ("max_turns", "max_actions_per_turn", "max_actions")}
        return {
            **super().describe(),
            "max_episode_steps": self.env.max_turns,
            "instructions": self.env.instructions,
            "budgets": {**asdict(self.env.config), **lowered},  # a short game lowers them
        }

    def turn(self, reply: str) -> Json:
        """Take a reply."""
        characters = self._characters + len(reply)
        if self.playing and characters > self._max_reply:
            raise RequestError(
                "conversation_full",
                f"the replies of this episode would have {characters} characters, and this server keeps "
                f"{self._max_reply}: give a shorter reply, or start the next episode.",
            )
        answer = self._step(reply)
        self._characters = characters
        return answer

    def _observed(self, observation: Any) -> Json:
        if isinstance(observation, str):
            return {"observation": observation}
        return {"observation": observation["text"], "images": images_json([observation["image"]])}

    def _reset(self, request: AnyReset) -> Json:
        answer = super()._reset(request)
        self._characters = 0
        return answer

    def _messages(self) -> list[dict[str, Any]]:
        return self._conversation

    def _info(self, info: Json) -> Json:
        self._conversation = list(info.pop("messages"))
        info.pop("images", None)
        if "turn_value" in info:
            info |= {"regret": number_json(info["regret"]), "turn_value": turn_value_json(info["turn_value"])}
        reply = info["reply"]
        fields = reply and {name: value for name, value in vars(reply).items() if name != "text"}
        return {**info, "reply": fields, "action_names": list(self.env.action_names)}


class ServedBatch(ServedEnv):
    """Batches of moves: ``gymnasium.make_vec`` of the spec's id."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_envs = env.num_envs

    def step(self, actions: list[int]) -> Json:
        """Play one move in every environment."""
        with library_errors():
            moves = np.array(actions, dtype=object if any(abs(a) >= 2**62 for a in actions) else np.int64)
            observations, rewards, terminated, truncated, infos = self.env.unwrapped.step(moves)
        answer = {
            "observations": observation_json(observations),
            "rewards": rewards.tolist(),
            "terminated": terminated.tolist(),
            "truncated": truncated.tolist(),
            "info": _batch_info(infos),
        }
        if "final_info" in infos:
            answer["final"] = {
                **_batch_info(infos["final_info"]),
                "observations": observation_json(infos["final_obs"]),
            }
        return answer

    def _space(self, name: str) -> Any:
        return getattr(self.env, f"single_{name}")

    def _drawn(self, index: int) -> Pixels:
        pixels: Pixels = self.env.unwrapped.picture(index)  # ``render`` draws all: gigabytes of a large batch
        return pixels

    def _reset(self, request: AnyReset) -> Json:
        mask = getattr(request, "reset_mask", None)
        options: Json = {
            "level": request.level,
            "noise_seed": request.noise_seed,
            "reset_mask": None if mask is None else np.array(mask, np.bool_),
        }
        observations, infos = self.env.unwrapped.reset(seed=request.seed, options=options)
        return {"observations": observation_json(observations), "info": _batch_info(infos)}

    def _boards_and_levels(self) -> tuple[list[str], list[str]]:
        env = self.env.unwrapped
        return list(env.texts), [level.text for level in env.levels]


def _batch_info(infos: Json) -> Json:
    which = infos["_success"]
    return {
        "which": None if which.all() else which.tolist(),
        "level_id": infos["level_id"].tolist(),
        "action_mask": infos["action_mask"].tolist(),
        "success": infos["success"].tolist(),
    }


def make_env(spec: GameSpec, request: CreateRequest, max_reply: int) -> ServedEnv:
    """The environment that a request asks for.

    Raises:
        RequestError: the library does not allow a value, or arguments of another grain were given.
    """
    singly = "of a batch it may take minutes: make several sessions without num_envs"
    by_steps, by_turns = (request.grain == grain for grain in ("step", "turn"))
    for name, given, fits, needs in (
        ("budgets", request.budgets is not None, by_turns, "give grain='turn'"),
        ("num_envs", request.num_envs is not None, by_steps, "make a session of turns for each environment"),
        ("max_episode_steps", request.max_episode_steps is not None, by_steps, "give max_turns, among budgets"),
        ("autoreset", request.autoreset is not None, request.num_envs is not None, "give num_envs"),
        ("observation='grid'", request.observation == "grid", by_steps, "give the observation of turns among budgets"),
        ("regret", request.regret, request.num_envs is None, singly),
    ):
        if given and not fits:
            raise RequestError(
                "bad_value",
                f"{name} does not go with grain={request.grain!r}, num_envs={request.num_envs!r}: {needs}.",
            )
    arguments: Json = {
        **request.env_options,
        "split": request.split,
        "preset": request.preset,
        "levels": request.levels,
        "skip_invalid": request.skip_invalid,
        "observation": request.observation,
        "text_format": request.text_format,
        "vocabulary": request.vocabulary,
        "tile_size": request.tile_size,
        "render_mode": "rgb_array" if request.render else None,
        "regret": request.regret,
    }
    with library_errors(request.env_options):
        build_game(spec, request.env_options, request.preset)  # an error for what is no option, such as a file's path
        if request.vocabulary is not None and not isinstance(request.vocabulary, str):
            arguments["vocabulary"] = Vocabulary(request.vocabulary.name, request.vocabulary.symbols)
        if request.render:
            from ragen_gym.render.canvas import load_pygame

            load_pygame()
        if request.grain == "turn":
            del arguments["observation"]  # an option of a turn, among the budgets
            options = request.budgets.model_dump() if request.budgets else {}
            env = make_turn(spec.name, **options, **arguments)
            _check_sizes(env.env.games)
            return ServedTurn(_bounded(env), max_reply)
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
            if request.regret is True:  # the environment knows nothing of the wrapper that ends its episodes
                arguments["regret"] = request.max_episode_steps
        if request.num_envs is None:
            single: Any = gymnasium.make(spec.id, disable_env_checker=True, **arguments)
            _check_sizes(single.unwrapped.games)
            return ServedStep(_bounded(single))
        mode = request.autoreset or "NextStep"
        batch: Any = gymnasium.make_vec(spec.id, request.num_envs, autoreset_mode=mode, **arguments)
        _check_sizes(batch.unwrapped.games)
        return ServedBatch(batch)


def _check_sizes(games: list[Game]) -> None:
    """Check that levels do not bring boards larger than the options may ask for."""
    for game in games:
        check_options({"height": game.height, "width": game.width})


def _bounded(env: Any) -> Any:
    """The environment, with a bound on the tables of ``regret`` that it keeps."""
    if env.unwrapped._regret is not None:
        env.unwrapped._regret.max_entries = REGRET_ENTRIES
    return env
