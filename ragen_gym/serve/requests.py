"""What clients send, as the OpenAPI page shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BatchResetRequest",
    "BatchStepRequest",
    "Budgets",
    "CreateRequest",
    "ResetRequest",
    "StepRequest",
    "Symbols",
    "TurnRequest",
]

#: Up to the largest integer that JSON keeps exactly in every language.
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
BoardText = Annotated[str, Field(min_length=1, max_length=8192, description="A board, its rows separated by newlines.")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResetRequest(_Request):
    """The episode to start; without a seed the next one of the seed before."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seed": 0}, {"seed": 0, "noise_seed": 7}, {}]})

    seed: Seed | None = None
    level: BoardText | None = Field(None, description="A board to play instead of a generated one.")
    noise_seed: Seed | None = Field(None, description="Seed of the luck after the level; it never changes the level.")


class BatchResetRequest(_Request):
    """The episodes to start; one value is for all environments, a list has one for each."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seed": 0}, {"seed": [4, 9]}, {"which": [True, False]}]})

    seed: Seed | list[Seed] | None = Field(None, description="One seed s gives environment i the seed s + i.")
    level: BoardText | list[BoardText] | None = None
    noise_seed: Seed | list[Seed] | None = None
    which: list[bool] | None = Field(None, description="The environments to reset; all where it is left out.")


class StepRequest(_Request):
    """One move."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"action": 2}]})

    action: int = Field(description="The id of an action, from 0; the session's description names them.")


class BatchStepRequest(_Request):
    """One move of every environment."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"actions": [0, 2]}]})

    actions: list[int]


class TurnRequest(_Request):
    """One reply of a language model."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reply": "<think>The goal is left.</think><answer>Left || Up</answer>"}]}
    )

    reply: str


class Budgets(_Request):
    """What an episode of turns may cost; see `ragen_gym.TurnEnv`."""

    max_turns: Annotated[int, Field(ge=1, le=100)] = 5
    max_actions_per_turn: Annotated[int, Field(ge=1, le=100)] = 5
    max_actions: Annotated[int, Field(ge=1, le=1000)] = 10
    format_penalty: Annotated[float, Field(ge=-1e6, le=1e6)] = -0.1
    think: bool = True
    max_tokens_per_turn: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class Symbols(_Request):
    """A vocabulary of one's own."""

    name: Annotated[str, Field(min_length=1, max_length=50)]
    symbols: Annotated[
        str, Field(min_length=1, max_length=50, description="One character a tile, in the game's order.")
    ]


class CreateRequest(_Request):
    """The environment to make: the arguments of `gymnasium.make`, `gymnasium.make_vec` or `ragen_gym.make_turn`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"env": "FrozenLake", "split": "test", "start": {"seed": 0}},
                {"env": "Sokoban", "grain": "turn", "budgets": {"max_turns": 10}, "knobs": {"size": 7, "boxes": 2}},
                {"env": "Bandit", "num_envs": 2},
            ]
        }
    )

    env: Annotated[str, Field(max_length=100, description="A game's name or id, such as Sokoban or ragen/Sokoban-v0.")]
    grain: Literal["step", "turn"] = Field("step", description="An action is a move, or a model's whole reply.")
    num_envs: Annotated[int, Field(ge=1)] | None = Field(None, description="A batch of that many; grain step only.")
    autoreset: Literal["NextStep", "SameStep", "Disabled"] | None = Field(
        None, description="A batch's `gymnasium.vector.AutoresetMode`; NextStep where it is left out."
    )
    split: str | None = Field(None, max_length=20, description="train, validation or test; null for all levels.")
    preset: str | None = Field(None, max_length=50, description="A difficulty of the game.")
    knobs: dict[str, Any] = Field(
        default_factory=dict, max_length=50, description="The game's own arguments; `GET /envs` lists them."
    )
    levels: Annotated[list[BoardText], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Boards as texts, to draw from instead of generating."
    )
    observation: Literal["text", "grid"] = "text"
    text_format: Literal["grid", "coord", "grid_coord"] = "grid"
    vocabulary: Annotated[str, Field(max_length=50)] | Symbols | None = None
    max_episode_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Moves after which an episode is truncated; the id's own where it is left out."
    )
    budgets: Budgets | None = Field(None, description="Grain turn only.")
    render: bool = Field(False, description="Whether pictures will be asked for.")
    tile_size: Annotated[int, Field(ge=8, le=64)] = Field(32, description="Side of a tile in pixels.")
    start: BatchResetRequest | None = Field(None, description="Start the first episode at once, as reset does.")
