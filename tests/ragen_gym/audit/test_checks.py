"""Each check catches an environment with its fault, whose evidence then fails, and passes a sound one."""

from __future__ import annotations

import random  # noqa: TID251  # some faults move its global state
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ragen_gym.audit.worker.context import Context
from ragen_gym.audit.worker.gym_like import CallableTarget
from ragen_gym.audit.worker.protocol import Outcome
from ragen_gym.audit.worker.table import CHECKS

#: By check: the environments that have its fault, and a sound one.
ENVS = {
    "plays": ("FailsSometimes", "Maze"),
    "seed_repeats": ("IgnoresSeed", "Maze"),
    "seed_varies": ("OneEpisode", "Maze"),
    "seed_threads": ("SeedsGlobal", "Maze"),
    "seed_order": ("SharedNoise", "Maze"),
    "reset_clean": ("KeepsHistory", "Maze"),
    "global_random_read": ("ReadsGlobal", "SlipperyMaze"),
    "global_random_moved": ("MovesGlobal", "SlipperyMaze"),
    "group_level": ("CountsMembers", "Maze"),
    "group_noise": ("OneNoise", "SlipperyMaze"),
    "split_exact": ("SameSplits", "Maze"),
    "split_symmetry": ("TurnedSplits", "Maze"),
    "split_near": ("NextSplits", "Maze"),
    "levels_repeat": ("TenLevels", "UnsplitMaze"),
    "levels_solvable": ("Walled", "Maze"),
    "levels_trivial": ("NextToGoal", "Maze"),
    "observation_in_space": ("OutOfSpace", "Maze"),
    "observation_aliased": ("OneArray", "ArrayMaze"),
    "text_parses": ("Misread", "Readable"),
    "text_hides_state": ("HidesWalls", "Maze"),
    "reward_finite": ("PaysNan", "Maze"),
    "reward_idle": ("PaysSilence", "Sum"),
    "reward_constant": ("OneAnswer", "Sum"),
    "reward_random": ("WinsAnyway", "Maze"),
    "reward_after_end": ("PaysAfterEnd", "Maze"),
    "info_success": ("SaysSuccess", "Maze"),
    "info_effective": ("SaysEffective", "Maze"),
    "mask_matches": ("MaskOfOnes", "Maze"),
    "action_in_space": ("RefusesAction", "Maze"),
    "action_out_of_range": ("WrapsAround", "Maze"),
    "exception_state": ("HurtByErrors", "Maze"),
    "resources": ("LeavesThreads", "Maze"),
    "memory": ("Hoards", "Maze"),
    "speed": ("Slow", "Maze"),
}
#: Actions of the environments that list none.
MENU = [str(number) for number in range(9)]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def context(name: str) -> Context:
    menu = MENU if name in ("Sum", "PaysSilence", "OneAnswer") else []
    seeds = 96 if name == "HidesWalls" else 16  # two mazes must look alike
    return Context(CallableTarget(f"audited_envs:{name}", {}, menu), seeds=seeds, steps=24, seconds=60)


def outcome(name: str, check: str) -> Outcome:
    run = CHECKS[check].run
    assert run is not None
    return context(name).run(run)


def test_every_check_is_tried() -> None:
    assert set(ENVS) == {check.id for check in CHECKS.values() if check.run is not None}


@pytest.mark.parametrize("check", ENVS)
def test_a_fault_is_found_and_its_evidence_fails(check: str) -> None:
    found = outcome(ENVS[check][0], check)
    assert found.status == "finding", found
    assert found.detail
    with pytest.raises(RuntimeError if "# raises" in found.evidence else AssertionError):
        exec(compile(found.evidence, check, "exec"), {})


@pytest.mark.parametrize("check", ENVS)
def test_a_sound_environment_passes(check: str) -> None:
    found = outcome(ENVS[check][1], check)
    assert found.status == "passed", found


@pytest.mark.parametrize("check", ENVS)
def test_what_does_not_apply_says_why(check: str) -> None:
    found = outcome("Sum", check)
    assert found.status != "finding", found
    assert len(found.detail) > 10
