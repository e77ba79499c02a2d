"""The record of the levels a model was trained on, so that a benchmark can tell which of its levels are new to it.

A record is a file ``seen.npy`` in the folder of a training run: the families of all levels used in training
(``ragen_gym.games.game.Game.family``) as a sorted array of distinct uint64 in NumPy's format. It is exact, takes 8
bytes a family, and is read with ``numpy.load``. A record is either complete or absent.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from ragen_gym.core.storage import write_atomic

SEEN_FILE = "seen.npy"


def find_seen(model: str | Path) -> Path | None:
    """The record of the run that made a model, in the model's folder or next to it; None if missing."""
    folder = Path(model)
    places = [folder / SEEN_FILE, folder.resolve().parent / SEEN_FILE] if folder.is_dir() else []
    return next((place for place in places if place.is_file()), None)


def read_seen(path: str | Path) -> frozenset[int]:
    """The families in a record.

    Args:
        path: the record, or the folder of a run or model that has one.

    Raises:
        ValueError: the record is missing or is not a record.
    """
    file = Path(path)
    if file.is_dir():
        found = find_seen(file)
        if found is None:
            raise ValueError(
                f"{path} holds no record of the levels seen in training ({SEEN_FILE}), nor is one next to it."
            )
        file = found
    try:
        with file.open("rb") as opened:
            families = npy.read_array(opened, allow_pickle=False)
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{file} is not a record of the levels seen in training ({SEEN_FILE}): {error}") from error
    if families.dtype != np.uint64 or families.ndim != 1:
        raise ValueError(f"{file} is not a record of the levels seen in training: it must hold uint64 (families,).")
    return frozenset(families.tolist())


def write_seen(path: str | Path, families: Iterable[int]) -> None:
    """Replace a record."""
    file = io.BytesIO()
    np.save(file, np.array(sorted(set(families)), "<u8"), allow_pickle=False)
    write_atomic(path, file.getvalue())
