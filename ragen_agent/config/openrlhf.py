"""What the distributed trainer can be told beside the settings that both trainers share (`ragen_agent.config`).

Iterations, groups, members, minibatch, rates, clipping and temperatures are those of `Config.training`; one
configuration file serves both backends.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from ragen_agent.config import Config, read_toml, with_settings

__all__ = ["VARIABLE", "OpenRLHF", "Workers", "read_settings"]

VARIABLE = "RAGEN_AGENT_WORKERS"
"""The environment variable in which every process of a run finds its `Workers`."""


@dataclass(frozen=True)
class OpenRLHF:
    """Settings of the distributed trainer.

    Algorithm. `correction`: bounds of the importance weight of trainer against vLLM on each token, clipped (TIS).

    Data. `prompts`: a seed list that `ragen-agent data` wrote, to play instead of the one that the run would draw.

    Schedule. `schedule` and `warm_up`: name of a learning-rate schedule of transformers and the share of the updates
    that it warms up; updates are counted after the filter.

    Limits. Seconds for one reply, for one answer of the environment; `failure_budget`, the share of an iteration's
    episodes that may fail; `max_vllm_kl`, how far the log-probs of vLLM may be from the trainer's, in nats a token.

    Size. `accelerator`: cuda, cpu, or auto. Nodes and GPUs of the actor, the critic and the reference model;
    `colocate` puts all models on the same GPUs. `micro_batch`: rows on one GPU at a time. `ray_address`:
    of a running cluster; empty starts one here.

    Watching. `evaluate_every`: iterations between evaluations, 0 for before and after only. `wandb`: project name,
    empty for none; the key is read from WANDB_API_KEY.
    """

    correction: list[float] = field(default_factory=lambda: [0.0, 2.0])

    prompts: str = ""

    schedule: str = "constant"
    warm_up: float = 0.0

    generation_timeout: float = 600.0
    environment_timeout: float = 60.0
    failure_budget: float = 0.2
    max_vllm_kl: float = 0.1

    accelerator: str = "auto"
    ray_address: str = ""
    actor_nodes: int = 1
    actor_gpus: int = 1
    critic_nodes: int = 1
    critic_gpus: int = 1
    vllm_engines: int = 1
    vllm_tensor_parallel: int = 1
    vllm_memory: float = 0.6
    vllm_eager: bool = False
    colocate: bool = False
    micro_batch: int = 8
    zero_stage: int = 2
    adam_offload: bool = False
    gradient_checkpointing: bool = False
    attention: str = "flash_attention_2"
    packing: bool = True

    evaluate_every: int = 0
    tensorboard: bool = True
    wandb: str = ""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("accelerator", self.accelerator, ("auto", "cuda", "cpu")),
            ("zero_stage", self.zero_stage, (2, 3)),
        ):
            if value not in allowed:
                raise ValueError(f"openrlhf.{name} is {value!r}; choose one of {', '.join(map(str, allowed))}.")
        for name, number, least, most in (
            ("warm_up", self.warm_up, 0, 1),
            ("failure_budget", self.failure_budget, 0, 1),
            ("vllm_memory", self.vllm_memory, 0.01, 1),
            ("generation_timeout", self.generation_timeout, 1e-3, inf),
            ("environment_timeout", self.environment_timeout, 1e-3, inf),
            ("max_vllm_kl", self.max_vllm_kl, 0, inf),
            ("micro_batch", self.micro_batch, 1, inf),
            ("vllm_engines", self.vllm_engines, 1, inf),
            ("vllm_tensor_parallel", self.vllm_tensor_parallel, 1, inf),
            ("actor_nodes", self.actor_nodes, 1, inf),
            ("actor_gpus", self.actor_gpus, 1, inf),
            ("critic_nodes", self.critic_nodes, 1, inf),
            ("critic_gpus", self.critic_gpus, 1, inf),
            ("evaluate_every", self.evaluate_every, 0, inf),
        ):
            if not least <= number <= most:
                raise ValueError(f"openrlhf.{name} is {number}; it must be from {least:g} to {most:g}.")
        if len(self.correction) != 2 or not 0 <= self.correction[0] < self.correction[1]:
            raise ValueError(f"openrlhf.correction is {self.correction}; give a lower and a higher bound: [0.0, 2.0].")


@dataclass(frozen=True)
class Workers:
    """What every process of a run needs to know, sent as one environment variable.

    `folder`: the run's folder. `forbidden`: ids that no reply may hold; `vocabulary`: the width of the output layer.
    """

    config: Config
    settings: OpenRLHF
    folder: str
    forbidden: tuple[int, ...]
    vocabulary: int

    def to_json(self) -> str:
        """One line; `from_json` gives it back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workers:
        """What `to_json` wrote."""
        record = json.loads(text)
        return cls(
            with_settings(Config(), record["config"]),
            with_settings(OpenRLHF(), record["settings"]),
            record["folder"],
            tuple(record["forbidden"]),
            record["vocabulary"],
        )

    @classmethod
    def here(cls) -> Workers:
        """Those of the run that this process belongs to.

        Raises:
            RuntimeError: this process belongs to none.
        """
        if VARIABLE not in os.environ:
            raise RuntimeError(f"{VARIABLE} is not set: this code runs inside a training run; see ragen-agent train.")
        return cls.from_json(os.environ[VARIABLE])


def read_settings(folder: Path) -> OpenRLHF | None:
    """The settings of a distributed run; None if the folder holds none."""
    path = folder / "openrlhf.toml"
    return with_settings(OpenRLHF(), read_toml(path)) if path.is_file() else None
