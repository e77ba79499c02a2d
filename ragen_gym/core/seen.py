"""The record of what a model was trained on, by which a benchmark says which of its levels are not new to the model.

A record is a file ``seen.npy`` in the folder of a training run: the families of all levels that the model met there
(``ragen_gym.games.game.Game.family``), a sorted array of different uint64 in NumPy's format. It is exact, takes 8 bytes
a family, and is read with ``numpy.load``. A record is complete or is not there at all.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ragen_gym.core.storage import write_atomic

__all__ = ["SEEN_FILE", "add_seen", "find_seen", "read_seen", "write_seen"]

SEEN_FILE = "seen.npy"


def find_seen(model: str | Path) -> Path | None:
    """The record of the run that made a model: in the model's folder, or next to it; None where there is none."""
    folder = Path(model)
    places = [folder / SEEN_FILE, folder.resolve().parent / SEEN_FILE] if folder.is_dir() else []
    return next((place for place in places if place.is_file()), None)


def read_seen(path: str | Path) -> frozenset[int]:
    """The families in a record.

    Args:
        path: of the record, or of the folder of a run or of a model that has one.

    Raises:
        ValueError: there is no record, or the file is something else.
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
            families = np.load(opened, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile):  # the text of the first advises to unpickle the file
        families = None
    except OSError as error:
        raise ValueError(f"{file} is no record of the levels seen in training ({SEEN_FILE}): {error}") from error
    if not isinstance(families, np.ndarray) or families.dtype != np.uint64 or families.ndim != 1:
        raise ValueError(f"{file} is no record of the levels seen in training: it must hold uint64 (families,).")
    return frozenset(families.tolist())


def write_seen(path: str | Path, families: Iterable[int]) -> None:
    """Replace a record."""
    file = io.BytesIO()
    np.save(file, np.array(sorted(set(families)), "<u8"), allow_pickle=False)
    write_atomic(path, file.getvalue())


def add_seen(path: str | Path, families: Iterable[int]) -> None:
    """Add to a record, or begin it."""
    write_seen(path, {*families, *(read_seen(path) if Path(path).is_file() else ())})
