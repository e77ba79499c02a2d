"""Bodies of requests, as the OpenAPI page shows them, and the errors that answer what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from gymnasium.error import DependencyNotInstalled, ResetNeeded
from pydantic import BaseModel, ConfigDict, Field

from ragen_gym.core.text import TextFormat

#: Up to the largest integer that JSON keeps exactly in every language.
Seed = Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)]  # strict: true is none
BoardText = Annotated[str, Field(min_length=1, max_length=8192, description="A board, its rows separated by newlines.")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResetRequest(_Request):
    """The episode to start."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seed": 0}, {"seed": 0, "noise_seed": 7}, {}]})

    seed: Seed | None = Field(None, description="Without one the episode is the next of the seed before.")
    level: BoardText | None = Field(None, description="A board to play instead of a generated one.")
    noise_seed: Seed | None = Field(None, description="Seed of the transition noise; it never changes the level.")


class StepRequest(_Request):
    """One move."""

    action: int = Field(description="The id of an action, from 0; the session's description names them.")


class TurnRequest(_Request):
    """One reply of a language model."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reply": "<think>The goal is left.</think><answer>Left || Up</answer>"}]}
    )

    reply: str


class CreateRequest(_Request):
    """The environment to make: arguments of ``gymnasium.make`` or ``ragen_gym.make_turn``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"env": "FrozenLake", "split": "test", "start": {"seed": 0}},
                {"env": "Sokoban", "grain": "turn", "budgets": {"max_turns": 10}, "env_options": {"size": 7}},
            ]
        }
    )

    env: Annotated[str, Field(max_length=100, description="A game's name or id, such as Sokoban or ragen/Sokoban-v0.")]
    grain: Literal["step", "turn"] = Field("step", description="An action is a move, or a model's whole reply.")
    split: str | None = Field(None, description="train, validation or test; null for all.")
    preset: str | None = Field(None, description="A difficulty of the game.")
    env_options: dict[str, Any] = Field(
        default_factory=dict, description="The game's own options by name; `GET /envs` lists them."
    )
    levels: Annotated[list[BoardText], Field(min_length=1)] | None = Field(
        None,
        description="Boards as texts, to draw from instead of generating; each is played at its own size unless the "
        "options choose one.",
    )
    skip_invalid: bool = Field(False, description="Whether levels that cannot be played are left out.")
    observation: Literal["text", "grid"] = "text"
    text_format: TextFormat = "grid"
    vocabulary: str | None = None
    max_episode_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Moves after which an episode is truncated; the id's own where it is left out."
    )
    budgets: dict[str, Any] | None = Field(
        None, description="Options of a turn, the fields of `ragen_gym.core.turn_config.TurnConfig`; grain turn only."
    )
    render: bool = Field(False, description="Whether pictures will be asked for.")
    tile_size: Annotated[int, Field(ge=8, le=64)] = Field(32, description="Side of a tile in pixels.")
    start: ResetRequest | None = Field(None, description="Start the first episode at once, as reset does.")


#: The HTTP status of each code.
STATUS = {
    "bad_json": 400,
    "unauthorized": 401,
    "foreign_host": 403,
    "not_found": 404,
    "unknown_session": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "no_episode": 409,  # a step before reset, or after the end
    "body_too_large": 413,
    "bad_request": 422,  # the body or a parameter is not of the documented form
    "bad_value": 422,  # an unknown game or option, an action out of range, a wrong board
    "internal": 500,
    "full": 503,
}


class RequestError(Exception):
    """A refused request: a key of ``STATUS`` and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> dict[str, dict[str, str]]:
        """The JSON of the answer."""
        return {"error": {"code": self.code, "message": str(self)}}


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn the library's errors into ``RequestError``: to be put around calls of it and nothing else."""
    try:
        yield
    except ResetNeeded as error:
        raise RequestError("no_episode", str(error)) from error
    except (DependencyNotInstalled, ValueError) as error:
        raise RequestError("bad_value", str(error)) from error
