"""What the server answers, as the OpenAPI page shows it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ragen_gym.serve.requests import Budgets

__all__ = [
    "BatchReset",
    "BatchStep",
    "Created",
    "Health",
    "Listed",
    "Problem",
    "Reset",
    "State",
    "Step",
    "Turn",
    "TurnReset",
]

Observation = str | list[list[int]]

_LAKE = "__G_\nO___\n__OP\n____"
_INFO: dict[str, Any] = {"level_id": "1c2aafca1b6d9f52", "action_mask": [1, 1, 0, 1], "success": False}


class Info(BaseModel):
    """What goes beside an observation."""

    level_id: str = Field(description="Content hash of the level.")
    action_mask: list[int] = Field(description="1 where an action can change the state.")
    success: bool


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
    problem: Literal["no_answer", "several_answers", "no_action", "unknown_action"] | None


class TurnInfo(BaseModel):
    """What goes beside a turn's message."""

    reply: Reply | None = Field(description="How the reply was read; null at reset.")
    actions: list[int] = Field(description="Moves played this turn.")
    rewards: list[float] = Field(description="The reward of each of them.")
    success: bool
    level_id: str
    turn: int = Field(description="Turns taken.")
    actions_left: int
    action_names: list[str] = Field(description="What a reply calls the actions, in the order of their ids.")


class TurnReset(BaseModel):
    """The start of an episode of turns."""

    observation: str = Field(description="The user message to answer.")
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
    messages: list[dict[str, str]] | None = Field(description="The conversation so far; grain turn only.")
    expires_after: float


class Listed(BaseModel):
    """One game."""

    id: str
    name: str
    summary: str
    horizon: int | None = Field(description="Moves after which an episode is truncated.")
    action_names: list[str]
    knobs: dict[str, Any] = Field(description="The game's arguments and their defaults.")
    presets: list[str]
    vocabularies: list[str]


class Health(BaseModel):
    """That the server runs, and how full it is."""

    status: Literal["ok"]
    version: str
    sessions: int
    envs: int = Field(description="Environments of all batches.")


class ProblemDetail(BaseModel):
    """What is wrong."""

    code: str = Field(description="For programs: one of the codes of the page.")
    message: str = Field(description="For people: what is wrong, what is allowed, and what to do.")


class Problem(BaseModel):
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

    error: ProblemDetail
