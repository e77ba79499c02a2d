"""The record of the levels that a model was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.seen import SEEN_FILE, find_seen, read_seen, write_seen


@given(st.frozensets(st.integers(0, 2**64 - 1)))
def test_a_record_reads_back(tmp_path_factory: pytest.TempPathFactory, families: frozenset[int]) -> None:
    path = tmp_path_factory.mktemp("seen") / SEEN_FILE
    write_seen(path, families)
    assert read_seen(path) == read_seen(path.parent) == families
    stored = np.load(path)
    assert (stored.dtype, stored.tolist()) == (np.uint64, sorted(families))
    assert list(path.parent.iterdir()) == [path]


def test_a_record_is_found_in_the_models_folder_or_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "run" / "checkpoint"
    model.mkdir(parents=True)
    assert find_seen(model) is None
    write_seen(tmp_path / "run" / SEEN_FILE, [1])
    assert find_seen(model) == find_seen(model.parent) == tmp_path / "run" / SEEN_FILE
    write_seen(model / SEEN_FILE, [1, 2])
    assert read_seen(model) == {1, 2}
    monkeypatch.chdir(tmp_path / "run")
    assert find_seen("somebody/model") is None, "a name on the Hub is no folder"


def test_another_file_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no record of the levels seen in training"):
        read_seen(tmp_path)
    for name, content in (("text.npy", b"no array"), ("empty.npy", b""), ("zip.npy", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "floats.npy", np.ones(3))
    np.save(tmp_path / "table.npy", np.ones((2, 2), np.uint64))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("text", "empty", "zip", "floats", "table", "objects", "missing"):
        with pytest.raises(ValueError, match=rf"{name}.npy is not a record"):
            read_seen(tmp_path / f"{name}.npy")
