"""What a machine without CUDA refuses."""

from __future__ import annotations

import socket
import threading
from queue import Queue

import pytest
import torch

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


@pytest.mark.filterwarnings("default")
def test_weights_arrive_bit_for_bit_and_are_not_kept_once_they_were_read() -> None:
    pytest.importorskip("vllm")
    torch.manual_seed(0)
    sent = [torch.randn(300, 7).to(torch.bfloat16), torch.randn(5), torch.randn(2, 3).to(torch.bfloat16)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    read: Queue[torch.Tensor] = Queue()

    def engine() -> None:
        group = cpu_patches.stateless_init_process_group("127.0.0.1", port, 1, 2, "cpu")
        for tensor in sent:
            into = torch.empty_like(tensor)
            group.broadcast(into, src=0)
            read.put(into)

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    group = cpu_patches.stateless_init_process_group("127.0.0.1", port, 0, 2, "cpu")
    for tensor in sent:
        group.broadcast(tensor, src=0)
        assert torch.equal(read.get(timeout=60), tensor)
        assert len(group.group.entries) == 1, "the last one alone"
    thread.join(60)
