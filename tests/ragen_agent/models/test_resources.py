"""What is read from the system's files about the CPU, and the dtype and threads that follow from it."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ragen_agent.config import Config
from ragen_agent.models.resources import cpu_threads
from ragen_agent.run.policy import device_and_dtype
from ragen_gym.core import threads
from ragen_gym.core.threads import bfloat16_units, free_cores

LARGE = replace(Config(), model="elsewhere")


def describe(monkeypatch: pytest.MonkeyPatch, folder: Path, *cores: tuple[int, int], flags: str = "") -> None:
    """A machine with a logical processor for each (physical id, core id)."""
    text = "\n\n".join(
        f"processor\t: {number}\nflags\t\t: fpu sse {flags}\nphysical id\t: {package}\ncore id\t\t: {core}"
        for number, (package, core) in enumerate(cores)
    )
    (folder / "cpuinfo").write_text(text + "\n")
    monkeypatch.setattr(threads, "CPUINFO", folder / "cpuinfo")
    monkeypatch.setattr(threads, "QUOTA", folder / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(cores))), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)


@pytest.mark.parametrize(
    ("flags", "units"),
    [
        ("avx512_bf16 amx_bf16", "AMX"),
        ("avx512_bf16", "AVX512"),
        ("avx512f avx512_fp16 amx_int8", ""),
        ("", ""),
    ],
)
def test_bfloat16_is_the_default_of_a_pretrained_model_where_the_cpu_has_units_for_it(
    flags: str, units: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    describe(monkeypatch, tmp_path, (0, 0), flags=flags)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bfloat16_units() == units
    assert device_and_dtype(LARGE) == ("cpu", torch.bfloat16 if units else torch.float32)
    assert device_and_dtype(Config()) == ("cpu", torch.float32)
    assert device_and_dtype(replace(LARGE, dtype="float32")) == ("cpu", torch.float32)


def test_units_do_not_count_where_torch_is_kept_from_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    describe(monkeypatch, tmp_path, (0, 0), flags="avx512_bf16 amx_bf16")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert bfloat16_units() == ""


def test_bfloat16_on_a_cpu_without_units_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = replace(LARGE, dtype="bfloat16", device="cpu")
    describe(monkeypatch, tmp_path, (0, 0), flags="avx2")
    with pytest.warns(UserWarning, match="no units for it .* dtype=float32"):
        assert device_and_dtype(asked) == ("cpu", torch.bfloat16)
    describe(monkeypatch, tmp_path, (0, 0), flags="avx512_bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_and_dtype(asked) == ("cpu", torch.bfloat16)


def test_cores_are_counted_once_and_within_what_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    describe(monkeypatch, tmp_path, (0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1))
    assert free_cores() == 4, "hyper-threads share a core"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4, 5}, raising=False)
    assert free_cores() == 2
    for quota, cores in (("max 100000", 2), ("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(quota + "\n")
        assert free_cores() == cores
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpuinfo").unlink()
    assert free_cores() == 3, "without the file: what the process is bound to"


def test_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    describe(monkeypatch, tmp_path, (0, 0), (0, 1), (0, 2))
    assert cpu_threads(LARGE) == 3
    assert cpu_threads(Config()) == 1
    assert cpu_threads(replace(LARGE, threads=1)) == cpu_threads(replace(Config(), threads=1)) == 1
    assert cpu_threads(replace(Config(), threads=8)) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert (cpu_threads(LARGE), cpu_threads(Config()), cpu_threads(replace(LARGE, threads=5))) == (2, 1, 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert cpu_threads(LARGE) == 3
