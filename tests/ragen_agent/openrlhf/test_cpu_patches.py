"""What a machine without CUDA refuses."""

from __future__ import annotations

import pytest

from ragen_agent.openrlhf import cpu_patches


@pytest.mark.parametrize("flag", cpu_patches.UNSUPPORTED)
def test_a_flag_that_cannot_work_on_a_cpu_is_refused(flag: str) -> None:
    for words in ([flag], ["--train.seed", "1", flag], [f"{flag}=true"]):
        with pytest.raises(ValueError, match=rf"^{flag} needs CUDA, and this run is on a CPU; leave it out"):
            cpu_patches.check_flags(words)


@pytest.mark.parametrize("words", [["--ds.ring_attn_size", "2"], ["--ds.ring_attn_size=2", "--train.seed=1"]])
def test_a_value_that_cannot_work_on_a_cpu_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^--ds.ring_attn_size 2 needs CUDA, and this run is on a CPU; use 1, or"):
        cpu_patches.check_flags(words)


def test_other_flags_pass() -> None:
    cpu_patches.check_flags([])
    cpu_patches.check_flags(
        ["--ds.attn_implementation", "sdpa", "--ds.ring_attn_size=1", "--actor.adam.betas", "0.9", "0.999"]
    )


def test_cuda_that_is_not_there_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cpu_patches.needed("auto")
    assert cpu_patches.needed("cpu")
    with pytest.raises(ValueError, match=r"torch sees no CUDA device here; install the CUDA build"):
        cpu_patches.needed("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not cpu_patches.needed("auto")
