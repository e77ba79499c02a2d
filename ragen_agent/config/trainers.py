"""Settings of the distributed trainer, and of supervised fine-tuning (``ragen-agent sft train``)."""

from __future__ import annotations

from dataclasses import field
from math import inf
from pathlib import Path

from pydantic.dataclasses import dataclass

from ragen_agent.config.settings import Lora
from ragen_agent.config.table import Table, read_toml, with_settings
from ragen_gym.core.settings import setting

OPENRLHF = "openrlhf"
"""The table of the distributed trainer's own settings in a configuration file."""


@dataclass(frozen=True)
class OpenRLHF(Table):
    """The distributed trainer: OpenRLHF on Ray, vLLM and DeepSpeed.

    Both trainers share the iterations, groups, minibatch, rates, clipping and temperatures of ``Config.training``; one
    configuration file serves both, with these settings in its table ``[openrlhf]``.
    """

    generation_timeout: float = setting(600.0, "timeout of one reply", low=1e-3, high=inf, unit="seconds")
    environment_timeout: float = setting(
        60.0, "timeout of one answer of the environment", low=1e-3, high=inf, unit="seconds"
    )
    failure_budget: float = setting(0.2, "share of an iteration's episodes that may fail", low=0, high=1)
    max_vllm_kl: float = setting(
        0.1, "allowed distance of vLLM's log-probabilities from the trainer's", low=0, high=inf, unit="nats a token"
    )
    staleness: int = setting(
        0,
        "updates by which the playing weights may lag; 0: play and train in turn, 1: play the next iteration while "
        "this one is trained (train.async_enable). Larger values save no more time, but show the cost of staleness",
        low=0,
        unit="updates",
    )
    accelerator: str = setting("auto", "device; auto: cuda if available", choices=("auto", "cuda", "cpu"))
    ray_address: str = setting("", "of a running Ray cluster", empty="one is started here", opens="address")
    actor_nodes: int = setting(1, "nodes of the policy", low=1)
    actor_gpus: int = setting(1, "GPUs of the policy on each of its nodes", low=1)
    critic_nodes: int = setting(1, "nodes of the critic", low=1)
    critic_gpus: int = setting(1, "GPUs of the critic on each of its nodes", low=1)
    vllm_engines: int = setting(1, "engines of vLLM", low=1)
    vllm_tensor_parallel: int = setting(1, "GPUs of each engine", low=1)
    vllm_memory: float = setting(0.6, "share of a GPU's memory for vLLM", low=0.01, high=1)
    colocate: bool = setting(True, "put all models on the same GPUs; false: each on GPUs of its own")
    sleep: str = setting(
        "all",
        "models that leave a shared GPU's memory to the one that works, if all models share their GPUs",
        choices={
            "all": "vLLM, and the optimiser's states, which go to the host's memory between two iterations",
            "vllm": "vLLM alone, which saves the optimiser's way to the host where its states fit beside vLLM",
            "none": "none: everything stays, and the models train at the same time",
        },
    )
    micro_batch: int = setting(8, "rows on one GPU at a time", low=1, unit="rows")
    zero_stage: int = setting(2, "stage of DeepSpeed's ZeRO", choices=(2, 3))
    adam_offload: bool = setting(False, "keep the optimiser's state in the host's memory")
    gradient_checkpointing: bool = setting(False, "compute activations again in the backward pass, to save memory")
    attention: str = setting(
        "sdpa",
        "attention implementation of transformers; a flash attention, which needs flash-attn, packs rows without "
        "padding, but for visual models. Others score the sampled tokens alone, and shared prefixes once",
        opens="kernel",
    )
    freeze_vision: bool = setting(False, "train the language model alone, not the vision encoder")
    flags: str = setting(
        "",
        "further flags of OpenRLHF, for DeepSpeed (--ds.), vLLM (--vllm.) and Adam (--actor.adam., --critic.adam.), "
        "such as --ds.overlap_comm; a flag that a setting decides is refused",
        empty="none",
        opens="flags",
    )
    evaluate_every: int = setting(
        0, "iterations between evaluations; 0: before and after training only", low=0, unit="iterations"
    )


def read_openrlhf(folder: Path) -> OpenRLHF | None:
    """The settings of a distributed run; None if the folder has none."""
    path = folder / "openrlhf.toml"
    return with_settings(OpenRLHF(), read_toml(path)) if path.is_file() else None


@dataclass(frozen=True)
class FineTuning(Table):
    """The options of ``ragen-agent sft train``; ``data_sha256`` is filled in at its start."""

    data: str = setting("", "file of conversations, as ragen-agent sft data writes them", opens="data")
    model: str = setting("", "a model as train --model takes it", opens="data")
    epochs: int = setting(1, "passes over the data", low=1)
    batch: int = setting(32, "conversations a step", low=1)
    accumulate: int = setting(1, "parts in which a step is computed, to save memory", low=1)
    learning_rate: float = setting(0.0, "peak learning rate; 0 for 1e-5, with LoRA 2e-4", low=0, below=1e3)
    save_every: int = setting(100, "steps between checkpoints", low=1)
    max_tokens: int = setting(4096, "longer conversations are left out", low=1, unit="tokens")
    successes_only: bool = setting(False, "leave failed episodes out")
    seed: int = setting(0, "seed of the data's order and of the adapter", low=0)
    device: str = setting("auto", "cpu, cuda, cuda:N or auto: a GPU, if available", opens="nothing")
    threads: int = setting(0, "CPU threads; 0: every free physical core", low=0)
    lora: Lora = field(default_factory=Lora)
    data_sha256: str = ""

    def __post_init__(self) -> None:
        if self.batch % self.accumulate:
            raise ValueError(f"batch is {self.batch}; it must be a multiple of accumulate, {self.accumulate}.")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate with its default resolved."""
        return self.learning_rate or (2e-4 if self.lora.rank else 1e-5)
