"""Everything that every id promises, over the whole table."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_gym import make_turn
from ragen_gym.core.text import TEXT_FORMATS
from ragen_gym.envs import register_all
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import TABLE, build_game, find, load
from ragen_gym.testing import check_env, check_game

#: Small boards of games whose own are too large to try everything on.
SMALL = {"LargeSokoban": {"height": 6, "width": 6}}


@pytest.mark.parametrize("name", TABLE)
def test_the_game_keeps_the_suites_promises(name: str) -> None:
    check_game(build_game(TABLE[name], SMALL.get(name, {})), examples=30)


@pytest.mark.parametrize("name", TABLE)
def test_the_environment_keeps_the_suites_promises(name: str) -> None:
    check_env(name)


@pytest.mark.parametrize("name", TABLE)
def test_its_turns_keep_the_suites_promises(name: str) -> None:
    check_env(make_turn(name))


@pytest.mark.parametrize("name", TABLE)
def test_a_game_and_what_it_hands_out_can_be_pickled(name: str) -> None:
    game = build_game(TABLE[name], {})
    board = bytes(game.generate(np.array([7], np.uint64), None)[0])
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    formats = TEXT_FORMATS if game.layout == "grid" else ("grid",)
    writers = [game.formatter(game.own_vocabulary, text_format) for text_format in formats]  # type: ignore[arg-type]
    game.level(board), game.masker()(board, state)  # which fill whatever the game keeps
    copy, masker, copies = pickle.loads(pickle.dumps((game, game.masker(), writers)))
    assert copy == game
    assert copy.level(board) == game.level(board)
    assert masker(board, state).tolist() == game.action_mask(board, state).tolist()
    assert [write(board) for write in copies] == [write(board) for write in writers]


@pytest.mark.parametrize("name", TABLE)
def test_the_row_and_the_class_document_the_environment(name: str) -> None:
    spec = TABLE[name]
    page = spec.game_class.__doc__ or ""
    for heading in ("## Description", "## Starting State", "## Rewards", "## Episode End", "## Arguments"):
        assert heading in page or spec.game_class.__mro__[1].__name__ in page, heading
    parts = page.split("## Arguments")[-1]
    for option in spec.game_class.options():
        assert option in parts or spec.game_class.__mro__[1].__name__ in page, f"{option} is not documented"
    assert spec.summary
    assert not spec.summary.endswith(".")


@pytest.mark.parametrize("name", TABLE)
def test_every_spelling_of_a_name(name: str) -> None:
    for spelling in (name, f"ragen/{name}-v0", f"ragen_gym:ragen/{name}-v0", f"ragen/{name}"):
        assert find(spelling) is TABLE[name]
    with pytest.raises(ValueError, match=rf"choose one of .*{name}.* Did you mean {name}\?"):
        find(f"{name.upper()}-V0")


def test_unknown_names() -> None:
    for name in ("Chess", "", "ragen/"):
        with pytest.raises(ValueError, match="is not a game of this suite: choose one of "):
            find(name)
    with pytest.raises(ValueError, match="'Chess' is not a game of this suite"):
        make_turn("Chess")


def test_registering_twice_changes_nothing() -> None:
    before = {spec.id: gymnasium.registry[spec.id] for spec in TABLE.values()}
    register_all()
    assert {spec.id: gymnasium.registry[spec.id] for spec in TABLE.values()} == before
    for spec in TABLE.values():
        assert before[spec.id].max_episode_steps == spec.horizon


#: Level ids of the first two episodes of seed 0 and of the first of seed 2**70.
FIRST_LEVELS = {
    "Bandit": ("75c063d30ef07f2a", "c3e8c2cea0deff67", "3621e616c7429359"),
    "BanditRev": ("e2dd06a6f343d322", "5fc065238588049f", "c42711d7e7582ca2"),
    "FrozenLake": ("1e9ec1bca626995e", "d905a83f2d7f5039", "d3b937fea50b8d12"),
    "Sokoban": ("4a846c8492a8364c", "91b3d6031b019a3d", "d9a0807831fb7288"),
    "LargeSokoban": ("b30d787460419725", "53c0c3c9c55ce6a9", "af399144d8cdffe5"),
    "NewVocab": ("4a846c8492a8364c", "91b3d6031b019a3d", "d9a0807831fb7288"),
}


@pytest.mark.parametrize("name", TABLE)
def test_seeds_give_the_levels_they_always_gave(name: str) -> None:
    """A seed is an episode for ever: a change here is a change of every published number."""
    env = StepEnv(name)
    resets: list[dict[str, Any]] = [{"seed": 0}, {}, {"seed": 2**70}]
    assert tuple(env.reset(**arguments)[1]["level_id"] for arguments in resets) == FIRST_LEVELS[name]


@pytest.mark.parametrize(
    ("name", "kwargs", "level_id"),
    [
        ("Sokoban", {"generator": "reverse_walk", "split": "test"}, "7de506c411bca65e"),
        ("FrozenLake", {"size": 6, "split": "validation"}, "7b51ffdadf8fa40a"),
    ],
)
def test_so_do_seeds_under_other_options(name: str, kwargs: dict[str, Any], level_id: str) -> None:
    assert StepEnv(name, **kwargs).reset(seed=1)[1]["level_id"] == level_id


@pytest.mark.parametrize(
    ("name", "kwargs", "noise_seed", "told"),
    [
        ("Bandit", {"pulls": 12}, None, "0 0 1 0 0 0 0 0 0 0 0 0"),
        ("Bandit", {"pulls": 12}, 9, "0 0 1 0 0 0 0 0 1 0 0 1"),
        ("FrozenLake", {"frozen_prob": 1.0}, None, "_G_P ____ ____ ____"),
        ("FrozenLake", {"frozen_prob": 1.0}, 9, "_G__ ____ ____ ___P"),
        ("FrozenLake", {"frozen_prob": 1.0}, 2**70, "_G_P ____ ____ ____"),
    ],
)
def test_so_does_the_noise_of_an_episode(name: str, kwargs: dict[str, Any], noise_seed: int | None, told: str) -> None:
    """What the second arm pays, or where a walk to and fro slips to."""
    env = StepEnv(name, **kwargs)
    env.reset(seed=5, options=None if noise_seed is None else {"noise_seed": noise_seed})
    rewards = [env.step(action)[1] for action in ((1,) * 12 if name == "Bandit" else (1, 0, 3, 2, 1, 3))]
    assert told == (" ".join(f"{reward:g}" for reward in rewards) if name == "Bandit" else env.text.replace("\n", " "))


@pytest.mark.parametrize(
    ("code", "said"), [("def f(:", r"invalid syntax \(own_rules\.py, line 1\)"), ("\n1 / 0", r"\(own_rules\.py:2\)")]
)
def test_a_module_that_cannot_be_imported_says_where(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rules.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"own_rules:Game: importing the module own_rules failed: .*{said}\."):
        load("own_rules:Game")
