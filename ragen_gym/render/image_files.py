"""Pictures as files: PNG and GIF, the same bytes for the same pictures. Needs Pillow (extra ``render``)."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from types import ModuleType

import numpy as np
from gymnasium.error import DependencyNotInstalled

from ragen_gym.render.canvas import Pixels

__all__ = ["gif", "png"]

_COLOURS = 96


def png(picture: Pixels) -> bytes:
    """A PNG of a picture, uint8 (height, width, 3)."""
    out = BytesIO()
    _pillow().fromarray(picture).save(out, "PNG", optimize=True)
    return out.getvalue()


def gif(pictures: Sequence[Pixels], seconds: float = 0.7, last: float = 1.8) -> bytes:
    """A GIF that plays for ever.

    Args:
        pictures: uint8 (height, width, 3) each, all of one shape.
        seconds: how long each is shown.
        last: how long the last one is shown.
    """
    image = _pillow()
    # One palette for all frames, made from all of them side by side, so that nothing flickers.
    palette = image.fromarray(np.concatenate(list(pictures), axis=1)).quantize(
        _COLOURS, method=image.Quantize.MEDIANCUT
    )
    drawn = [image.fromarray(p).quantize(palette=palette, dither=image.Dither.NONE) for p in pictures]
    times = [round(1000 * seconds)] * (len(drawn) - 1) + [round(1000 * last)]
    out = BytesIO()
    drawn[0].save(out, "GIF", save_all=True, append_images=drawn[1:], duration=times, loop=0, optimize=False)
    return out.getvalue()


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise DependencyNotInstalled("PNG and GIF files need Pillow: run `pip install 'ragen-gym[render]'`.") from None
    return Image
