"""Picture style of a board for visual models; ``ragen_gym.render.images`` draws it."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_gym.core.settings import check_settings, setting
from ragen_gym.core.validation import plain_number

__all__ = ["PALETTES", "TILE_SETS", "ImageStyle", "check_tile_size"]

#: Sets of tiles. Evaluating on a set not used in training tests visual generalisation.
TILE_SETS = {
    "pictures": "drawn things, as in the gallery: bricks, crates, a penguin, a flag",
    "shapes": "a plain shape in a colour of its own for each kind of tile; the system message says which is which",
    "letters": "the symbols of the vocabulary, dark on light",
}

#: Treatments of the colours. All are deterministic: one board has one picture.
PALETTES = {
    "plain": "flat colours, every tile of a kind the same",
    "photographic": "texture, uneven light and grain, as in a photograph; four versions of each tile",
}

#: Smallest and largest side of a tile in pixels.
TILE_SIZES = (8, 128)


def check_tile_size(tile_size: int) -> int:
    """Return ``tile_size`` as an int, or raise a ValueError that names the range."""
    tile_size = plain_number(tile_size)
    low, high = TILE_SIZES
    if isinstance(tile_size, bool) or not isinstance(tile_size, int) or not low <= tile_size <= high:
        raise ValueError(f"tile_size={tile_size!r} must be a whole number of pixels from {low} to {high}.")
    return tile_size


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
