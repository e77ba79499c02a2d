"""How a board looks as a picture for a visual model: declared here, drawn by ``ragen_gym.render.images``."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_gym.core.settings import check_settings, setting

__all__ = ["PALETTES", "TILE_SETS", "TILE_SIZES", "ImageStyle"]

#: Sets of tiles. A model that was trained on one meets another as a test of visual generalisation.
TILE_SETS = {
    "pictures": "drawn things, as in the gallery: bricks, crates, a penguin, a flag",
    "shapes": "a plain shape in a colour of its own for each kind of tile; the system message says which is which",
    "letters": "the symbols of the vocabulary, dark on light",
}

#: Treatments of the colours. None adds anything random: one board has one picture.
PALETTES = {
    "plain": "flat colours, every tile of a kind the same",
    "photographic": "texture, uneven light and grain, as in a photograph; four versions of each tile",
}

#: Least and greatest side of a tile in pixels.
TILE_SIZES = (8, 128)


@dataclass(frozen=True)
class ImageStyle:
    """The look of a picture.

    Raises:
        ValueError: an option of another type or out of range.
    """

    tiles: str = setting("pictures", "set of tiles of the pictures", choices=TILE_SETS)
    tile_size: int = setting(
        28,
        "side of a tile in the pictures; 28 is one visual token a tile for patches of 14 that are merged 2 x 2",
        low=TILE_SIZES[0],
        high=TILE_SIZES[1],
        unit="pixels",
    )
    palette: str = setting("plain", "colours of the pictures", choices=PALETTES)
    coordinates: bool = setting(
        False, "whether the pictures have the numbers of the rows and columns, from 0 on, in a margin of one tile"
    )

    def __post_init__(self) -> None:
        check_settings(self, "image_")
