"""Each check catches an environment with its fault, whose evidence then fails, and passes a sound one."""

from __future__ import annotations

import random  # noqa: TID251  # some faults move its global state
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_gym.audit.worker.context import Context
from ragen_gym.audit.worker.gym_like import CallableTarget, GymnasiumTarget
from ragen_gym.audit.worker.main import CHECKS
from ragen_gym.audit.worker.protocol import Outcome, key, literal
from ragen_gym.audit.worker.text_libraries import GemTarget, ReasoningGymTarget, TextArenaTarget

#: By check: the environments that have its fault, and a sound one.
ENVS = {
    "plays": ("FailsSometimes", "Maze"),
    "seed_repeats": ("IgnoresSeed", "Maze"),
    "seed_threads": ("SeedsGlobal", "Maze"),
    "reset_clean": ("KeepsHistory", "Maze"),
    "global_random_read": ("ReadsGlobal", "SlipperyMaze"),
    "global_random_moved": ("MovesGlobal", "SlipperyMaze"),
    "group_level": ("CountsMembers", "Maze"),
    "split_exact": ("SameSplits", "Maze"),
    "levels_repeat": ("TenLevels", "UnsplitMaze"),
    "observation_in_space": ("OutOfSpace", "Maze"),
    "reward_idle": ("PaysSilence", "Sum"),
    "reward_after_end": ("PaysAfterEnd", "Maze"),
    "action_in_space": ("RefusesAction", "Maze"),
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
    menu = MENU if name in ("Sum", "PaysSilence") else []
    return Context(CallableTarget(f"audited_envs:{name}", {}, menu), seeds=16, steps=24, seconds=60)


def outcome(name: str, check: str) -> Outcome:
    return context(name).run(CHECKS[check])


def test_every_check_is_tried() -> None:
    assert {*ENVS, "answers_right"} == {check.id for check in CHECKS.values() if check.run is not None}


@pytest.mark.slow
@pytest.mark.parametrize("check", ENVS)
def test_a_fault_is_found_and_its_evidence_fails(check: str) -> None:
    """Of the environment with the fault; it says nothing against the sound one."""
    faulty, sound = ENVS[check]
    found = outcome(faulty, check)
    assert found.status == "finding", found
    assert found.detail
    with pytest.raises(RuntimeError if "# raises" in found.evidence else AssertionError):
        exec(compile(found.evidence, check, "exec"), {})
    with suppress(gymnasium.error.ResetNeeded, ValueError):  # what the faulty one took is refused
        exec(compile(found.evidence.replace(faulty, sound), check, "exec"), {})


@pytest.mark.parametrize(
    "action", [3, "a'b", np.int64(2), np.float32(0.1), np.array([0.1, 1 / 3]), {"a": (np.ones((2, 2), np.int8), [1])}]
)
def test_an_action_is_written_as_python(action: object) -> None:
    again = eval(literal(action), {"numpy": np})
    assert (key(again), repr(type(again))) == (key(action), repr(type(action)))


@pytest.mark.parametrize(
    ("name", "check", "status"),
    [
        ("TakesAny", "seed_repeats", "passed"),
        ("Swallows", "split_exact", "not applicable"),
        ("OwnGenerator", "levels_repeat", "not applicable"),
    ],
)
def test_a_sound_environment_of_another_form_is_read_rightly(name: str, check: str, status: str) -> None:
    found = outcome(name, check)
    assert found.status == status, found


def test_a_seed_among_arguments_of_any_name_is_in_the_evidence() -> None:
    names: dict[str, Any] = {}
    exec(context("TakesAny").target.code, names)
    new, start = names["new"], names["start"]
    assert start(new(), 3) == start(new(), 3) != start(new(), 4)


class Made:
    """An environment or data set of a text library, and the options that it was made with."""

    def __init__(self, name: str, **options: object) -> None:
        self.options, self.unwrapped = options, self
        self.state = SimpleNamespace(game_state={}, rewards=None)

    def reset(self, **_: object) -> tuple[str, dict[str, object]]:
        return "", {}

    def get_observation(self) -> tuple[int, str]:
        return 0, ""

    def __getitem__(self, place: int) -> dict[str, object]:
        return {"question": self.options, "answer": ""}


@pytest.mark.parametrize(
    ("target", "module", "maker"),
    [(GemTarget, "gem", "make"), (TextArenaTarget, "textarena", "make")],
)
def test_options_of_text_libraries_are_in_the_evidence(
    target: type[GemTarget | TextArenaTarget], module: str, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{maker: Made}))
    found = target("Sokoban-v0", {"size": 3}, [])
    assert found.make().env.options == {"size": 3}
    names: dict[str, Any] = {}
    exec(found.code, names)
    assert (names["new"]().options, names["new"](size=4).options) == ({"size": 3}, {"size": 4})


def test_the_sides_of_a_split_go_over_the_options_in_the_evidence() -> None:
    found = GymnasiumTarget("ragen/FrozenLake-v0", {"size": 4, "split": "train"}, [])
    names: dict[str, Any] = {}
    exec(found.code, names)
    assert names["new"](size=5).unwrapped.game.width == found.make(size=5).core.game.width == 5
    assert names["new"]().unwrapped.split == "train"


def test_a_data_set_has_the_options_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=Made))
    found, names = ReasoningGymTarget("chain_sum", {"terms": 3}, []), dict[str, Any]()
    exec(found.code, names)
    for shown in (found.make().reset(5)[0], names["start"](names["new"](), 5)):
        assert shown == {"terms": 3, "size": 1, "seed": 5}
    for shown in (found.make(first_seed=1).reset(5)[0], names["start"](names["new"](first_seed=1), 5)):
        assert shown == {"terms": 3, "size": 100_000, "seed": 1}


@pytest.mark.parametrize(("scored", "status"), [(1.0, "passed"), (0.5, "finding")])
def test_a_data_set_is_asked_for_its_own_answers(scored: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scored(Made):
        def score_answer(self, answer: object, entry: dict[str, object]) -> float:
            return scored * (answer == entry["answer"])

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=Scored))
    found = Context(ReasoningGymTarget("chain_sum", {}, []), seeds=4).run(CHECKS["answers_right"])
    assert found.status == status, found
    if status == "finding":
        with pytest.raises(AssertionError):
            exec(found.evidence, {})


def test_levels_that_begin_alike_are_told_apart_by_what_follows() -> None:
    evidence = outcome("HidesTenLevels", "levels_repeat").evidence
    with pytest.raises(AssertionError):
        exec(evidence, {})
    exec(evidence.replace("HidesTenLevels", "HidesLevel"), {})


@pytest.mark.parametrize("check", ["seed_repeats", "reset_clean", "global_random_read", "group_level"])
def test_a_check_that_runs_out_of_time_says_how_much_it_looked_at(check: str) -> None:
    found = Context(CallableTarget("audited_envs:Maze", {}, []), seeds=16, steps=8, seconds=0).run(CHECKS[check])
    assert found.status == "passed"
    assert re.search(r"\b4 (seeds|groups)", found.detail), found.detail


@pytest.mark.parametrize("check", ENVS)
def test_a_sound_environment_passes(check: str) -> None:
    found = outcome(ENVS[check][1], check)
    assert found.status == "passed", found
