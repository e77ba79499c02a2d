"""Atomic writes and logs of JSON lines."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.core.storage import (
    DiskFullError,
    append_json_lines,
    atomic_folder,
    atomic_path,
    check_free,
    json_line,
    locked_folder,
    read_json_lines,
    remove_temporary,
    repair_json_lines,
    write_atomic,
)


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes; the system refuses such a write like one to a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("data", ["two\nlines ☃\n", b"\x00\xff"])
def test_a_file_is_replaced_whole(tmp_path: Path, data: str | bytes) -> None:
    path, other, link = tmp_path / "file", tmp_path / "other", tmp_path / "link"
    for each in (path, other):
        each.write_text("old")
    link.symlink_to(other)
    for target in (path, link):
        write_atomic(target, data)
        assert target.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert other.read_text() == "old", "a link in the way is not followed"
    assert sorted(tmp_path.iterdir()) == [path, link, other], "nothing else is left"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_path(path) as first, first.open("w") as file:
        file.write("first, ")
        file.flush()
        write_atomic(path, "second")
        assert path.read_text() == "second"
        with pytest.raises(RuntimeError), atomic_path(path):
            raise RuntimeError
        file.write("whole")
    assert path.read_text() == "first, whole"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_of_a_folder_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "file.writing tips.tmp"
    for path in (kept, tmp_path / "state.pt.writing0.tmp", tmp_path / "a.writing12ef.tmp"):
        path.touch()
    remove_temporary(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_an_error_of_the_system_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "file", tmp_path / "file" / "part", tmp_path):
        with pytest.raises(OSError, match=rf"'{re.escape(str(path))}'") as caught:
            write_atomic(path, "text")
        assert caught.value.filename == str(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_where_a_command_may_write(tmp_path: Path) -> None:
    taken, pipe = tmp_path / "taken", tmp_path / "pipe"
    taken.touch()
    os.mkfifo(pipe)
    check_free(tmp_path / "new", force=False)
    check_free(taken, force=True)
    for path, force, message in (
        (taken, False, "exists: choose another path, or add --force"),
        (pipe, True, "is a device or a pipe, which may not be replaced"),
        (Path(os.devnull), True, "is a device or a pipe, which may not be replaced"),
        (tmp_path, True, "is a folder"),
        (tmp_path / "no" / "file", False, "there is no folder"),
    ):
        with pytest.raises(ValueError, match=message):
            check_free(path, force)


def test_records_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    records: list[dict[str, Any]] = [{"a": 1}, {"text": "zwei\n☃"}, {"half": "\ud83d"}]
    assert read_json_lines(path) == [], "a missing file is empty"
    append_json_lines(path, records[:1])
    append_json_lines(path, records[1:])
    assert read_json_lines(path) == records
    assert b"\\ud83d" in json_line(records[2]), "half a surrogate pair is written as an escape"


def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = json_line({"text": "☃"})
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        expected = 2 if cut == len(whole) - 1 else 1  # only the newline is missing
        assert len(read_json_lines(path)) == expected
    path.write_bytes(whole + b"\n" + whole)
    assert len(read_json_lines(path)) == 2, "an empty line is left out"
    path.write_bytes(whole[:-5] + b"\n" + whole)
    with pytest.raises(ValueError, match=r"log\.jsonl, line 1, is not JSON.*remove that line"):
        read_json_lines(path)
    path.write_bytes(b"3\n" + whole)
    with pytest.raises(ValueError, match=r"log\.jsonl, line 1, is not such a record: it is not a JSON object; remove"):
        read_json_lines(path)


@pytest.mark.parametrize(
    ("content", "repaired"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b": ', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b": 2}', b'{"a": 1}\n{"b": 2}\n'),
        (b"\xff", b""),
    ],
)
def test_a_torn_last_line_is_cut_off_before_more_is_added(tmp_path: Path, content: bytes, repaired: bytes) -> None:
    path = tmp_path / "log.jsonl"
    repair_json_lines(path)
    assert not path.exists()
    path.write_bytes(content)
    repair_json_lines(path)
    assert path.read_bytes() == repaired


def test_where_there_is_no_room_the_file_is_named_and_nothing_changes(tmp_path: Path) -> None:
    log, text, folder = tmp_path / "log.jsonl", tmp_path / "text", tmp_path / "folder"
    append_json_lines(log, [{"n": 1}])
    write_atomic(text, "old")
    with atomic_folder(folder) as new:
        (new / "part").write_text("old")
    before = {path: path.read_bytes() for path in (log, text, folder / "part")}
    long = "x" * 5000

    def fill_folder() -> None:
        with atomic_folder(folder) as new:
            (new / "first").write_text("small")
            (new / "part").write_text(long)

    def fill_file_of_folder() -> None:
        with atomic_folder(folder) as new:
            write_atomic(new / "part", long)

    with limited_files(1000):
        for path, write in (
            (log, partial(append_json_lines, log, [{"n": 2}, {"n": long}])),
            (text, partial(write_atomic, text, long)),
            (folder, fill_folder),
            (tmp_path / "folder.new" / "part", fill_file_of_folder),
        ):
            named = rf"^{re.escape(str(path))} cannot be written: file too large; [\d.]+ MiB are free in .*ulimit -f"
            with pytest.raises(DiskFullError, match=named):
                write()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    append_json_lines(log, [{"n": 2}])
    assert read_json_lines(log) == [{"n": 1}, {"n": 2}]


def test_a_block_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    for atomic, target in ((atomic_path, path), (atomic_folder, tmp_path / "folder")):
        with pytest.raises(ZeroDivisionError), atomic(target):
            print(1 / 0)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_survives_what_comes_between_its_two_renames(tmp_path: Path) -> None:
    """Its contents are put aside before the new ones take their place: neither an error nor a kill then loses them."""
    folder = tmp_path / "folder"
    with atomic_folder(folder) as new:
        (new / "part").write_text("old")
    with pytest.raises(FileNotFoundError), atomic_folder(folder) as new:
        new.rmdir()  # so that the second rename fails
    assert (folder / "part").read_text() == "old"
    folder.rename(tmp_path / "folder.old")  # as it is left by a kill
    with pytest.raises(ZeroDivisionError), atomic_folder(folder):
        print(1 / 0)
    assert (folder / "part").read_text() == "old"
    for leftover in ("folder.new", "folder.old"):  # of a block that was killed
        (tmp_path / leftover).mkdir()
    with atomic_folder(folder) as new:
        (new / "part").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (folder / "part").read_text() == "new"


def test_a_folder_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    """What the block leaves empty is removed, if it made the folder; the lock itself leaves no file."""
    folder = tmp_path / "runs" / "one"
    with locked_folder(folder):
        with pytest.raises(ValueError, match=r"another process is working in .*one: wait"), locked_folder(folder):
            pass
        assert not list(folder.iterdir())
    assert not folder.exists()
    with locked_folder(folder):
        (folder / "kept").touch()
    with locked_folder(folder):
        assert (folder / "kept").exists()


def test_a_file_system_that_locks_no_folder_is_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(handle: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # NFS, of a folder

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with locked_folder(tmp_path / "run"):
        (tmp_path / "run" / "kept").touch()
    assert (tmp_path / "run" / "kept").exists()
