"""OpenRLHF without flash-attn and without CUDA, and what only they can do is refused."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import pytest
import torch

from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import read_recipe, recipe_names
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import launch, patches
from ragen_agent.openrlhf.weight_broadcast import stateless_init_process_group

IMPORTS = """
import sys
from importlib.util import find_spec
sys.modules["flash_attn"] = None  # as where it is not installed
try:
    import openrlhf.models
except ModuleNotFoundError:
    del sys.modules["flash_attn"]
from ragen_agent.openrlhf.patches import stand_in
stand_in()
import openrlhf.models
from openrlhf.models.ring_attn_utils import unpad_input
assert find_spec("flash_attn") is None and "flash_attn" not in sys.modules
try:
    unpad_input(None, None)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(find_spec("openrlhf") is None, reason="OpenRLHF is not installed")
@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_openrlhf_is_imported_without_flash_attn_and_nobody_else_sees_the_stand_in() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=300)
    assert "this needs flash-attn, which is not installed: use --set openrlhf.attention=sdpa" in done.stdout


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, the distributed stack, and no flash-attn."""
    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    monkeypatch.setattr(patches, "installed", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_the_default_run_starts_on_one_gpu_without_flash_attn(algo: str) -> None:
    config = with_settings(Config(), {"training": {"algo": algo}})
    assert not launch.check_run(config, OpenRLHF())
    with pytest.raises(ValueError, match=r"needs [23] GPUs, and this machine has 1: .* Use openrlhf.colocate=true"):
        launch.check_run(config, with_settings(OpenRLHF(), {"colocate": False}))
    more = {"actor_gpus": 2, "critic_gpus": 2, "vllm_engines": 2}
    with pytest.raises(ValueError, match=r"needs 2 GPUs, and this machine has 1: .* Lower openrlhf.actor_gpus"):
        launch.check_run(config, with_settings(OpenRLHF(), more))
    for attention in ("flash_attention_2", "kernels-community/flash-attn2"):
        with pytest.raises(ValueError, match=r"flash-attn is not installed here: use --set openrlhf.attention=sdpa"):
            launch.check_run(config, with_settings(OpenRLHF(), {"attention": attention}))


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("name", [name for name in recipe_names() if read_recipe(name).gpus < 2])
def test_a_recipe_for_one_gpu_or_none_starts_on_one(name: str) -> None:
    settings = dict(read_recipe(name).settings)
    distributed = with_settings(OpenRLHF(), settings.pop("openrlhf", {}))
    assert not launch.check_run(with_settings(Config(), settings), distributed)


@pytest.mark.usefixtures("one_gpu")
def test_a_lock_for_which_a_run_would_wait_for_ever_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "lock").touch()
    with pytest.raises(ValueError, match=f"remove them: rm {tmp_path}/lock"):
        launch.check_run(Config(), OpenRLHF())


def test_cuda_that_is_not_there_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert patches.needed("auto")
    assert patches.needed("cpu")
    with pytest.raises(ValueError, match=r"torch sees no CUDA device here; install the CUDA build"):
        patches.needed("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not patches.needed("auto")


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
        group = stateless_init_process_group("127.0.0.1", port, 1, 2, "cpu")
        for tensor in sent:
            into = torch.empty_like(tensor)
            group.broadcast(into, src=0)
            read.put(into)

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    group = stateless_init_process_group("127.0.0.1", port, 0, 2, "cpu")
    for tensor in sent:
        group.broadcast(tensor, src=0)
        assert torch.equal(read.get(timeout=60), tensor)
        assert len(group.group.entries) == 1, "the last one alone"
    thread.join(60)
