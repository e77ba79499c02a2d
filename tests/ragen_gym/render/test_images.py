"""Pictures for visual models: the same on every machine, of every game and style, and what cannot be drawn."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import PALETTES, TILE_SETS, ImageStyle
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.bandit import Bandit
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.render.canvas import glyphs, missing
from ragen_gym.render.images import BoardImages
from ragen_gym.render.png import decode_png, encode_png

#: Name of a game -> look -> the first 16 digits of SHA-256 of the picture of seed 0's first board.
HASHES = Path(__file__).with_name("image_hashes.json")
ROWS = list(TABLE.values())
every_id = pytest.mark.parametrize("spec", ROWS, ids=[spec.name for spec in ROWS])


def styles(game: Any) -> list[ImageStyle]:
    coordinates = (False, True) if game.layout == "grid" else (False,)
    return [ImageStyle(*look) for look in itertools.product(TILE_SETS, (14, 28), PALETTES, coordinates)]


def hashes(spec: GameSpec) -> dict[str, str]:
    env = StepEnv(spec.name)
    env.reset(seed=0)
    found = {}
    for style in styles(env.game):
        picture = BoardImages(env.game, style, env.vocabulary).image(env.state[0])
        look = f"{style.tiles} {style.tile_size} {style.palette}{' coordinates' * style.coordinates}"
        found[look] = hashlib.sha256(picture.tobytes()).hexdigest()[:16]
    return found


@every_id
def test_the_same_level_looks_the_same_on_every_machine(spec: GameSpec) -> None:
    """The hashes were written on another one: `python -m tests.ragen_gym.render.test_images` writes them anew."""
    known = json.loads(HASHES.read_text(encoding="utf-8"))[spec.name]
    assert hashes(spec) == known
    assert len(set(known.values())) >= len(known) // 3 * 2  # a bandit's shapes and letters are the same cards


def test_neither_pygame_nor_pillow_nor_a_display_takes_part() -> None:
    code = (
        "import sys; sys.modules['pygame'] = sys.modules['PIL'] = None\n"
        "from ragen_gym import make_turn\n"
        "from hashlib import sha256\n"
        "for name in ('FrozenLake', 'Bandit'):\n"
        "    seen, _ = make_turn(name, observation='image').reset(seed=0)\n"
        "    print(sha256(seen['image'].tobytes()).hexdigest()[:16])\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SDL", "DISPLAY"))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean)
    known = json.loads(HASHES.read_text(encoding="utf-8"))
    assert result.stdout.split() == [known[name]["pictures 28 plain"] for name in ("FrozenLake", "Bandit")]


@pytest.mark.parametrize("tiles", TILE_SETS)
@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("size", [8, 28])
def test_tiles_can_be_told_apart(tiles: str, palette: str, size: int) -> None:
    """By more than the versions of one tile of a photographic palette differ among themselves."""
    for game in (FrozenLake(), Sokoban()):
        images = BoardImages(game, ImageStyle(tiles, size, palette))
        plain = BoardImages(game, ImageStyle(tiles, size))
        codes = (
            np.zeros((game.codes, game.height, game.width), np.uint8)
            + np.arange(game.codes, dtype=np.uint8)[:, None, None]
        )
        seen, clean = images.images(codes).astype(float), plain.images(codes).astype(float)
        for a, b in itertools.combinations(range(game.codes), 2):
            assert abs(seen[a] - seen[b]).mean() > 3
            # A noisy tile is nearer to its own clean one than to any other.
            assert abs(seen[a] - clean[a]).mean() < abs(seen[a] - clean[b]).mean()


@given(st.integers(0, 2**32), st.sampled_from([*TILE_SETS]), st.sampled_from([*PALETTES]), st.booleans())
def test_a_picture_is_its_tiles_in_their_places(seed: int, tiles: str, palette: str, coordinates: bool) -> None:
    game = Sokoban()
    images = BoardImages(game, ImageStyle(tiles, 9, palette, coordinates))
    codes = np.random.default_rng(seed).integers(game.codes, size=(3, 6, 6)).astype(np.uint8)
    many = images.images(codes)
    assert many.shape == (3, *images.shape)
    edge = 9 * coordinates
    for place, (row, column) in itertools.product(range(3), itertools.product(range(6), repeat=2)):
        alike = np.full((1, 6, 6), codes[place, row, column], np.uint8)
        cell = np.s_[edge + 9 * row : edge + 9 * row + 9, edge + 9 * column : edge + 9 * column + 9]
        np.testing.assert_array_equal(many[place][cell], images.images(alike)[0][cell])
    if coordinates:
        np.testing.assert_array_equal(many[0, :9], many[1, :9])
        assert len({many[0, :9, 9 * i : 9 * i + 9].tobytes() for i in range(7)}) == 7
    np.testing.assert_array_equal(copy.deepcopy(images).images(codes), many)


def test_numbers_of_rows_and_columns_need_rows_and_columns() -> None:
    with pytest.raises(ValueError, match="image_coordinates: Bandit has no rows and columns to number"):
        BoardImages(Bandit(), ImageStyle(coordinates=True))


@pytest.mark.parametrize("tiles", TILE_SETS)
def test_names_of_arms_must_be_legible(tiles: str) -> None:
    with pytest.raises(
        ValueError, match="image_tile_size=8 is too small for the names of Bandit; it must be at least 14"
    ):
        BoardImages(Bandit(), ImageStyle(tiles, 8))
    BoardImages(Bandit(), ImageStyle(tiles, 14))
    with pytest.raises(ValueError, match="pictures have no letter for 'é'"):
        BoardImages(Bandit(names=(("Médecin", "Pilot"),)), ImageStyle(tiles))


def test_symbols_that_the_font_lacks() -> None:
    game, greek = FrozenLake(), Vocabulary("greek", "λμOGPX")
    with pytest.raises(ValueError, match="pictures have no letter for 'λμ' of vocabulary 'greek'"):
        BoardImages(game, ImageStyle("letters"), greek)
    BoardImages(game, ImageStyle("shapes"), greek)


def test_a_game_without_a_painter_has_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLake, "painter", "")
    game = FrozenLake(frozen_prob=0.123)  # equal games share their tiles
    picture = BoardImages(game).image(game.board("P__O\n____\n_O__\n___G"))
    assert len({picture[:28, 28 * i : 28 * i + 28].tobytes() for i in (0, 1, 3)}) == 3


def test_the_font_has_every_printable_letter_of_ascii_and_each_is_another() -> None:
    letters = "".join(map(chr, range(32, 127)))
    assert missing(letters + "√é\n√") == "é\n"
    assert len({glyphs(letter).tobytes() for letter in letters}) == 95
    assert glyphs("Up").shape == (8, 11)
    rows = ["".join(" #"[int(ink)] for ink in row) for row in glyphs("L")]
    assert rows == ["#    "] * 6 + ["#####", "     "]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_a_png_reads_back(height: int, width: int, seed: int) -> None:
    picture = np.random.default_rng(seed).integers(256, size=(height, width, 3)).astype(np.uint8)
    np.testing.assert_array_equal(decode_png(encode_png(picture), picture.shape), picture)


def test_other_programs_read_our_png() -> None:
    from io import BytesIO

    from PIL import Image

    picture = BoardImages(Sokoban()).image(Sokoban().board("######\n#_P__#\n#_XO_#\n#____#\n######\n######"))
    with Image.open(BytesIO(encode_png(picture))) as image:
        np.testing.assert_array_equal(np.asarray(image), picture)


def test_damaged_pngs() -> None:
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    good = encode_png(picture)
    large = encode_png(np.zeros((400, 500, 3), np.uint8))
    for data, message in (
        (b"GIF89a", "this is no PNG"),
        (b"", "this is no PNG"),
        (good[:-1], "cut off|checksum"),
        (good[:40], "cut off|checksum"),
        (good[:50] + bytes([good[50] ^ 1]) + good[51:], "checksum"),
        (large, "not of 4 x 5 pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_png(data, picture.shape)


if __name__ == "__main__":
    HASHES.write_text(json.dumps({spec.name: hashes(spec) for spec in ROWS}, indent=1) + "\n", encoding="utf-8")
