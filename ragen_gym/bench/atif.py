"""Episodes in the Agent Trajectory Interchange Format, ATIF 1.7, as Harbor and tools for agents' traces read it.

The format: https://github.com/harbor-framework/harbor, RFC 0001. Version 1.8 adds only audio.
"""

from __future__ import annotations

from typing import Any

from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.suites import Split

_PICTURES = "The model saw pictures, which the run does not keep: <image> stands for each."


def trajectories(run: BenchResults) -> dict[str, dict[str, Any]]:
    """Documents of all episodes, by file name; see ``trajectory``."""
    return {f"{record.split}-{record.index}-{record.rollout}.json": trajectory(run, record) for record in run.records}


def trajectory(run: BenchResults, record: EpisodeRecord) -> dict[str, Any]:
    """One episode as a document of the format, in plain JSON values.

    The steps are the system message, the first user message, and one of the agent for each turn: the reply as the game
    read it, thinking included, with the game's answer as its observation. An agent of single moves says the moves'
    names. Rewards and malformed replies stand in ``extra``, as does the level.
    """
    (split,) = (each for each in run.suite.splits if each.name == record.split)
    names = _action_names(split, record) if any(turn.reply is None for turn in record.turns) else ()
    first = record.turns[0].message if record.turns else record.last_board
    steps: list[dict[str, Any]] = [{"source": "system", "message": record.system}] if record.system else []
    steps.append({"source": "user", "message": first})
    after = [*[turn.message for turn in record.turns[1:]], record.last_board]
    steps += [_step(turn, names, shown) for turn, shown in zip(record.turns, after, strict=False)]
    tokens = {
        f"total_{name}": sum(getattr(turn, name) or 0 for turn in record.turns)
        for name in ("prompt_tokens", "completion_tokens")
        if any(getattr(turn, name) is not None for turn in record.turns)
    }
    kind, _, model = run.agent.partition(":")
    level = {name: getattr(record, name) for name in ("split", "index", "rollout", "level_id", "noise_seed")}
    ended = {name: getattr(record, name) for name in ("success", "terminated", "truncated", "detail", "seconds")}
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": f"{run.suite.name} {run.suite.hash} {run.agent}",
        "trajectory_id": record.key,
        "agent": {
            "name": run.agent,
            "version": run.info["sessions"][-1]["versions"]["ragen_gym"],
            **({"model_name": model} if kind in ("openai", "hf") else {}),
            "extra": {"settings": run.info["settings"], "temperature": run.info["temperature"]},
        },
        "steps": [{"step_id": place, **step} for place, step in enumerate(steps, 1)],
        **({"notes": _PICTURES} if split.turn_config.sees else {}),
        "final_metrics": {**tokens, "total_steps": len(steps), "extra": {"reward": record.total_reward}},
        "extra": {
            "suite": run.suite.name,
            "suite_hash": run.suite.hash,
            **level,
            **ended,
            "failure": record.failure and record.failure.value,
        },
    }


def _action_names(split: Split, record: EpisodeRecord) -> tuple[str, ...]:
    env = split.make_game()
    split.begin(env, record.index, record.noise_seed)  # the names may depend on the level
    return env.action_names


def _step(turn: TurnRecord, names: tuple[str, ...], shown: str) -> dict[str, Any]:
    """The agent's step of a turn, and what it was shown after it."""
    reply = ", ".join(names[action] for action in turn.actions) if turn.reply is None else turn.reply
    metrics = {
        name: value for name in ("prompt_tokens", "completion_tokens") if (value := getattr(turn, name)) is not None
    }
    apart = turn.reasoning and turn.reasoning not in reply  # a server's reasoning that is no part of the reply
    return {
        "source": "agent",
        "message": reply,
        **({"reasoning_content": turn.reasoning} if apart else {}),
        "observation": {"results": [{"content": shown}]},
        **({"metrics": metrics, "llm_call_count": 1} if metrics else {}),
        "extra": {
            "reward": turn.reward,
            "actions": list(turn.actions),
            "problem": turn.problem,
            "finish_reason": turn.finish_reason,
            "seconds": turn.seconds,
        },
    }
