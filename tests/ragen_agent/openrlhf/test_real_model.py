"""A pretrained model on the distributed trainer, as one types it: its recipe, warm start included, on this CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from ragen_agent.config.trainers import read_openrlhf
from ragen_agent.models.named_models import model_folder
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.openrlhf.small_runs import Family

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

MEMORY = 16.0  # GiB that must be free: the run takes some 10 of them, other tests the rest
SETTINGS = (
    *("demonstrations.episodes=160", "warm_start.learning_rate=2e-4"),
    *("training.iterations=2", "training.groups=8", "training.group_size=4", "training.minibatch=32"),
    *("openrlhf.micro_batch=16", "evaluation.levels=8"),
)


@pytest.fixture(scope="module")
def model() -> Path:
    free = psutil.virtual_memory().available / 2**30
    if free < MEMORY:
        pytest.skip(f"{free:.1f} GiB of memory are free, and {MEMORY:g} are needed")
    try:
        return model_folder("smollm2-135m")
    except ValueError as error:
        pytest.skip(f"the model cannot be fetched: {error}")


def test_the_recipe_of_a_pretrained_model_runs_as_one_command(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ragen_agent.cli", "train", "--recipe", "smollm2-135m-bandit"]
    command += ["--backend", "openrlhf", "--out", str(run), *(word for name in SETTINGS for word in ("--set", name))]
    with Family() as family:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stderr
    assert not family.left()
    assert "leaked" not in done.stdout + done.stderr, "reports of libraries at their end belong in the log"
    assert "accelerator" not in done.stderr, "and their warnings"
    assert (run / "openrlhf.log").stat().st_size > 0
    folder, config = RunFolder.reopen(run)
    assert config.model == str(model)
    assert (read_openrlhf(run) or pytest.fail("no settings")).micro_batch == 16
    summary, records = folder.read_summary(), read_json_lines(folder.metrics)
    assert {"before", "after", "random", "optimal", "demonstrator"} <= set(summary)
    assert [record["iteration"] for record in records] == [0, 1]
    assert records[0]["invalid_rate"] < 0.5, "the warm start has taught the format"
    assert all(record["grad_norm"] > 0 and record["updates"] == 1 for record in records)
    assert all(abs(record["vllm_kl"]) < 0.01 and record["vllm_gap"] < 0.05 for record in records)
    check_weights(folder)


def check_weights(folder: RunFolder) -> None:
    """The model moved from its warm start; its output layer, which OpenRLHF saves too, is that of the embeddings."""
    warm, after = (load_file(path / "model.safetensors") for path in (folder.warm, folder.checkpoint))
    output = after.pop("lm_head.weight", after["model.embed_tokens.weight"])
    assert torch.equal(output, after["model.embed_tokens.weight"])
    assert set(warm) == set(after)
    assert any(not torch.equal(warm[name].float(), after[name].float()) for name in warm)
