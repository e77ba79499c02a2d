"""A new game is one folder and one entry of the table: then everything that the suite has works on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given

from ragen_gym import make_turn, register
from ragen_gym.core.levels import Level, write_levels
from ragen_gym.core.seeding import episode_keys
from ragen_gym.games import registry
from ragen_gym.testing import Play, check_env, check_game, games, levels, plays, states
from tests.ragen_gym.testing.tightrope import Tightrope

SPEC = registry.GameSpec("Tightrope", "tests.ragen_gym.testing.tightrope:Tightrope", 12, "walk to the flag")


@pytest.fixture(autouse=True)
def spec() -> Iterator[registry.GameSpec]:
    register(SPEC)
    yield SPEC
    del registry.TABLE[SPEC.name], gymnasium.registry[SPEC.id]


@pytest.mark.parametrize("game", [Tightrope(), Tightrope(width=3, grip=0.5), Tightrope(grip=1.0), Tightrope(grip=0.0)])
def test_the_game(game: Tightrope) -> None:
    check_game(game)


def test_the_environments() -> None:
    check_env("Tightrope")
    check_env("ragen/Tightrope-v0", processes=False, observation="grid", width=4)
    check_env("Tightrope", processes=False, text_format="grid_coord", vocabulary="plain")
    check_env(gymnasium.make("ragen/Tightrope-v0", split="train"), processes=False)
    check_env(make_turn("Tightrope", think=False))


def test_the_row_says_where_it_is() -> None:
    with pytest.raises(ValueError, match=r"ragen/Tightrope-v0 is taken by tests.ragen_gym.testing.tightrope:Tightrope"):
        register(registry.GameSpec("Tightrope", "elsewhere:Tightrope", 12, "another"))
    with pytest.raises(ValueError, match=r"Did you mean Tightrope\?"):
        registry.find("tight_rope")
    with pytest.raises(ValueError, match=r"no option 'grips': it has height, width, grip\. Did you mean grip\?"):
        gymnasium.make("ragen/Tightrope-v0", grips=1)


@given(games(Tightrope))
def test_its_games_are_drawn(game: Tightrope) -> None:
    assert 2 <= game.width <= 9
    assert 0 <= game.grip <= 1


@given(levels(Tightrope(width=12), "test"), plays(Tightrope(), 5), states(Tightrope()))
def test_its_levels_and_states_are_drawn(level: Level, play: Play, state: tuple[bytes, tuple[int]]) -> None:
    game = Tightrope(width=12)
    assert game.split_of(game.board(level)) == "test"
    assert len(play.moves) <= 5
    board, (cell,) = state
    assert board[cell] == Tightrope.Tile.ACROBAT


def test_its_levels_go_to_a_file_and_back(tmp_path: Path) -> None:
    game, path = Tightrope(), tmp_path / "ropes.txt"
    drawn = [game.level(bytes(board)) for board in game.generate(episode_keys(0, 0, 3), None)]
    write_levels(path, drawn)
    env = gymnasium.make("ragen/Tightrope-v0", levels=path)
    env.reset(seed=0)
    assert {env.reset()[0] for _ in range(40)} == {level.text for level in drawn}


@dataclass(frozen=True)
class Gusts(Tightrope):
    """A tightrope with an option that cannot be hashed."""

    gusts: list[float] = field(default_factory=list)

    name = "Gusts"


def test_a_game_with_a_list_for_an_option() -> None:
    register(registry.GameSpec("Gusts", f"{__name__}:Gusts", 12, "walk in the wind"))
    try:
        env = gymnasium.make("ragen/Gusts-v0", gusts=[0.1, 0.2])
        rope = gymnasium.make("ragen/Tightrope-v0")
        assert [env.reset(seed=5)[0], env.reset()[0]] == [rope.reset(seed=5)[0], rope.reset()[0]]
        seen, drawn = (gymnasium.make(f"ragen/{name}-v0", observation="rgb") for name in ("Gusts", "Tightrope"))
        assert (seen.reset(seed=5)[0] == drawn.reset(seed=5)[0]).all()
        pictures = make_turn("Gusts", observation="image")
        assert pictures.reset(seed=5)[0]["image"].any()
    finally:
        del registry.TABLE["Gusts"], gymnasium.registry["ragen/Gusts-v0"]
