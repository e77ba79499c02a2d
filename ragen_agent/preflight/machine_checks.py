"""Checks of a machine: its devices, memory, network, disks and compiler, each with what was found and what to do.

No check changes anything, except that stale locks of DeepSpeed's compilation are removed. The process that compiles
creates the file ``lock`` and holds it open until it is done (``torch.utils.file_baton``), so a lock that no process
holds is stale. On a shared disk a process of another machine may hold it, which cannot be seen here, so a recent one is
only removed with ``fix``.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Check",
    "available_memory",
    "compiler_check",
    "cpu_check",
    "device_checks",
    "disk_checks",
    "fail",
    "holders",
    "host_name_check",
    "lock_checks",
    "memory_check",
    "ok",
    "open_files_check",
    "port_checks",
    "shared_memory_check",
    "warn",
]

PORTS = {6379: "Ray's head", 8265: "Ray's dashboard", 10001: "Ray's client server"}
GIB = 2**30
STALE_LOCK_AGE = 600.0  # seconds after which a lock that no process here holds is stale
LOCK = "DeepSpeed's lock"
SMALLEST_RUN = 6.0  # GiB that a run of the small model takes on a CPU


@dataclass(frozen=True)
class Check:
    """Result of a check."""

    name: str
    state: str  # "ok", "warn" (a run may still work) or "fail" (it will not)
    found: str
    advice: str = ""  # what to do; empty for ok


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", found)


def warn(name: str, found: str, advice: str) -> Check:
    """A run may still work."""
    return Check(name, "warn", found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    """A run would fail."""
    return Check(name, "fail", found, advice)


def device_checks(distributed: bool) -> tuple[bool, list[Check]]:
    """CUDA's availability and checks of its devices; ``distributed`` as in ``doctor.examine``."""
    try:
        import torch
    except Exception as error:
        return False, [fail("CUDA", f"torch cannot be imported: {error}", "reinstall torch")]
    if torch.cuda.is_available():
        gpus = [_gpu_check(number, distributed) for number in range(torch.cuda.device_count())]
        found = f"{torch.version.cuda or torch.version.hip}, GPUs: {len(gpus)}"
        if distributed and not torch.distributed.is_nccl_available():
            advice = "install the CUDA build of torch, which brings NCCL"
            return True, [fail("CUDA", f"{found}, but no NCCL", advice), *gpus]
        return True, [ok("CUDA", found), *gpus]
    if torch.version.cuda is None:
        return False, [ok("CUDA", "none: this torch is built for the CPU, which is enough for the small model")]
    advice = "install a matching driver (nvidia-smi shows the installed one), or make the GPU visible to this container"
    return False, [warn("CUDA", f"torch is built for CUDA {torch.version.cuda} and sees no device", advice)]


def _gpu_check(number: int, distributed: bool) -> Check:
    """A GPU, by the name that ``--device`` takes: how much of its memory is free, and whether it computes bfloat16."""
    import torch

    name = f"cuda:{number}"
    try:
        kind, (free, total) = torch.cuda.get_device_name(number), torch.cuda.mem_get_info(number)
    except RuntimeError as error:  # as where no memory is left
        return warn(name, str(error).partition("\n")[0], "end what else runs on it: nvidia-smi lists that")
    found = f"{kind}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if torch.cuda.get_device_capability(number) < (8, 0):
        advice = "nothing: a pretrained model computes in float32 there"
        if distributed:
            advice = "add -- --ds.param_dtype fp16 to the command"
        return warn(name, f"{found}, without units for bfloat16", advice)
    return ok(name, found)


def cpu_check() -> Check:
    """The CPU's cores and its units for bfloat16, and what the settings' ``auto`` makes of them."""
    from ragen_gym.core.cpu import bfloat16_units, free_cores

    cores, units = free_cores(), bfloat16_units()
    threads = os.environ.get("OMP_NUM_THREADS") or cores
    defaults = f"threads={threads}, dtype={'bfloat16' if units else 'float32'}"
    return ok("CPU", f"cores: {cores}; bfloat16 units: {units or 'none'}; a pretrained model on the CPU has {defaults}")


def compiler_check() -> Check:
    """A compiler for DeepSpeed's optimiser, unless it is compiled already."""
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
    """Folder in which a run compiles DeepSpeed's extensions; see ``launch``."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions")))


def available_memory() -> float:
    """GiB of the host's memory that programs may still take, or all of it where the system does not say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return _total_memory()


def _total_memory() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB


def memory_check(needed: float = 0.0) -> Check:
    """The host's memory; ``needed`` is what a run on its CPU takes at most, in GiB, 0 if that is not known."""
    total, free = _total_memory(), available_memory()
    found = f"{free:.1f} of {total:.0f} GiB are free"
    if needed:
        found += f"; a run of this model on the CPU takes at most about {needed:.1f}"
    if free < (needed or SMALLEST_RUN):
        how = "end other programs" if total > (needed or SMALLEST_RUN) else "use a machine with more, or a GPU"
        return warn("memory", found, f"{how}, or lower turns.max_tokens_per_episode: Ray ends a run that fills 95 %")
    return ok("memory", found)


def shared_memory_check(cuda: bool) -> Check:
    """/dev/shm, which Ray uses for objects and NCCL between the GPUs of a node."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return ok("shared memory", "this system has no /dev/shm; Ray uses its temporary folder")
    free = shutil.disk_usage(place).free / GIB
    found = f"{free:.1f} GiB free in /dev/shm"
    advice = "start the container with --shm-size=16g or --ipc=host; outside one: mount -o remount,size=50% /dev/shm"
    if cuda and free < 8:
        return fail("shared memory", f"{found}; 8 GiB are needed, or NCCL fails with a bus error", advice)
    if free < 1:
        return warn("shared memory", f"{found}; Ray then keeps its objects on the disk, which is slow", advice)
    return ok("shared memory", found)


def open_files_check() -> Check:
    """Limit of open files of a process."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < 4096:
        return warn("open files", str(limit), "ulimit -n 65536 in the shell that starts Ray")
    return ok("open files", str(limit))


def host_name_check() -> Check:
    """This machine's host name, by which processes find each other."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        advice = f"add a line '127.0.0.1 {name}' to /etc/hosts (on a cluster: its address in the network)"
        return fail("host name", f"{name} cannot be resolved: {error}", advice)
    return ok("host name", f"{name} is {address}")


def port_checks() -> list[Check]:
    """Opening of a port, and use of Ray's ports."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            return [fail("ports", f"no port can be opened: {error}", "check the container's network")]
    busy = [f"{port} ({what})" for port, what in PORTS.items() if _answers(port)]
    if busy:
        advice = "a Ray cluster runs here: join it with --set openrlhf.ray_address=auto, or end it with ray stop"
        return [warn("ports", f"in use: {', '.join(busy)}", advice)]
    return [ok("ports", f"{', '.join(map(str, PORTS))} are free")]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def disk_checks(folder: Path, distributed: bool) -> list[Check]:
    """Free disk space for runs, and for temporary files of Ray and torch."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    places = {"runs": folder} | ({"temporary files": Path(tempfile.gettempdir())} if distributed else {})
    checks = []
    for name, place in places.items():
        usage = shutil.disk_usage(place)
        free, full = usage.free / GIB, 100 * (usage.total - usage.free) / usage.total
        found = f"{free:.0f} GiB free in {place}"
        if free < 2:
            checks.append(fail(f"disk for {name}", found, "free some space: a run keeps two checkpoints of its models"))
        elif distributed and full > 95:
            advice = "free some space: Ray refuses to work on a disk that is more than 95 % full"
            checks.append(warn(f"disk for {name}", f"{found}, {full:.0f} % full", advice))
        else:
            checks.append(ok(f"disk for {name}", found))
    return checks


def extension_folders() -> list[Path]:
    """Folders in which extensions are compiled: the one of our runs, and torch's own."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "torch_extensions"
    return [extensions(), *sorted(path for path in cache.glob("*") if path.is_dir())]


def lock_checks(fix: bool, folders: Sequence[Path] | None = None) -> list[Check]:
    """Checks each lock, and removes those that are stale; with ``fix`` also recent ones that no process here holds.

    ``folders`` are where to search; None for ``extension_folders``.
    """
    looked = extension_folders() if folders is None else folders
    locks = sorted(lock for folder in looked for lock in folder.glob("*/lock"))
    return [_lock_check(lock, fix) for lock in locks] or [ok(LOCK, "none")]


def holders(lock: Path) -> list[int] | None:
    """The processes that hold a lock open; None if this system cannot tell."""
    if not Path("/proc/self/fd").is_dir():
        return None
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(_same_file(descriptor, lock) for descriptor in list((process / "fd").iterdir())):
                found.append(int(process.name))
    return found


def _same_file(descriptor: Path, lock: Path) -> bool:
    try:
        return descriptor.samefile(lock)
    except OSError:  # closed meanwhile
        return False


def _lock_check(lock: Path, fix: bool) -> Check:
    try:
        state, found = lock.stat(), holders(lock)
    except FileNotFoundError:
        return ok(LOCK, f"{lock} was just released")
    age = time.time() - state.st_mtime
    if found:
        return ok(LOCK, f"{lock} is held by process {found[0]}, which is compiling; a run waits for it")
    if not fix and (age < STALE_LOCK_AGE or found is None or state.st_uid != os.getuid()):
        what = "no process here holds it" if found is not None else "this system cannot tell which process holds it"
        advice = "if no other machine is compiling there, remove it: ragen-agent doctor --fix"
        return fail(LOCK, f"{lock} is {age / 60:.0f} minutes old and {what}; runs wait for it forever", advice)
    try:
        lock.unlink()
    except FileNotFoundError:
        return ok(LOCK, f"{lock} was just released")
    except OSError as error:
        return fail(LOCK, f"{lock} is stale and cannot be removed: {error}", f"remove it: rm {lock}")
    return warn(
        LOCK, f"removed {lock}, which a killed run had left behind", "nothing: the next run compiles what is missing"
    )
