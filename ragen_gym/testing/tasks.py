"""``check_task``: the promises of ``ragen_gym.envs.task``, tested on a text task."""

from __future__ import annotations

import json
import os
import random  # noqa: TID251  # to see that a task leaves it alone
import sys
from typing import Any

import numpy as np

from ragen_gym.core.child_python import run_in_another_process
from ragen_gym.core.levels import SPLITS
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.validation import check_number
from ragen_gym.envs.policies import play_turns
from ragen_gym.envs.task import TaskEnv
from ragen_gym.testing.games import require

SEEDS = (0, 1, 2**31 - 1)
REPLIES = ("", "I give up.", "<answer></answer>", "<answer>1", "\n\0 \N{SNOWMAN}", f"<answer>{'9' * 5000}</answer>")
_CHILD = """
import json, sys
path, name, options, seeds = json.loads(sys.stdin.read())
sys.path[:] = path
from ragen_gym.envs.task import TaskEnv
print(json.dumps([TaskEnv(name, **options).reset(seed=seed)[0] for seed in seeds]))
"""


def check_task(name: str, *, levels: int = 100, processes: bool = True, **options: Any) -> list[str]:
    """Check a text task: seeds, groups, splits, strange replies, the end of an episode, the oracle.

    Args:
        name: ``module:Name`` of the task.
        levels: problems of each split.
        processes: whether to ask another process, too, with another PYTHONHASHSEED (about a second).
        options: arguments of the task; for another process plain JSON values.

    Returns:
        Sentences on what was not checked; ``ragen-gym check`` prints them.

    Raises:
        AssertionError: what the task does and what it should do.
        ValueError: see ``TaskEnv``.
    """
    check_number("check_task", "levels", levels, 1, whole=True)
    np_state, state = np.random.get_state(), random.getstate()  # noqa: NPY002
    firsts = [_first(name, options, seed) for seed in SEEDS]
    _check_replies(name, options)
    _check_seeds(name, options, firsts)
    if processes:
        _check_process(name, options, firsts)
    unchecked = [] if processes else ["equal problems in another process"]
    unchecked += _check_splits(name, options, levels) + _check_oracle(TaskEnv(name, **options), levels)
    untouched = random.getstate() == state and str(np.random.get_state()) == str(np_state)  # noqa: NPY002
    require(untouched, f"{name} moves the global random state: draw from self.np_random, which reset(seed=…) seeds.")
    return unchecked


def _first(name: str, options: dict[str, Any], seed: int) -> str:
    env = TaskEnv(name, **options)
    try:
        return env.reset(seed=seed)[0]
    except Exception as error:
        raise AssertionError(f"{name}: reset(seed={seed}) raised {error!r}; it gives (message, info).") from error


def _check_seeds(name: str, options: dict[str, Any], firsts: list[str]) -> None:
    env, other = TaskEnv(name, **options), TaskEnv(name, **options)
    for member in range(3):
        for seed, first in zip(SEEDS, firsts, strict=True):
            message, info = env.reset(seed=seed, options={"noise_seed": member})
            require(
                message == first,
                f"{name}: seed {seed} gave {first!r}, and then {message!r}: the first message must follow from the "
                "seed alone, so that the episodes of a rollout group share it. Call super().reset(seed=seed) and draw "
                "from self.np_random.",
            )
            level = other.reset(seed=seed)[1]["level_id"]
            require(level == info["level_id"], f"{name}: seed {seed} has the level_ids {info['level_id']} and {level}.")
            env.step(REPLIES[member])


def _check_process(name: str, options: dict[str, Any], firsts: list[str]) -> None:
    request = json.dumps([[os.getcwd(), *sys.path], name, options, SEEDS]).encode()
    try:
        printed = run_in_another_process(_CHILD, request)
    except RuntimeError as error:
        raise AssertionError(f"{name}: {error}") from None
    require(
        json.loads(printed) == firsts,
        f"{name}: the same seeds give other problems in another process: something depends on hash(), the order of a "
        "set, the clock or the process.",
    )


def _check_splits(name: str, options: dict[str, Any], levels: int) -> list[str]:
    require(
        levels == 1 or len(set(TaskEnv(name, **options).level_families(range(levels)))) > 1,
        f"{name}: {levels} seeds give one problem, so none can be held out: if seeds differ in something that the "
        "first message does not say, give it at reset as info['level_id'].",
    )
    owner: dict[int, str] = {}
    unchecked: list[str] = []
    for split in SPLITS:
        env = TaskEnv(name, split=split, **options)
        try:
            families = env.level_families(range(levels))
        except ValueError as error:  # the task has too few problems for this split
            unchecked.append(f"problems of split={split!r}: the task has none ({error})")
            continue
        for family in families:
            require(
                owner.setdefault(family, split) == split,
                f"{name}: the splits {owner[family]} and {split} share the problem {family:016x}.",
            )
    return unchecked


def _check_replies(name: str, options: dict[str, Any]) -> None:
    for reply in REPLIES:
        env = TaskEnv(name, TurnConfig(max_turns=20), **options)
        env.reset(seed=0)
        try:
            info = play_turns(env, lambda _, reply=reply: reply)  # type: ignore[misc]
        except Exception as error:
            raise AssertionError(
                f"{name}: the reply {reply[:40]!r} raised {error!r}: any text may come from a model; answer it with a "
                "message and a reward."
            ) from error
        require(info["turn"] > 0, f"{name}: an episode is over before its first turn.")


def _check_oracle(env: TaskEnv, levels: int) -> list[str]:
    rng, rates = np.random.default_rng(0), dict[str, float]()
    players = {"optimal": env.optimal_reply} if env.has_oracle else {}
    players |= {"random": lambda: env.random_reply(rng)} if env.has_random_replies else {}
    for player, write in players.items():
        successes = 0
        for seed in range(levels):
            env.reset(seed=seed)
            successes += bool(play_turns(env, lambda _, write=write: write())["success"])  # type: ignore[misc]
        rates[player] = successes / levels
    require(
        len(rates) < 2 or rates["optimal"] >= rates["random"],
        f"{env.name}: optimal replies succeed in {rates.get('optimal', 0):.0%} of {levels} problems, random ones in "
        f"{rates.get('random', 0):.0%}: optimal_reply() is not a best reply.",
    )
    require(
        rates.get("optimal", 1.0) > 0,
        f"{env.name}: optimal_reply() succeeds in none of {levels} problems, within {env.max_turns} turns.",
    )
    unchecked = {
        "random play: the task has no random_reply(rng)": not env.has_random_replies,
        "the oracle: the task has no optimal_reply()": not env.has_oracle,
        "the oracle against random play: it needs optimal_reply() and random_reply(rng)": len(rates) == 1,
    }
    return [said for said, is_so in unchecked.items() if is_so]
