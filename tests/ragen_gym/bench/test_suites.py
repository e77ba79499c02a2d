"""Suites: what they hold, that it is frozen, that training never met it, and random and optimal play of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragen_gym.bench.baselines import RANDOM_ROLLOUTS, baseline, oracle_episodes
from ragen_gym.bench.suites import SUITES, Split, Suite, load_suite, noise_seed
from ragen_gym.bench.suites.freeze import freeze, frozen_levels, recipes, write_frozen
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.policies import random_value

#: What every result of a suite carries. A suite that changes gets another name, and another line here.
HASHES = {
    "ragen-v1": "735014860742cc33",
    "generalization": "005a8e46ed9950a4",
    "difficulty": "4ea067d90a7c81e7",
    "beyond-blind": "d65ee2c5bb4a110c",
    "ragen-2": "ea4b6af1c4945779",
    "spa": "7c1a10a9214f8b6b",
    "echo": "0479ff05e1244597",
    "rllm-frozenlake": "5c740f4a6b3e6524",
    "vagen-v1": "3b00acc93766ef25",
    "visual-generalization": "cd53c6dee6dede6c",
    "budget-v1": "dac7b3a2daa215b7",
    "smoke": "a1ba5507de8a1a37",
}
#: The suites in which no two levels of a split are of one family, but for the two orders of a pair of arms.
FAMILIES = ("generalization", "difficulty", "beyond-blind", "visual-generalization", "budget-v1")
every_suite = pytest.mark.parametrize("name", SUITES)
SPLITS = [(name, split) for name in SUITES for split in load_suite(name).splits]
every_split = pytest.mark.parametrize(("name", "split"), SPLITS, ids=[f"{name}/{split.name}" for name, split in SPLITS])
PAPER = {split.name: split for split in load_suite("ragen-v1").splits}


def test_the_hash_of_every_suite_is_pinned() -> None:
    assert {name: load_suite(name).hash for name in SUITES} == HASHES


@every_suite
def test_a_suite_is_frozen_byte_by_byte(name: str, tmp_path: Path) -> None:
    for path, row in recipes(SUITES[name]).items():
        write_frozen(tmp_path / path.name, frozen_levels(row))
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path


def test_the_blind_script_loses_what_lies_beyond_it() -> None:
    rates = {split.name: baseline(split).means for split in load_suite("beyond-blind").splits}
    slippery = rates.pop("frozen_lake_slippery")
    assert [(rate["blind"], rate["optimal"]) for rate in rates.values()] == [(0, 1)] * 3
    assert (slippery["blind"] or 0) < 0.6 * (slippery["optimal"] or 0), "within 10 moves, and below half within 32"


@every_split
def test_a_split_can_be_played(name: str, split: Split) -> None:
    env = split.make_game()
    for level in {split.levels[0], split.levels[-1]}:
        _, info = env.reset(options={"level": level, "noise_seed": 1})
        assert info["level_id"] == level.id
        assert env.oracle_action() in range(len(env.game.Action))
    assert split.about
    assert len(split.levels) >= 8


@pytest.mark.parametrize("name", FAMILIES)
def test_no_level_is_one_that_training_draws(name: str) -> None:
    for split in load_suite(name).splits:
        game = split.make_game().game
        assert all(game.owns("test", game.board(level)) for level in split.boards), split.name


@pytest.mark.parametrize("name", FAMILIES)
def test_no_two_levels_are_of_one_family(name: str) -> None:
    for split in load_suite(name).splits:
        levels, families = len(set(split.levels)), len(set(split.families))
        assert families == (8 if split.env.startswith("Bandit") else len(split.levels)), split.name
        assert levels == (16 if split.env.startswith("Bandit") else len(split.levels)), split.name


@pytest.mark.parametrize(
    ("name", "distinct", "splits"),
    [
        ("sokoban", 239, {"train": 206, "validation": 26, "test": 24}),
        ("new_vocab", 239, {"train": 206, "validation": 26, "test": 24}),
        ("large_sokoban", 256, {"train": 211, "validation": 24, "test": 21}),
        ("frozen_lake", 254, {"train": 197, "validation": 33, "test": 26}),
        ("bandit", 16, {"test": 256}),
        ("bandit_rev", 16, {"test": 256}),
    ],
)
def test_the_papers_instances(name: str, distinct: int, splits: dict[str, int]) -> None:
    split = PAPER[name]
    game = split.make_game().game
    assert len(split.levels) == 256
    assert len(set(split.levels)) == distinct
    assert Counter(game.split_of(game.board(level)) for level in split.boards) == splits
    assert split.turn_config == TurnConfig(max_turns=5, max_actions_per_turn=5, max_actions=10)
    assert {"StarPO-S (Table 4)", "StarPO-S without thinking (Table 4)"} <= set(split.published)
    assert all(0 <= rate <= 1 for rate in split.published.values())


def test_difficulty_goes_from_easy_to_hard() -> None:
    rungs: dict[str, list[float]] = {}
    for split in load_suite("difficulty").splits:
        rungs.setdefault(split.env, []).append(baseline(split).means["random"] or 0.0)
    assert {name: len(rates) for name, rates in rungs.items()} == {
        "Sokoban": 4,
        "LargeSokoban": 4,
        "FrozenLake": 4,
        "Bandit": 3,
    }
    for name in ("Sokoban", "LargeSokoban"):
        assert rungs[name] == sorted(rungs[name], reverse=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda split: replace(split, levels=split.levels[:-1]),
        lambda split: replace(split, levels=split.levels[::-1]),
        lambda split: replace(split, env_options={"vocabulary": "digits"}),
        lambda split: replace(split, env_options={"vocabulary": Vocabulary("digits", "0123456")}),
        lambda split: replace(split, turn_config=TurnConfig(max_actions=9)),
        lambda split: replace(split, name="other"),
    ],
)
def test_the_hash_covers_all_that_decides_what_is_played(change: Callable[[Split], Split]) -> None:
    split = load_suite("smoke").splits[0]
    changed = Suite("smoke", (change(split),))
    assert changed.hash != Suite("smoke", (split,)).hash
    assert changed.hash == Suite("smoke", (change(split),)).hash
    described = replace(split, about="other words", published={"somebody": 0.5})
    assert Suite("smoke", (described,)).hash == Suite("smoke", (split,)).hash


TABLE = """
name = "mine"
[budgets]
max_turns = 2
[[splits]]
name = "slippery"
env = "FrozenLake"
levels = "lakes.txt"
env_options = { success_rate = 0.5, size = 3, vocabulary = { name = "mine", symbols = "abcdef" } }
budgets = { max_actions = 4 }
freeze = { count = 5, distinct = 3, seed = 7 }
"""


def test_a_suite_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    freeze(tmp_path)
    assert "5 levels, 3 different" in capsys.readouterr().out
    suite = load_suite(tmp_path)
    assert suite.hash == load_suite(tmp_path / "suite.toml").hash
    split = suite.splits[0]
    assert split.levels[:2] == split.levels[3:]
    assert split.turn_config == TurnConfig(max_turns=2, max_actions=4)
    assert split.turn_config.action_budget == 4
    env = split.make_game()
    env.reset(options={"level": split.levels[1]})
    assert set(env.board) <= set("abcdef\n")


def test_a_suite_has_its_levels_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "suite").mkdir()
    for path in ("../notes.txt", str(tmp_path / "notes.txt"), "a/../../notes.txt"):
        table = TABLE.replace('"lakes.txt"', f'"{path}"')
        (tmp_path / "suite" / "suite.toml").write_text(table, encoding="utf-8")
        for use in (load_suite, recipes):
            with pytest.raises(ValueError, match="must be the name of a file in the folder of the table"):
                use(tmp_path / "suite")
        with pytest.raises(ValueError, match="in the folder of the table"):
            freeze(tmp_path / "suite")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"\n[budgets]', "[budgets]", "lacks its 'name'"),
        ("max_turns = 2", "max_moves = 2", "choose from max_turns"),
        ('env = "FrozenLake"', 'env = "FrozenLak"', "Did you mean FrozenLake"),
        ("success_rate = 0.5", "slip = 0.5", "no option 'slip'"),
        ('"abcdef"', '"abc"', "needs 6"),
        ('levels = "lakes.txt"', 'levels = "none.txt"', "there is no file none.txt yet: `ragen-gym bench freeze`"),
        ('levels = "lakes.txt"', "levels = []\nabout = 3", "split 'slippery'"),
        ("size = 3", "size = 4", "the board is 3x3"),
        ("[[splits]]", "[splits]", "splits must be a list"),
        ('name = "mine"\n', 'name = "mine"\ntemperature = -1\n', "temperature=-1"),
        ('name = "mine"\n[', 'name = "mine\n[', "suite.toml"),
        (TABLE, TABLE + TABLE[TABLE.index("[[") :], "two splits are called 'slippery'"),
        ('name = "slippery"', "name = 4", "name=4 must be a text"),
        ('name = "mine"\n[', 'name = "mi\\nne"\n[', r"name='mi\nne' must be a text"),
        (
            "[budgets]",
            '[[published]]\nwho = "x"\nsuccess = 0.5\nsplits = ["lakes"]\n[budgets]',
            "names the split 'lakes'",
        ),
        ("[budgets]", '[[published]]\nwho = "x"\nsuccess = 50\nsplits = ["slippery"]\n[budgets]', "success=50"),
    ],
)
def test_a_table_that_is_wrong_is_explained(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    freeze(tmp_path)
    assert old in TABLE
    (tmp_path / "suite.toml").write_text(TABLE.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=r"suite\.toml") as error:
        load_suite(tmp_path)
    assert message in str(error.value)


def test_an_unknown_suite_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean smoke"):
        load_suite("smok")
    with pytest.raises(ValueError, match="there is no file"):
        load_suite(tmp_path)


def test_more_levels_than_there_are_cannot_be_frozen() -> None:
    row = {"name": "arms", "env": "Bandit", "freeze": {"count": 17}}
    with pytest.raises(ValueError, match="has only 16 of 17"):
        frozen_levels(row)
    with pytest.raises(ValueError, match="has only 8 of 9 families of levels"):
        frozen_levels({**row, "freeze": {"count": 9, "families": 9}})
    with pytest.raises(ValueError, match="count, and distinct or families"):
        frozen_levels({**row, "freeze": {"count": 8, "families": 8, "distinct": 8}})
    with pytest.raises(ValueError, match="count, and distinct or families"):
        frozen_levels({**row, "freeze": {"count": 1, "colour": 2}})
    with pytest.raises(ValueError, match=r"got \{'count': 0\}"):
        frozen_levels({**row, "freeze": {"count": 0}})


# Random and optimal play


@pytest.mark.parametrize(
    ("name", "random", "optimal"),
    [  # computed with other programs on the same boards: random play by sampling, optimal play by search
        ("sokoban", pytest.approx(0.189, abs=0.005), 1),
        ("new_vocab", pytest.approx(0.188, abs=0.005), 1),
        ("large_sokoban", pytest.approx(0.026, abs=0.002), 253 / 256),
        ("frozen_lake", pytest.approx(0.212, abs=0.005), pytest.approx(0.483, abs=0.0005)),
        ("bandit", pytest.approx(0.5, abs=0.005), 1),
        ("bandit_rev", pytest.approx(0.5, abs=0.005), 1),
    ],
)
def test_random_and_optimal_play_of_the_papers_instances(name: str, random: float, optimal: float) -> None:
    expected = baseline(PAPER[name])
    assert (expected.means["random"], expected.means["optimal"]) == (random, optimal)
    reached = {what: np.array(shares) for what, shares in vars(expected).items()}
    assert (reached["random_success"] <= reached["optimal_success"] + 0.06).all()
    assert (reached["random_return"] <= reached["optimal_return"] + 0.1).all()


@pytest.mark.parametrize("name", ["sokoban", "large_sokoban", "frozen_lake"])
def test_random_play_is_as_good_as_its_exact_chance(name: str) -> None:
    split = next(split for split in load_suite("smoke").splits if split.name == name)
    env = split.make_game()
    for level, measured in zip(split.boards, np.array(baseline(split).random_success), strict=True):
        env.reset(options={"level": level})
        exact, _ = random_value(env.env, env.action_budget)
        assert measured == pytest.approx(exact, abs=5 * (exact * (1 - exact) / RANDOM_ROLLOUTS) ** 0.5 + 1e-12)


@pytest.mark.parametrize("rollout", [0, 3])
def test_the_oracle_meets_the_same_noise_as_every_agent(rollout: int) -> None:
    suite = load_suite("smoke")
    for split in suite.splits:
        env = replace(split, turn_config=TurnConfig(max_turns=10)).make_game()  # a reply for each of the ten actions
        for index, played in enumerate(oracle_episodes(suite, split, rollout) or ()):
            seed = noise_seed(suite, split, index, rollout)
            _, info = env.reset(options={"level": split.levels[index], "noise_seed": seed})
            while not env.over:
                *_, info = env.step(f"<think></think><answer>{env.action_names[env.oracle_action()]}</answer>")
            assert (info["success"], info["turn"]) == (played.success, len(played.actions))
