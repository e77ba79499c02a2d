"""Pictures: tiles, frames, captions, windows, and the gallery in the repository."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from enum import IntEnum
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from ragen_gym.cli.episodes import showcase_seed
from ragen_gym.cli.render import LEVELS, index_page, measured, page, pictures
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import Game
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.frames import frame_shape, frames
from ragen_gym.render.recorder import key_names, what_happened
from ragen_gym.render.renderer import Window

ROWS = list(TABLE.values())
every_id = pytest.mark.parametrize("spec", ROWS, ids=[spec.name for spec in ROWS])
GALLERY = Path(__file__).parents[3] / "docs" / "environments"


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")


def tiles_of(game: Game, size: int) -> Pixels:
    return frames(game, np.arange(game.codes, dtype=np.uint8)[:, None, None], size)


def differences(tiles: np.ndarray[Any, Any]) -> list[float]:
    """Mean difference of colour between any two tiles."""
    flat = tiles.astype(float).reshape(len(tiles), -1)
    return [float(abs(a - b).mean()) for i, a in enumerate(flat) for b in flat[:i]]


@every_id
@pytest.mark.parametrize("size", [8, 16, 48, 128])
def test_tiles_can_be_told_apart_at_every_size(spec: GameSpec, size: int) -> None:
    game = StepEnv(spec.name).game
    tiles = frames(game, np.arange(6, dtype=np.uint8)[:, None, None], size)
    assert tiles.dtype == np.uint8
    assert tiles.shape[1] == tiles.shape[2] == frame_shape(game, size)[0] // game.height
    # The machines of a bandit differ in their names alone.
    assert min(differences(tiles)) > (5 if game.own_vocabulary.symbols else 0.1)


@pytest.mark.parametrize("size", [8, 48])
def test_a_game_without_a_painter_is_drawn_with_its_symbols(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(FrozenLake, "painter", "")
    game = StepEnv("FrozenLake", frozen_prob=0.7).game  # of which no tile was drawn
    assert min(differences(tiles_of(game, size))) > 5


@every_id
def test_frames_put_each_tile_in_its_place(spec: GameSpec) -> None:
    env = StepEnv(spec.name, observation="grid")
    codes = np.stack([env.reset(seed=seed)[0] for seed in range(5)])
    tiles = tiles_of(env.game, 9)
    slow = np.stack([np.concatenate([np.concatenate(list(tiles[line]), 1) for line in grid], 0) for grid in codes])
    np.testing.assert_array_equal(frames(env.game, codes, 9), slow)


@every_id
def test_pixel_observations_are_the_pictures_of_the_grid(spec: GameSpec) -> None:
    pixels, grid = StepEnv(spec.name, observation="rgb", tile_size=8), StepEnv(spec.name, observation="grid")
    seen, board = pixels.reset(seed=3)[0], grid.reset(seed=3)[0]
    for action in (0, 1, 1, 0):
        assert pixels.observation_space.contains(seen)
        np.testing.assert_array_equal(seen, frames(grid.game, board[None], 8)[0])
        seen, _, terminated, _, _ = pixels.step(action)
        board = grid.step(action)[0]
        if terminated:
            break
    np.testing.assert_array_equal(seen, frames(grid.game, board[None], 8)[0])


@every_id
@pytest.mark.parametrize("size", [8, 17, 48])
def test_pictures_keep_their_shape_and_show_every_step(spec: GameSpec, size: int) -> None:
    env = StepEnv(spec.name, render_mode="rgb_array", tile_size=size)
    env.reset(seed=2)
    before = env.render()
    assert before.shape[0] % 2 == before.shape[1] % 2 == 0
    twin = copy.deepcopy(env)
    env.step(1)
    after = env.render()
    assert after.shape == before.shape
    assert (after != before).any()
    twin.step(1)
    np.testing.assert_array_equal(twin.render(), after)
    env.reset(seed=2)
    np.testing.assert_array_equal(env.render(), before)


@every_id
@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_drawing_changes_nothing_of_the_game(spec: GameSpec, mode: str) -> None:
    plain, drawn = (gymnasium.make(spec.id, render_mode=m) for m in (None, mode))
    assert str(plain.reset(seed=5)) == str(drawn.reset(seed=5))
    for action in (0, 1):
        step = plain.step(action)
        assert str(step) == str(drawn.step(action))
        if step[2] or step[3]:
            break
    drawn.close()
    drawn.close()


@pytest.mark.parametrize(
    ("game", "before", "action", "after", "said"),
    [
        ("FrozenLake", "P___", 2, "_P__", "Right"),
        ("FrozenLake", "_P__", 3, "P___", "Up, slipped Left"),
        ("FrozenLake", "P___", 2, "__P_", "Right"),
        ("FrozenLake", "P___", 0, "P___", "Left, blocked"),
        ("FrozenLake", "P___", 2, "P___", "Right, slipped against the edge"),
        ("Sokoban", "P_XO", 3, "_PXO", "Right"),
        ("Sokoban", "_PXO", 3, "__P√", "Right, pushing a box"),
        ("Sokoban", "PX_O", 0, "PX_O", "Up, blocked"),
    ],
)
def test_captions_say_what_happened(game: str, before: str, action: int, after: str, said: str) -> None:
    def board(line: str) -> bytes:
        rows = ["######", f"#{line}#", "######"] if game == "Sokoban" else [line, "__G_"]
        return env.game.parse("\n".join(rows))

    size: dict[str, Any] = {"height": 3, "width": 6} if game == "Sokoban" else {"height": 2, "width": 4}
    env = StepEnv(game, **size)
    assert what_happened(env.game, board(before), action, board(after), 0.0) == said


@pytest.mark.parametrize("size", [7, 129, 48.0, True, "48"])
@pytest.mark.parametrize("asked", [{"render_mode": "rgb_array"}, {"observation": "rgb"}, {}])
def test_a_tile_size_out_of_range_is_refused(size: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tile_size=.* from 8 to 128"):
        StepEnv("FrozenLake", tile_size=size, **asked)


def test_without_pygame_games_play_and_pictures_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = StepEnv("FrozenLake", render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == env.text
    with pytest.raises(DependencyNotInstalled, match=r"pip install 'ragen-gym\[render\]'"):
        StepEnv("FrozenLake", render_mode="rgb_array")


@pytest.mark.slow
def test_neither_the_package_nor_its_command_line_imports_pygame_or_numba() -> None:
    code = "import sys, ragen_gym.cli; print([m for m in ('pygame', 'numba', 'PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("actions", [9, 10, 30, 35])
def test_a_game_of_many_actions_has_a_key_for_each_of_the_first_thirty(actions: int) -> None:
    names = IntEnum("Action", [f"ARM_{place}" for place in range(actions)], start=0)  # type: ignore[misc]
    game: Any = SimpleNamespace(Action=names)
    keys = key_names(game)
    assert sum(len(key) == 1 for key in keys) == min(actions, 30)
    assert not set(keys) & set("nq?")
    assert len(set(keys)) == actions


def test_a_window_stays_closed_once_closed() -> None:
    import pygame

    window = Window("test", fps=1000)
    picture = np.full((16, 32, 3), 9, np.uint8)
    window.show(picture)
    screen = pygame.display.get_surface()
    assert screen is not None
    assert screen.get_at((31, 15))[:3] == (9, 9, 9)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    window.show(picture)
    assert window.closed
    window.show(picture)
    assert not pygame.display.get_init()
    window.close()
    window.show(picture)
    again = pygame.display.get_surface()
    assert again is not None
    assert again.get_size() == (32, 16)
    window.close()
    assert not pygame.display.get_init()


@every_id
def test_the_gallery_in_the_repository_is_what_the_code_makes(spec: GameSpec) -> None:
    remedy = "out of date: run `ragen-gym gallery`"
    text = page(spec, showcase_seed(spec, {}), measured(spec), LEVELS)
    assert (GALLERY / f"{spec.name}.md").read_text(encoding="utf-8") == text, remedy
    for name, data in pictures(spec).items():
        stored = GALLERY / name
        assert stored.stat().st_size < 150_000
        with Image.open(stored) as kept, Image.open(BytesIO(data)) as made:
            assert getattr(kept, "n_frames", 1) == getattr(made, "n_frames", 1), remedy
            for frame in range(getattr(kept, "n_frames", 1)):
                kept.seek(frame)
                made.seek(frame)
                a, b = (np.asarray(image.convert("RGB"), float) for image in (kept, made))
                assert a.shape == b.shape, remedy
                assert abs(a - b).mean() < 2, remedy  # another version of pygame may round an edge otherwise


def test_the_index_shows_every_game() -> None:
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert text == index_page({spec.name: measured(spec) for spec in ROWS})
    pages = {path.name for path in GALLERY.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"`\]\(([^)]+)\)", text))
