"""Atomic writes, and append-only logs of JSON lines that survive a torn last line."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar, overload

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

#: Error codes of a write without room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(OSError):
    """No room to write a file; the message names the file, the free space and the fix."""


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Raises a ``DiskFullError`` that names ``path`` if a write in the block, by any library, finds no room."""
    try:
        yield
    except DiskFullError:  # already names the file
        raise
    except Exception as error:
        code = _no_room(error)
        if not code:
            raise
        free = shutil.disk_usage(path.parent).free / 2**20
        raise DiskFullError(
            f"{path} cannot be written: {os.strerror(code).lower()}; {free:.1f} MiB are free in {path.parent}. "
            "Make room there, or raise the quota or the limit of file sizes (ulimit -f)."
        ) from error


def _no_room(error: BaseException | None) -> int:
    """The system's code for a full disk, anywhere in the chain of errors; 0 for other errors."""
    while error is not None:
        said = re.search(r"\(os error (\d+)\)", str(error))  # libraries written in Rust
        code = error.errno if isinstance(error, OSError) else int(said[1]) if said else None
        if code in _NO_ROOM:
            return int(code)
        error = error.__cause__ or error.__context__
    return 0


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Locks the folder itself, without a file in it, against other processes during the block.

    No effect on Windows or on file systems that cannot lock folders, such as NFS. Creates the folder; it is removed
    again if the block leaves it empty.

    Raises:
        ValueError: another process is working in it.
    """
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        if fcntl is not None:
            handle = os.open(path, os.O_RDONLY)
            undo.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is working in {path}: wait for it or end it, or use another folder."
                ) from None
            except OSError:  # the file system locks no folders
                pass
        try:
            yield
        finally:
            if made and path.is_dir() and not any(path.iterdir()):  # the work could not begin
                path.rmdir()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path next to ``path``, renamed to it if the block ends well and removed if it does not.

    Each call has its own name, so with several writers of one file the last one's whole file stays. What a killed
    process left is removed by ``remove_temporary``.

    Raises:
        DiskFullError: there was no room for the file.
        OSError: it cannot be written; the error names ``path``.
    """
    path = Path(path)
    with name_full_disk(path):
        temporary = path.with_name(f"{path.name[:40]}.writing{token_hex(8)}.tmp")  # systems take names of 255 bytes
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            os.replace(temporary, path)
        except BaseException as error:
            if isinstance(error, OSError) and str(error.filename) == str(temporary):
                error.filename = str(path)
            with suppress(OSError):
                temporary.unlink()
            raise


def remove_temporary(folder: Path) -> None:
    """Removes all temporary files of ``atomic_path`` in a folder that no other process uses."""
    for left in folder.glob("*.tmp"):
        if re.search(r"\.writing[0-9a-f]+\.tmp$", left.name):
            left.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder next to ``path`` to fill, which replaces it if the block ends well and is removed if it does not.

    Raises:
        DiskFullError: there was no room for the files.
    """
    new, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")

    def put_back() -> None:
        if old.is_dir() and not path.exists():  # it ended between the two renames
            old.rename(path)

    put_back()
    for leftover in (new, old):  # of a block that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with name_full_disk(path):
        try:
            new.mkdir()
            yield new
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            put_back()
            shutil.rmtree(new, ignore_errors=True)
            raise
    shutil.rmtree(old, ignore_errors=True)


def write_atomic(path: str | Path, data: str | bytes) -> None:
    """Write a file (text as UTF-8) under another name and rename it, so that a reader never sees half of it.

    It is flushed to disk before the rename; otherwise a power cut may leave an empty file.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def check_free(path: Path, force: bool) -> None:
    """Raise a ValueError if ``path`` exists and may not be replaced."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file's path.")
    if path.exists() and not path.is_file():  # replacing it would affect every program of the machine
        raise ValueError(f"{path} is a device or a pipe, which may not be replaced: give a file's path.")
    if path.exists() and not force:
        raise ValueError(f"{path} exists: choose another path, or add --force to replace it.")
    check_parent(path)


def check_absent(folder: Path) -> None:
    """Raise a ValueError if a folder to make exists, or the one around it does not."""
    if folder.exists():
        raise ValueError(f"{folder} exists: give a folder that does not, or delete it first.")
    check_parent(folder)


def check_parent(path: Path) -> None:
    """Raise a ValueError if the folder of ``path`` does not exist."""
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it, or choose another path.")


def _record(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


@overload
def read_json_lines(path: Path) -> list[dict[str, Any]]: ...
@overload
def read_json_lines(path: Path, read: Callable[[bytes], T]) -> list[T]: ...
def read_json_lines(path: Path, read: Callable[[bytes], Any] = _record) -> list[Any]:
    """The records of a file of JSON lines; empty lines and a torn last one are left out, a missing file is empty.

    Args:
        path: the file; one whose name ends in ``.gz`` is decompressed.
        read: makes a record of a line; a ValueError from it counts as a damaged line.

    Raises:
        ValueError: a line other than the last is not JSON or not a record.
    """
    data = path.read_bytes() if path.is_file() else b""
    lines = (gzip.decompress(data) if data and path.suffix == ".gz" else data).split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(read(line))
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, nested too deeply, or not a record
            if number < len(lines):  # a whole line ends with a newline, so a torn one is the last
                what = "JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else "such a record"
                raise ValueError(f"{path}, line {number}, is not {what}: {error}; remove that line.") from error
    return records


def repair_json_lines(path: Path, read: Callable[[bytes], Any] = _record) -> None:
    """Cut off a torn last line of a file of JSON lines, so that lines can be appended; a missing file is left alone.

    A complete last record without a newline gets one. Arguments as in ``read_json_lines``.
    """
    if not path.is_file():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return
    try:
        read(data[end:])
    except (ValueError, RecursionError):
        os.truncate(path, end)
    else:
        with path.open("ab") as file:
            file.write(b"\n")


def append_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add records to a file of JSON lines and flush them to disk: all of them, or none if there is no room.

    Raises:
        DiskFullError: there was no room for them.
    """
    data = memoryview(b"".join(map(json_line, records)))
    with name_full_disk(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def json_line(record: Mapping[str, Any]) -> bytes:
    """A record as one line of UTF-8; a lone surrogate is written as an escape."""
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(record) + "\n").encode()
