"""What clients send and what the server answers, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from ragen_gym.core.settings import Setting, declared
from ragen_gym.core.text import TextFormat
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import Problem
from ragen_gym.serve.limits import LARGEST_NUMBER, REGRET_ENTRIES, TURN_LIMITS

__all__ = [
    "BatchReset",
    "BatchResetRequest",
    "BatchStep",
    "BatchStepRequest",
    "Budgets",
    "CreateRequest",
    "Created",
    "Error",
    "Health",
    "Listed",
    "Reset",
    "ResetRequest",
    "State",
    "Step",
    "StepRequest",
    "Symbols",
    "Turn",
    "TurnRequest",
    "TurnReset",
]

#: Up to the largest integer that JSON keeps exactly in every language.
Seed = Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)]  # strict: true is none
BoardText = Annotated[str, Field(min_length=1, max_length=8192, description="A board, its rows separated by newlines.")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResetRequest(_Request):
    """The episode to start; without a seed the next one of the seed before."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seed": 0}, {"seed": 0, "noise_seed": 7}, {}]})

    seed: Seed | None = None
    level: BoardText | None = Field(None, description="A board to play instead of a generated one.")
    noise_seed: Seed | None = Field(None, description="Seed of the transition noise; it never changes the level.")


class BatchResetRequest(_Request):
    """The episodes to start; one value is for all environments, a list has one for each."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"seed": 0}, {"seed": [4, 9]}, {"reset_mask": [True, False]}]}
    )

    seed: Seed | list[Seed | None] | None = Field(
        None, description="One seed s gives environment i the seed s + i; one that is null in a list goes on."
    )
    level: BoardText | list[BoardText] | None = None
    noise_seed: Seed | list[Seed] | None = None
    reset_mask: list[bool] | None = Field(None, description="The environments to reset; all where it is left out.")


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


def _turn_option(name: str, option: Setting) -> tuple[Any, Any]:
    """Type and field of a turn's option: its declared range, and the server's own upper limit of every number."""
    ends: dict[str, Any] = {}
    if option.type is not bool and not option.choices:
        most = TURN_LIMITS.get(name, LARGEST_NUMBER if option.high is None else option.high)
        ends = {"ge": -most if option.low is None else option.low, "le": most, "gt": option.above, "lt": option.below}
    kind: Any = Literal[tuple(option.choices)] if option.choices else option.type
    return kind, Field(option.default, description=option.doc, **{e: v for e, v in ends.items() if v is not None})


_TURN_OPTIONS = {name: _turn_option(name, option) for name, option in declared(TurnConfig).items()}
_TurnOptions: Any = create_model("_TurnOptions", __base__=_Request, **_TURN_OPTIONS)  # type: ignore[call-overload]


class Budgets(_TurnOptions):  # type: ignore[misc]
    """How replies are read, bounded and paid: the fields of ``ragen_gym.core.turn_config.TurnConfig``."""


class Symbols(_Request):
    """A custom vocabulary."""

    name: Annotated[str, Field(min_length=1, max_length=50)]
    symbols: Annotated[
        str, Field(min_length=1, max_length=50, description="One character a tile, in the game's order.")
    ]


class CreateRequest(_Request):
    """The environment to make: arguments of ``gymnasium.make``, ``gymnasium.make_vec`` or ``ragen_gym.make_turn``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"env": "FrozenLake", "split": "test", "start": {"seed": 0}},
                {
                    "env": "Sokoban",
                    "grain": "turn",
                    "budgets": {"max_turns": 10},
                    "env_options": {"size": 7, "boxes": 2},
                },
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
    split: str | None = Field(
        None,
        max_length=20,
        description="train, validation, test, or one of them with -v1; null for all.",
    )
    preset: str | None = Field(None, max_length=50, description="A difficulty of the game.")
    env_options: dict[str, Any] = Field(
        default_factory=dict, max_length=50, description="The game's own options by name; `GET /envs` lists them."
    )
    levels: Annotated[list[BoardText], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="Boards as texts, to draw from instead of generating; each is played at its own size unless the "
        "options choose one.",
    )
    skip_invalid: bool = Field(False, description="Whether levels that cannot be played are left out.")
    observation: Literal["text", "grid"] = "text"
    text_format: TextFormat = "grid"
    vocabulary: Annotated[str, Field(max_length=50)] | Symbols | None = None
    regret: bool | Annotated[int, Field(ge=1, le=1000)] = Field(
        False,
        description="Whether infos say what each move or turn gave away of what was still possible. What is possible "
        "depends on the moves that are left: true counts them from `max_episode_steps` or the budgets, a number is how "
        f"many an episode has. Of a level whose states x actions x moves are more than {REGRET_ENTRIES} it is unknown, "
        "null. Not for batches.",
    )
    max_episode_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Moves after which an episode is truncated; the id's own where it is left out."
    )
    budgets: Budgets | None = Field(None, description="Grain turn only.")
    render: bool = Field(False, description="Whether pictures will be asked for.")
    tile_size: Annotated[int, Field(ge=8, le=64)] = Field(32, description="Side of a tile in pixels.")
    start: BatchResetRequest | None = Field(None, description="Start the first episode at once, as reset does.")


Observation = str | list[list[int]]

_LAKE = "__G_\nO___\n__OP\n____"
_INFO: dict[str, Any] = {"level_id": "1c2aafca1b6d9f52", "action_mask": [1, 1, 0, 1], "success": False}


class Info(BaseModel):
    """The information that goes with an observation."""

    level_id: str = Field(description="Content hash of the level.")
    action_mask: list[int] = Field(description="1 where an action can change the state.")
    success: bool
    regret: float | None = Field(
        None, description="With `regret`: how much lower the highest expected return is than before; null if unknown."
    )
    chance: float | None = Field(None, description="Likewise: what chance added to the expected return.")
    success_regret: float | None = Field(None, description="As `regret`, of the probability of success.")
    success_chance: float | None = Field(None, description="As `chance`, of the probability of success.")


class Reset(BaseModel):
    """The start of an episode."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"observation": _LAKE, "info": _INFO}]})

    observation: Observation = Field(description="The board as text, or as rows of tile codes.")
    info: Info


class Step(Reset):
    """What a move did."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"observation": _LAKE, "reward": 0.0, "terminated": False, "truncated": False, "info": _INFO}]
        }
    )

    reward: float
    terminated: bool
    truncated: bool


class Reply(BaseModel):
    """What a reply says."""

    thinking: str | None
    names: list[str] = Field(description="What the answer names.")
    actions: list[int] = Field(description="The known actions among them.")
    problem: Problem | None
    observation: str | None = Field(description="The board as the thinking says it is, where `grounding` asks for it.")
    prediction: str | None = Field(description="The board that it expects, where `world_modelling` asks for it.")


class TurnInfo(BaseModel):
    """The information that goes with a turn's message."""

    reply: Reply | None = Field(description="How the reply was read; null at reset.")
    actions: list[int] = Field(description="Moves played this turn.")
    rewards: list[float] = Field(description="The reward of each of them.")
    success: bool
    level_id: str
    turn: int = Field(description="Turns taken.")
    actions_left: int
    action_names: list[str] = Field(description="What a reply calls the actions, in the order of their ids.")
    observation_right: bool | None = Field(None, description="With `grounding`: whether the observation is true.")
    prediction_right: bool | None = Field(None, description="With `world_modelling`: whether the prediction is.")
    observation_score: float | None = Field(None, description="Its score, from 0 to 1, by `state_score`.")
    prediction_score: float | None = Field(None, description="Likewise.")
    regret: float | None = Field(
        None, description="With `regret`: what the turn gave away of the highest expected return; null if unknown."
    )
    turn_value: dict[str, Any] | None = Field(
        None, description="With `regret`: a `TurnValue`, each number as [of the return, of the success]."
    )


class TurnReset(BaseModel):
    """The start of an episode of turns."""

    observation: str = Field(description="The user message to answer, `<image>` where its picture stands.")
    images: list[str] | None = Field(
        None, description="With pictures: PNG files in base64, one for each `<image>` that is a picture, in order."
    )
    info: TurnInfo


class Turn(TurnReset):
    """What a reply did."""

    reward: float
    terminated: bool
    truncated: bool


class BatchInfo(BaseModel):
    """The infos of a batch, a list of ``num_envs`` each; null where ``which`` is false."""

    which: list[bool] | None = Field(description="The environments that they are about; null for all.")
    level_id: list[str | None]
    action_mask: list[list[int]]
    success: list[bool]


class BatchFinal(BatchInfo):
    """How the episodes that ended in this step ended; autoreset SameStep only."""

    observations: list[Observation | None]


class BatchReset(BaseModel):
    """The start of a batch's episodes."""

    observations: list[Observation]
    info: BatchInfo


class BatchStep(BatchReset):
    """What a move of every environment did."""

    rewards: list[float]
    terminated: list[bool]
    truncated: list[bool]
    final: BatchFinal | None = None


class Created(BaseModel):
    """A session."""

    session: str = Field(description="What every further request names.")
    env: str = Field(description="The id.")
    grain: Literal["step", "turn"]
    num_envs: int | None
    autoreset: str | None
    action_names: list[str] = Field(description="The ids of the actions are the places in this list, from 0.")
    action_space: dict[str, Any]
    observation_space: dict[str, Any]
    max_episode_steps: int | None
    instructions: str | None = Field(description="The system message; grain turn only.")
    budgets: Budgets | None = Field(description="What an episode of turns may cost; a short game lowers it.")
    expires_after: float = Field(description="Seconds without a request after which the session is closed.")
    start: Reset | TurnReset | BatchReset | None = Field(description="The first episode, where one was asked for.")


class State(BaseModel):
    """A session as it stands."""

    session: str
    env: str
    grain: Literal["step", "turn"]
    num_envs: int | None
    playing: bool = Field(description="Whether a step or a turn will be taken.")
    boards: list[str] = Field(description="The boards as text; none before the first reset.")
    levels: list[str] = Field(description="The levels being played, in the game's own symbols.")
    messages: list[dict[str, Any]] | None = Field(
        description="The conversation so far, in parts where there are pictures; grain turn only."
    )
    expires_after: float


class Listed(BaseModel):
    """One game."""

    id: str
    name: str
    summary: str
    horizon: int | None = Field(description="Moves after which an episode is truncated.")
    action_names: list[str]
    env_options: dict[str, Any] = Field(description="The game's options and their defaults.")
    presets: list[str]
    vocabularies: list[str]


class Health(BaseModel):
    """That the server runs, and how full it is."""

    status: Literal["ok"]
    version: str
    sessions: int
    envs: int = Field(description="Environments of all batches.")


class ErrorDetail(BaseModel):
    """What is wrong."""

    code: str = Field(description="For programs: one of the codes of the page.")
    message: str = Field(description="For people: what is wrong, what is allowed, and what to do.")


class Error(BaseModel):
    """Every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "code": "bad_value",
                        "message": "action 9 is not one of FrozenLake's: 0 LEFT, 1 DOWN, 2 RIGHT, 3 UP.",
                    }
                }
            ]
        }
    )

    error: ErrorDetail
