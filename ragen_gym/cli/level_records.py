"""Levels with their ids and the oracle's solution, as records and as files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import gymnasium

from ragen_gym.core.levels import Level
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Solution

__all__ = ["LevelRecord", "distinct_levels", "file_bytes", "record_of"]

_UNBOUNDED = 1000
_TRIES_PER_LEVEL, _MORE_TRIES = 100, 1000


@dataclass(frozen=True)
class LevelRecord:
    """A level and optimal play of it.

    Attributes:
        id: `Level.id`.
        game: name of its game.
        split: the split that owns it, or None.
        text: its first board in the game's own symbols.
        actions: the number of actions that the next two allow.
        optimal_success: the highest probability of success, in [0, 1].
        optimal_return: the highest expected sum of rewards.
        first_action: name of a best first action.
        plan: names of the actions of a best episode where nothing is random and it succeeds, else None.
        problem: why the oracle gave no answer, or None; the four before it are then empty.
    """

    id: str
    game: str
    split: str | None
    text: str
    actions: int
    optimal_success: float = 0.0
    optimal_return: float = 0.0
    first_action: str = ""
    plan: tuple[str, ...] | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON."""
        return {**asdict(self), "plan": None if self.plan is None else list(self.plan)}


def distinct_levels(env: StepEnv, n: int, seed: int) -> list[Level]:
    """The first ``n`` different levels of a seed.

    Raises:
        ValueError: ``n`` is below 1, or the environment does not have so many.
    """
    if n < 1:
        raise ValueError(f"-n {n}: ask for one level or more.")
    found: dict[str, Level] = {}
    tries = _TRIES_PER_LEVEL * n + _MORE_TRIES
    for i in range(tries):
        env.reset(seed=seed if i == 0 else None)
        level = env.level
        found.setdefault(level.id, level)
        if len(found) == n:
            return list(found.values())
    raise ValueError(
        f"{env.game_spec.id} gave only {len(found)} different levels of split {env.split or 'any'} in {tries} draws; "
        f"ask for -n {len(found)} or fewer, or for a larger board."
    )


def record_of(env: StepEnv, level: Level, actions: int | None, solution: Solution | None = None) -> LevelRecord:
    """What the oracle knows of a level within so many actions (None: as many as the rules allow).

    Args:
        env: an environment that can play the level; it is reset.
        level: the level.
        actions: the number of actions.
        solution: the oracle of the level; the game's own for None.
    """
    game = env.game
    env.reset(seed=0, options={"level": level})
    board, state = env.state
    left = actions or game.longest or _UNBOUNDED
    known = level.id, level.game, game.split_of(board), level.text, left
    try:
        solution = solution or env.solution()
        success = solution.success(board, state, left)
        total = solution.expected_return(board, state, left)
        first = env.action_names[solution.action(board, state, left)]
        plan = _plan(env, solution, left) if success == 1 and not game.stochastic else None
    except RuntimeError as error:  # a search that met its limit: reported, never a wrong answer
        return LevelRecord(*known, problem=str(error))
    return LevelRecord(*known, success, total, first, plan)


def file_bytes(suffix: str, levels: list[LevelRecord]) -> bytes:
    """A level file of the form that its suffix names.

    Raises:
        ValueError: an unknown suffix.
        gymnasium.error.DependencyNotInstalled: the form needs pyarrow.
    """
    if suffix == ".txt":
        blocks = [f"; {level.id}\n{level.text}" for level in levels]
        return ("\n\n".join(blocks) + "\n").encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(level.to_dict(), ensure_ascii=False) + "\n" for level in levels).encode()
    if suffix != ".parquet":
        raise ValueError(
            f"--out: {suffix or 'no ending'} is not a form of level file: end it in .txt, .jsonl or .parquet."
        )
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        message = "Parquet files need pyarrow: run `pip install pyarrow`, or write .jsonl."
        raise gymnasium.error.DependencyNotInstalled(message) from None
    out = BytesIO()
    pq.write_table(pa.Table.from_pylist([level.to_dict() for level in levels], schema=_schema(pa)), out)
    return out.getvalue()


def _schema(pa: Any) -> Any:
    """Column types, so that a column without any value has its type too."""
    kinds = {
        "id": pa.string(),
        "game": pa.string(),
        "split": pa.string(),
        "text": pa.string(),
        "actions": pa.int64(),
        "optimal_success": pa.float64(),
        "optimal_return": pa.float64(),
        "first_action": pa.string(),
        "plan": pa.list_(pa.string()),
        "problem": pa.string(),
    }
    return pa.schema(list(kinds.items()))


def _plan(env: StepEnv, solution: Solution, left: int) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        action = solution.action(*env.state, left - len(names))
        names.append(env.action_names[action])
        if env.step(action)[2]:
            return tuple(names)
