"""Sessions of one environment: single moves, and whole replies."""

from __future__ import annotations

from typing import Any

import gymnasium

from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import make_turn
from ragen_gym.registry import Row
from ragen_gym.serve.grains import Grain, Json, Pixels, picture, plain, space_json
from ragen_gym.serve.refusals import library_errors, refuse
from ragen_gym.serve.requests import BatchResetRequest, ResetRequest

__all__ = ["SingleGrain", "StepGrain", "TurnGrain"]


class SingleGrain(Grain):
    """A grain that is one environment."""


class StepGrain(SingleGrain):
    """Single moves: ``gymnasium.make`` of the row's id."""

    def __init__(self, row: Row, arguments: Json) -> None:
        self.env = gymnasium.make(row.id, disable_env_checker=True, **arguments)
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

    def __init__(self, row: Row, arguments: Json, max_reply: int) -> None:
        self.env = make_turn(row.name, **arguments)
        self._kept, self._max_reply = 0, max_reply
        self._begun = False

    def about(self) -> Json:
        """See `Grain`."""
        env = self.env
        names = ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty", "think", "max_tokens_per_turn")
        return {
            "action_names": _names(env.env),
            "action_space": space_json(env.action_space),
            "observation_space": space_json(env.observation_space),
            "max_episode_steps": env.max_turns,
            "instructions": env.instructions,
            "budgets": {name: getattr(env, name) for name in names},
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
        read = reply and {name: getattr(reply, name) for name in ("thinking", "names", "actions", "problem")}
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
