"""Results of an exact evaluation: a record of each level, their summary, and the folder that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragen_agent.exact.level import QUANTITIES, ExactLevel
from ragen_agent.exact.policy_value import LevelValue, StateValue
from ragen_agent.exact.reply_tree import INNER
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import append_json_lines, read_json_lines, repair_json_lines, write_atomic
from ragen_gym.envs.policies import blind_value, random_value

__all__ = ["REFERENCES", "SAMPLES", "ExactFolder", "level_record", "pass_at_k", "references", "summary"]

REFERENCES = ("random", "blind", "optimal")
SAMPLES = tuple(2**power for power in range(11))
"""The k of pass@k in a summary."""

_SHOWN_STATES, _SHOWN_OUTCOMES = 12, 8
"""States of a level, and outcomes of a state, that a record describes, the likeliest first."""


def references(level: ExactLevel) -> dict[str, float]:
    """Exact success of random moves, of the blind script where there is one, and of optimal play.

    Blind and optimal play look after every move, a policy only after every reply.
    """
    env, start = level.env, level.start
    env.stand_at(start.board, start.integers, turn=0, played=0, earned=None, total=None)
    found = {"random": random_value(env.env, env.action_budget)[0]}
    if env.has_blind:
        found["blind"] = blind_value(env.env, env.action_budget)[0]
    return found | {"optimal": float(env.solution().success(*env.env.state, env.actions_left))}


def level_record(found: LevelValue) -> dict[str, Any]:
    """A level's figures as JSON values; intervals are [low, high]."""
    names = found.level.env.action_names
    return {
        "level_id": found.level.level_id,
        "seed": found.level.instance.seed,
        **{quantity: list(found.of(quantity)) for quantity in QUANTITIES},
        "success_by_turn": found.success_by_turn.tolist(),
        "malformed": list(found.malformed),
        "replies": list(found.replies),
        **references(found.level),
        "tokens": sum(len(each.prompt) + int((each.tree.kind[1:] == INNER).sum()) for each in found.states),
        "states": [_state(found, each, names) for each in _likeliest(found)],
        "all_states": len(found.states),
    }


def _likeliest(found: LevelValue) -> list[StateValue]:
    chosen = sorted(found.states, key=lambda each: -each.weight)[:_SHOWN_STATES]
    return sorted(chosen, key=lambda each: each.state.turn)


def _state(found: LevelValue, each: StateValue, names: Sequence[str]) -> dict[str, Any]:
    tree, chances = each.tree, each.tree.chances
    return {
        "turn": each.state.turn + 1,
        "message": each.state.message,
        "reached": each.weight,
        "success": each.value[0].tolist(),
        "return": each.value[1].tolist(),
        "malformed": tree.malformed,
        "cut": tree.cut,
        "left_out": tree.left_out,
        "replies": [
            {
                "actions": [names[action] for action in tree.outcomes[number].actions],
                "malformed": tree.outcomes[number].malformed,
                "chance": float(chances[number]),
                "success": each.outcome_values[number][0].tolist(),
                "return": each.outcome_values[number][1].tolist(),
                "likeliest": _likeliest_text(found, each, number),
            }
            for number in np.argsort(-chances)[:_SHOWN_OUTCOMES].tolist()
        ],
    }


def _likeliest_text(found: LevelValue, each: StateValue, outcome: int) -> str:
    reach = np.where(each.tree.outcome == outcome, each.tree.reach, 0.0)
    return found.level.chat.decode_reply(each.tree.path(int(reach.argmax())))


def pass_at_k(records: Sequence[Mapping[str, Any]], k: int, turns: int | None = None) -> tuple[float, float]:
    """Interval of pass@k: the mean over levels of 1 - (1 - p)^k, the chance that one of k episodes succeeds.

    Args:
        records: of levels.
        k: episodes of a level, 1 or more.
        turns: successes within so many turns alone; None for whole episodes.
    """
    if k < 1:
        raise ValueError(f"k is {k}; pass@k needs one episode or more.")
    p = np.array([each["success"] if turns is None else each["success_by_turn"][turns - 1] for each in records])
    low, high = (1 - (1 - p.clip(0, 1)) ** k).mean(0).tolist()
    return low, high


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures over all levels.

    ``success`` is the interval that was computed, without sampling error; ``levels_interval`` holds the mean over all
    levels of the split with 95 % confidence, as these levels are a sample of them.
    """
    found: dict[str, Any] = {"levels": len(records)}
    for name in (*QUANTITIES, "malformed", "replies"):
        found[name] = np.mean([each[name] for each in records], 0).tolist()
    middle = [sum(each["success"]) / 2 for each in records]
    spread, half = mean_interval(middle), (found["success"][1] - found["success"][0]) / 2
    ends = max(0.0, spread.low - half), min(1.0, spread.high + half)
    found["levels_interval"] = list(ends) if isfinite(spread.low) else [0.0, 1.0]
    for name in REFERENCES:
        if all(name in each for each in records):
            found[name] = float(np.mean([each[name] for each in records]))
    found["regret"] = [found["optimal"] - end for end in found["success"][::-1]]
    malformed, replies = found["malformed"], found["replies"]
    found["malformed_share"] = [malformed[0] / replies[1], min(1.0, malformed[1] / replies[0])]
    turns = len(records[0]["success_by_turn"])
    found["pass_at_k"] = {k: [pass_at_k(records, k, turn) for turn in range(1, turns + 1)] for k in SAMPLES}
    widths: NDArray[np.float64] = np.array([each["success"] for each in records]) @ [-1.0, 1.0]
    found["widest"] = float(widths.max())
    found["tokens"] = int(sum(each["tokens"] for each in records))
    return found


class ExactFolder:
    """A folder of results: ``exact.json`` (what was asked), ``levels.jsonl``, ``summary.json`` and ``page.html``.

    Args:
        path: the folder, new or begun.
        asked: all that the values depend on, as JSON values.

    Raises:
        ValueError: the folder holds results of something else.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path, self.levels = path, path / "levels.jsonl"
        path.mkdir(parents=True, exist_ok=True)
        about = path / "exact.json"
        text = json.dumps(asked, indent=2, sort_keys=True) + "\n"
        if about.is_file() and about.read_text(encoding="utf-8") != text:
            before = json.loads(about.read_text(encoding="utf-8"))
            other = sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name))
            raise ValueError(
                f"{path} holds the values of another evaluation (other: {', '.join(other)}); choose another --out."
            )
        write_atomic(about, text)
        repair_json_lines(self.levels)

    def records(self) -> list[dict[str, Any]]:
        """The levels so far."""
        return read_json_lines(self.levels)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append levels: all or none."""
        append_json_lines(self.levels, records)

    def finish(self, found: Mapping[str, Any], page: str) -> None:
        """Write the summary and the page."""
        write_atomic(self.path / "summary.json", json.dumps(found, indent=2) + "\n")
        write_atomic(self.path / "page.html", page)
