"""Text tasks: what ``TaskEnv`` makes of any ``gymnasium.Env[str, str]`` with instructions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from ragen_gym import make_turn
from ragen_gym.core.levels import split_of_hash
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.policies import random_reply
from ragen_gym.envs.task import TaskEnv, make_reply_env
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import find, full_name, load, task_of
from ragen_gym.tasks import Countdown


class Echo(gymnasium.Env[str, str]):
    """Repeat a word; has nothing that is optional."""

    instructions = "Say it again."
    observation_space = action_space = spaces.Text(100, min_length=0)

    def __init__(self, words: int = 50, turns: int = 9) -> None:
        self.words, self.turns = words, turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.options, self.said = options, 0
        self.word = f"word {self.np_random.integers(self.words)}"
        return self.word, {"own": 7}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said += 1
        return "Again.", float(action == self.word), self.said == self.turns, False, {}


class Whole(Echo):
    """The same with all that is optional, and splits of its own."""

    def __init__(self, split: str = "train", **options: Any) -> None:
        super().__init__(**options)
        self.split = split

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        message, info = super().reset(seed=seed, options=options)
        self.word = f"{self.split} {message}"
        return self.word, info | {"level_id": self.word.upper()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        _, reward, over, _, _ = super().step(action)
        return "Again.", reward - 1, over, False, {"success": reward > 0}

    def optimal_reply(self) -> str:
        return self.word

    def random_reply(self, rng: np.random.Generator) -> str:
        return f"train word {rng.integers(self.words)}"


class Mute(Echo):
    instructions = None  # type: ignore[assignment]


class Numbers(Echo):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 3, {}


class Endless(Echo):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Again.", float("nan"), False, False, {}


class Configured(Echo):
    def __init__(self, name: str, config: str) -> None:
        super().__init__()
        self.given = (name, config)


class Optimizer:
    """Has a step, as the optimizers of torch have."""

    def __init__(self) -> None:
        raise AssertionError("what is no environment was made")

    def step(self) -> None:
        """Update."""


def constant() -> Any:
    return 3


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes above as a module that a user has written."""
    made = ModuleType("own_tasks")
    vars(made).update(
        {each.__name__: each for each in (Echo, Whole, Mute, Numbers, Endless, Configured, Optimizer, constant)},
        number=3,
    )
    monkeypatch.setitem(sys.modules, "own_tasks", made)


def test_a_conversation_is_kept_and_the_budget_of_turns_ends_it() -> None:
    env = TaskEnv("own_tasks:Echo", TurnConfig(max_turns=2))
    message, info = env.reset(seed=3, options={"noise_seed": 5})
    assert (info["turn"], info["success"], info["own"], env.over) == (0, False, 7, False)
    assert env.env.options == {"noise_seed": 5}  # type: ignore[attr-defined]
    assert env.step(message)[1:4] == (1.0, False, False)
    said, reward, terminated, truncated, info = env.step("no")
    assert (said, reward, terminated, truncated) == ("Again.", 0.0, False, True)
    assert [each["role"] for each in info["messages"]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert info["messages"][0]["content"] == "Say it again."
    assert (info["reply"], info["actions"], info["rewards"], info["turn"]) == (None, (), (0.0,), 2)
    assert info["success"], "without info['success'] a positive return is one"
    with pytest.raises(ResetNeeded):
        env.step("again")


def test_a_seed_gives_one_problem_in_every_environment_of_a_split() -> None:
    first, second = (TaskEnv("own_tasks:Echo", split="test") for _ in range(2))
    problems = {}
    for seed in (0, 7, 2**62 - 1):
        message, info = first.reset(seed=seed)
        problems[seed] = info["level_id"]
        assert second.reset(seed=seed, options={"noise_seed": seed + 1}) == (message, info)
    seven: Any = np.int64(7)
    assert first.reset(seed=seven)[1]["level_id"] == problems[7]
    with pytest.raises(ValueError, match="seed=True must be None or an integer from 0 on"):
        first.reset(seed=True)
    first.reset(seed=1)
    families = first.level_families(problems)
    assert [f"{family:016x}" for family in families] == [*problems.values()]
    assert not first.over, "asking for families leaves the episode in play alone"
    assert first.turn == 0


def test_splits_share_no_problem_and_together_are_all() -> None:
    found = {
        split: {env.reset(seed=seed)[0] for seed in range(400)}
        for split in ("train", "validation", "test")
        for env in [TaskEnv("own_tasks:Echo", split=split)]
    }
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 50
    assert len(found["train"]) > 30


def test_a_task_may_make_its_splits_and_name_its_problems_itself() -> None:
    env = TaskEnv("own_tasks:Whole", split="test", words=3)
    assert {env.reset(seed=seed)[0].split()[0] for seed in range(5)} == {"test"}
    named = TaskEnv("own_tasks:Whole")
    assert named.reset(seed=1)[0].startswith("train")


def test_the_arguments_of_a_task_may_have_any_name() -> None:
    env = make_reply_env("own_tasks:Configured", name="first", config="second", max_turns=3)
    assert env.env.given == ("first", "second")  # type: ignore[attr-defined]
    assert env.max_turns == 3


def test_a_split_that_no_problem_is_of_is_refused_with_the_reason() -> None:
    family = TaskEnv("own_tasks:Echo", words=1).level_families([0])[0]
    for split in ("train", "validation", "test"):
        env = TaskEnv("own_tasks:Echo", split=split, words=1)
        if split == split_of_hash(family):
            assert env.level_families([3]) == [family]
            continue
        with pytest.raises(ValueError, match=r"1000 seeds gave 1 different problems.*parameter split"):
            env.reset(seed=0)


def test_the_oracle_and_random_replies_are_the_tasks_own() -> None:
    env = TaskEnv("own_tasks:Whole", split="train")
    message, _ = env.reset(seed=0)
    assert env.optimal_reply() == message
    assert env.step(env.optimal_reply())[4]["success"]
    assert random_reply(env, np.random.default_rng(0)).startswith("train word")
    plain = TaskEnv("own_tasks:Echo")
    assert not plain.has_oracle
    assert not plain.has_random_replies
    with pytest.raises(ValueError, match=r"own_tasks:Echo has no oracle.*optimal_reply\(\)"):
        plain.optimal_reply()
    with pytest.raises(ValueError, match=r"own_tasks:Echo draws no replies.*random_reply\(rng\)"):
        random_reply(plain, np.random.default_rng(0))


def test_a_forbidden_text_does_not_reach_the_task() -> None:
    env = TaskEnv("own_tasks:Echo")
    env.forbidden_texts = ("<|im_end|>", "ORD")
    message, _ = env.reset(seed=0)
    assert env.step(message)[1] == 0.0


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("own_tasks:Mute", {}, r"has no instructions \(found None\).*system message"),
        ("own_tasks:constant", {}, r"makes 3, which is no gymnasium.Env.*ragen_gym.register"),
        ("own_tasks:Echo", {"wrds": 3}, r"no option 'wrds': it has words, turns. Did you mean words"),
        ("own_tasks:Echo", {"split": "dev"}, r"split='dev' is not a split"),
        ("own_tasks:Echo", {"regret": True}, r"has no option 'regret'"),
        ("own_tasks:Echo", {"grounding": True}, r"grounding=True is for games"),
        ("own_tasks:Echo", {"summary": 2}, r"summary=2 is for games"),
        ("own_tasks:Echo", {"observation": "image"}, r"observation='image' is for games"),
        ("own_tasks:Echo", {"prompt": "ragen-v1"}, r"prompt='ragen-v1' is for games"),
        ("own_tasks:Configured", {"name": "a"}, r"own_tasks:Configured: missing a required argument: 'config'"),
        ("own_tasks:number", {}, r"adds no game of that name .*no text task of that name"),
        ("own_tasks:Nothing", {}, r"adds no game of that name"),
        ("no_such_module:Task", {}, r"importing the module no_such_module failed"),
    ],
)
def test_what_is_wrong_with_a_task_is_said(name: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_reply_env(name, **options)


def test_what_plays_a_task_and_takes_its_turns_is_said() -> None:
    with pytest.raises(ValueError, match=r"no option 'max_turns': .* give TurnConfig\(max_turns=…\)"):
        TaskEnv("own_tasks:Echo", max_turns=3)
    with pytest.raises(
        ValueError, match=r"never_imported has not been imported: .* ragen_gym.TaskEnv plays text tasks"
    ):
        make_turn("never_imported:Echo")


def test_what_a_task_gives_is_checked() -> None:
    with pytest.raises(ValueError, match="own_tasks:Numbers gave 3 as a message"):
        TaskEnv("own_tasks:Numbers").reset(seed=0)
    endless = TaskEnv("own_tasks:Endless")
    endless.reset(seed=0)
    with pytest.raises(ValueError, match="the reward nan"):
        endless.step("")
    with pytest.raises(ValueError, match="not int"):
        endless.step(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed=-1"):
        endless.reset(seed=-1)


def test_a_class_of_a_module_that_is_loaded_is_no_task_until_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite's table or a request may name any class: it is made only where a user named it."""
    monkeypatch.setattr("ragen_gym.games.registry._LOADED", set())
    for name in ("own_tasks:Echo", "own_tasks:Optimizer", "ragen_gym.envs.step:StepEnv"):
        assert task_of(name) is None
        with pytest.raises(ValueError, match=rf"'{name}' is not known here: .* has registered no game"):
            find(name)
    TaskEnv("own_tasks:Echo")
    assert task_of("own_tasks:Echo") is Echo
    assert task_of("ragen_gym.tasks:Countdown") is Countdown, "those of the package need not be named"


def test_a_task_is_no_game_and_a_game_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before_its_import:  # the advice was to import it, and to serve it, which is refused
        before_its_import.delitem(sys.modules, "ragen_gym.tasks")
        with pytest.raises(ValueError, match=r"'ragen_gym\.tasks:Countdown' is a text task"):
            find("ragen_gym.tasks:Countdown")
    assert full_name("own_tasks:Echo") == "own_tasks:Echo"
    for look in (find, load):
        with pytest.raises(ValueError, match="'own_tasks:Echo' is a text task"):
            look("own_tasks:Echo")
    with pytest.raises(ValueError, match=r"is a text task: .*; ragen_gym\.TaskEnv plays text tasks"):
        make_turn("own_tasks:Echo")
    assert task_of("FrozenLake") is task_of("ragen_gym:ragen/FrozenLake-v0") is None
    assert isinstance(make_reply_env("FrozenLake", max_turns=3), TurnEnv)
    with pytest.raises(ValueError, match="'FrozenLake' is not a text task"):
        TaskEnv("FrozenLake")
