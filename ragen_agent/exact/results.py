"""Results of an exact evaluation: a record of each level, their summary, and the page of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ragen_agent.exact.level import QUANTITIES, ExactLevel
from ragen_agent.exact.policy_value import LevelValue, StateValue
from ragen_agent.exact.reply_tree import INNER
from ragen_agent.run.evaluation import MOST_STATES, scripted_rate
from ragen_agent.tokens.rollout import Instance
from ragen_gym import __version__
from ragen_gym.bench.report.html_page import plural, render_page
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import append_json_lines, read_json_lines, repair_json_lines, write_atomic
from ragen_gym.envs.policies import blind_value, random_reply, random_value

REFERENCES = ("random", "blind", "optimal")
SAMPLES = tuple(2**power for power in range(11))
"""The k of pass@k in a summary."""

_SHOWN_STATES, _SHOWN_OUTCOMES = 12, 8
"""States of a level, and outcomes of a state, that a record describes, the likeliest first."""

_RANDOM_EPISODES = 64
"""Episodes of random play on a level with too many states to compute it exactly."""


def references(level: ExactLevel) -> dict[str, float]:
    """Exact success of random moves, of the blind script where there is one, and of optimal play.

    Blind and optimal play look after every move, a policy only after every reply. Where random play meets too many
    states, it is the rate of ``random_episodes`` sampled ones.
    """
    env, start = level.env, level.start
    env.stand_at(start.board, start.integers, turn=0, played=0, earned=None, total=None)
    found = {"optimal": float(env.solution().success(*env.env.state, env.actions_left))}
    if env.has_blind:
        found["blind"] = blind_value(env.env, env.action_budget)[0]
    try:
        return found | {"random": random_value(env.env, env.action_budget, MOST_STATES)[0]}
    except OverflowError:
        again = [Instance(level.instance.seed, number) for number in range(_RANDOM_EPISODES)]
        sampled = {"random": scripted_rate(env, again, random_reply, 0).rate, "random_episodes": _RANDOM_EPISODES}
        return found | sampled


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
    found["random_sampled"] = any("random_episodes" in each for each in records)
    found["widest"] = max(high - low for low, high in (each["success"] for each in records))
    found["tokens"] = int(sum(each["tokens"] for each in records))
    return found


class RecordFolder:
    """A folder of records that are kept as they come: what was asked, the records, a summary, and further files.

    Args:
        path: the folder, new or begun.
        kind: ``KIND.json`` holds what was asked.
        records: the name of the file of records.
        asked: all that the records depend on, as JSON values.

    Raises:
        ValueError: the folder holds results of something else.
    """

    def __init__(self, path: Path, kind: str, records: str, asked: Mapping[str, Any]) -> None:
        self.path, self._records = path, path / records
        path.mkdir(parents=True, exist_ok=True)
        about = path / f"{kind}.json"
        text = json.dumps(asked, indent=2, sort_keys=True) + "\n"
        if about.is_file() and about.read_text(encoding="utf-8") != text:
            before = json.loads(about.read_text(encoding="utf-8"))
            other = sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name))
            raise ValueError(
                f"{path} holds the values of another evaluation (other: {', '.join(other)}); choose another --out."
            )
        write_atomic(about, text)
        repair_json_lines(self._records)

    def records(self) -> list[dict[str, Any]]:
        """The records so far."""
        return read_json_lines(self._records)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records: all or none."""
        append_json_lines(self._records, records)

    def finish(self, found: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_atomic(self.path / "summary.json", json.dumps(found, indent=2) + "\n")


_TERMS = (
    (
        "success",
        "Chance that an episode on the level succeeds, summed over all replies that the policy is likely to give.",
    ),
    ("interval", "Holds the true number with certainty; its width is what unlikely replies, left out, could change."),
    ("levels' interval", "95 % confidence for the mean over all levels of the split, of which these are a sample."),
    ("pass@k", "Mean over levels of 1 - (1 - p)^k: the chance that one of k episodes succeeds."),
    ("reached", "Chance that an episode comes to this state."),
    ("Q", "Expected success or return after a reply, if the policy goes on by itself."),
    ("random, blind", "Success of drawn moves, exact unless called sampled, and of a script that ignores obstacles."),
    ("optimal", "Exact success of an oracle that looks after every move; a policy looks after every reply."),
)


def shown_interval(ends: Sequence[float], scale: float = 100.0, digits: int = 2) -> str:
    """An interval as text: one number where both ends round to it."""
    low, high = (f"{scale * end:.{digits}f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def success_rows(player: str, found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of a table: the player, its success in percent, and the 95 % interval over levels."""
    names = {name: name for name in REFERENCES} | {"random": "random, sampled" if found["random_sampled"] else "random"}
    own = (player, shown_interval(found["success"]), shown_interval(found["levels_interval"], digits=1))
    return [own, *((names[name], f"{100 * found[name]:.2f}", "") for name in REFERENCES if name in found)]


def page(about: Mapping[str, Any], found: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page.

    Args:
        about: what was asked.
        found: the summary.
        records: of the levels.
    """
    turns = len(records[0]["success_by_turn"])
    return render_page(
        "exact.html",
        None,
        folder=Path(__file__).with_name("templates"),
        kind="Exact evaluation",
        title=f"{about['model']} on {about['game']}",
        lede=f"Values of the policy at temperature {about['temperature']:g}, summed over its replies: no episode was "
        "sampled.",
        counts=[plural(found["levels"], "level"), plural(found["tokens"], "token")],
        findings=_findings(found),
        rows=success_rows("policy", found),
        samples=SAMPLES,
        turns=range(1, turns + 1),
        passes={k: [shown_interval(ends) for ends in found["pass_at_k"][k]] for k in SAMPLES},
        levels=sorted(records, key=lambda each: -sum(each["success"])),
        references=[name for name in REFERENCES if name in found],
        shown=shown_interval,
        terms=_TERMS,
        colophon=[f"ragen-gym {__version__}.", f"Mass left out of an episode's replies: at most {about['mass']:g}."],
    )


def _findings(found: Mapping[str, Any]) -> list[str]:
    said = [
        f"The policy solves {shown_interval(found['success'])} % of these levels; optimal play "
        f"{100 * found['optimal']:.2f} %.",
        f"Malformed: {shown_interval(found['malformed_share'])} % of its replies. Moves of an episode: "
        f"{shown_interval(found['moves'], 1.0)}.",
    ]
    if "blind" in found and found["success"][1] <= found["blind"]:
        said.append(f"That is at most what the blind script reaches, {100 * found['blind']:.2f} %.")
    return said
