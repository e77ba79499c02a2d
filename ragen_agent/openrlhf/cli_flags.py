"""OpenRLHF's command line for a run, whose flags are decided by the settings."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, Training
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.plan import most_pictures, packs_rows, rows_of_step

MODULE = "openrlhf.cli.train_ppo_ray"
"""What ``python -m`` runs with these flags."""

BETAS = [0.9, 0.999]  # torch's own, as in the local trainer
VALUE_CLIP = 0.2  # as in ``ragen_agent.algo.losses.value_loss``
EXECUTOR = Path(__file__).with_name("executor.py")


@dataclass(frozen=True)
class _Start:
    """A start of a run, from which the flags' values are read."""

    config: Config
    openrlhf: OpenRLHF
    folder: Path
    model: Path
    cpu: bool
    resume: bool

    @property
    def training(self) -> Training:
        return self.config.training

    @property
    def with_kl(self) -> bool:
        return self.training.kl_estimate != "none"

    def sleeps(self, *choices: str) -> bool:
        """True if models share their GPUs, and ``openrlhf.sleep`` is one of the choices."""
        return self.openrlhf.colocate and not self.cpu and self.openrlhf.sleep in choices

    def value(self, setting: str) -> Any:
        """A setting by its dotted name."""
        return attrgetter(setting)(self if setting.startswith("openrlhf.") else self.config)


#: Flags that ``command_flags`` writes: the setting that decides each, or in parentheses what else does; and the value,
#: where it is not the setting itself. True is a switch; False and None leave the flag out.
_FLAGS: dict[str, str | tuple[str, Callable[[_Start], Any]]] = {
    "actor.model_name_or_path": ("model", lambda start: start.model),
    "actor.num_nodes": "openrlhf.actor_nodes",
    "actor.num_gpus_per_node": "openrlhf.actor_gpus",
    "ref.num_nodes": "openrlhf.actor_nodes",
    "ref.num_gpus_per_node": "openrlhf.actor_gpus",
    "critic.num_nodes": "openrlhf.critic_nodes",
    "critic.num_gpus_per_node": "openrlhf.critic_gpus",
    "vllm.num_engines": "openrlhf.vllm_engines",
    "vllm.tensor_parallel_size": "openrlhf.vllm_tensor_parallel",
    "vllm.gpu_memory_utilization": "openrlhf.vllm_memory",
    "vllm.sync_backend": ("openrlhf.accelerator", lambda start: "gloo" if start.cpu else "nccl"),
    "vllm.enforce_eager": ("openrlhf.accelerator", lambda start: start.cpu),
    "vllm.enable_sleep": ("openrlhf.sleep", lambda start: start.sleeps("all", "vllm")),
    "vllm.enable_prefix_caching": (
        "(always on: every turn of an episode begins with the turns before it)",
        lambda start: True,
    ),
    "data.prompt_dataset": ("(the run's own prompt dataset)", lambda start: start.folder / "prompts.jsonl"),
    "data.input_key": ("(that of the prompt dataset)", lambda start: "prompt"),
    "data.label_key": ("(that of the prompt dataset)", lambda start: "label"),
    "data.max_len": "turns.max_tokens_per_episode",
    "data.max_images_per_prompt": (
        "(the pictures of the messages that a prompt keeps)",
        lambda start: most_pictures(start.config) or None,
    ),
    "train.agent_func_path": ("(ours; a file with a subclass of it may replace it)", lambda start: EXECUTOR),
    "train.seed": "seed",
    "train.num_episodes": ("training.iterations", lambda start: 1),  # the dataset holds all of them
    "train.max_epochs": "training.updates",
    "train.batch_size": ("training.minibatch", lambda start: rows_of_step(start.config, start.openrlhf)),
    "train.micro_batch_size": "openrlhf.micro_batch",
    "train.colocate_all": "openrlhf.colocate",
    "train.async_enable": ("openrlhf.staleness", lambda start: start.openrlhf.staleness > 0),
    "train.async_queue_size": ("openrlhf.staleness", lambda start: start.openrlhf.staleness or None),
    "rollout.batch_size": "training.groups",
    "rollout.n_samples_per_prompt": "training.group_size",
    "rollout.micro_batch_size": "openrlhf.micro_batch",
    "rollout.temperature": "training.temperature",
    "actor.adam.lr": "training.learning_rate",
    "actor.adam.betas": ("(0.9 and 0.999, as in the local trainer)", lambda start: BETAS),
    "actor.lr_scheduler": ("training.schedule", lambda start: "constant"),
    "actor.max_norm": "training.max_grad_norm",
    "actor.gradient_checkpointing_enable": "openrlhf.gradient_checkpointing",
    "actor.freeze_visual_encoder": "openrlhf.freeze_vision",
    "critic.adam.lr": "training.critic_learning_rate",
    "critic.adam.betas": ("(0.9 and 0.999, as in the local trainer)", lambda start: BETAS),
    "critic.lr_scheduler": ("training.schedule", lambda start: "constant"),
    "critic.max_norm": "training.max_grad_norm",
    "critic.value_clip": ("(0.2, as in the local trainer)", lambda start: VALUE_CLIP),
    "algo.kl.init_coef": ("training.kl and training.kl_kind", lambda s: s.training.kl if s.with_kl else 0.0),
    "algo.kl.estimator": ("training.kl_kind", lambda s: s.training.kl_estimate if s.with_kl else "k1"),
    "algo.kl.use_loss": ("training.kl_place", lambda s: s.with_kl and s.training.kl_place == "loss"),
    # Ours takes the place of all estimators; "group_norm" and others like it refuse groups of one.
    "algo.advantage.estimator": ("training.algo", lambda s: "gae" if s.training.critic else "reinforce"),
    "algo.advantage.gamma": "training.gamma",
    "algo.advantage.lambd": "training.gae_lambda",
    "algo.advantage.is_correction_level": (
        "training.correction",  # ours corrects; with off vLLM would give no log-probs
        lambda start: "token",
    ),
    "ds.zero_stage": "openrlhf.zero_stage",
    "ds.attn_implementation": ("openrlhf.attention", lambda s: "sdpa" if s.cpu else s.openrlhf.attention),
    "ds.lora.rank": "lora.rank",
    "ds.lora.alpha": ("lora.alpha", lambda start: int(start.config.lora.alpha)),
    "ds.lora.target_modules": (
        "lora.targets",
        lambda start: None if start.config.lora.targets == ["all-linear"] else start.config.lora.targets,
    ),
    "ds.enable_sleep": ("openrlhf.sleep", lambda start: start.sleeps("all")),
    "ds.packing_samples": (
        "openrlhf.attention",
        lambda start: not start.cpu and packs_rows(start.config, start.openrlhf),
    ),
    "ds.adam_offload": "openrlhf.adam_offload",
    "ckpt.path": ("(the run's folder)", lambda start: start.folder / "deepspeed"),
    "ckpt.output_dir": ("(the run's folder)", lambda start: start.folder / "checkpoint.new"),
    "ckpt.max_num": ("(two, so that one is always complete)", lambda start: 2),
    "ckpt.best_metric_key": ("(none: the summary measures the last model)", lambda start: "none"),
    "ckpt.load_enable": ("(ragen-agent train --resume RUN)", lambda start: start.resume),
}

DECIDED = {name: row if isinstance(row, str) else row[0] for name, row in _FLAGS.items()}
"""What decides each flag that ``command_flags`` writes."""

#: Further flags begin so: others would repeat or undo what our trainer does in another way, or it does not read them.
_OPEN = ("--ds.", "--vllm.", "--actor.adam.", "--critic.adam.")

#: Decided flags that may be given nevertheless: a class of the same interface, and vLLM without CUDA graphs.
_REPLACEABLE = ("--train.agent_func_path", "--vllm.enforce_eager")


def command_flags(
    config: Config, settings: OpenRLHF, folder: Path, model: Path, *, cpu: bool, resume: bool = False
) -> list[str]:
    """The flags of ``python -m openrlhf.cli.train_ppo_ray``; ``openrlhf.flags`` come last.

    ``folder`` (of the run) and ``model`` are absolute; ``resume`` goes on from the last saved iteration.

    Raises:
        ValueError: see ``extra_flags``.
    """
    start = _Start(config, settings, folder, model, cpu, resume)
    words: list[str] = []
    for name, row in _FLAGS.items():
        value = start.value(row) if isinstance(row, str) else row[1](start)
        if value is not None and value is not False:
            given = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{name}", *map(str, given)]
    return [*words, *extra_flags(settings)]


def extra_flags(settings: OpenRLHF) -> list[str]:
    """The words of ``openrlhf.flags``.

    Raises:
        ValueError: a flag that a setting decides, or one that is not among ``_OPEN``. Argparse reads ``--train.see`` as
            ``--train.seed``, so a prefix of such a flag is refused too.
    """
    try:
        words = shlex.split(settings.flags)
    except ValueError as error:  # a quotation that does not end
        raise ValueError(f"openrlhf.flags is {settings.flags!r}: {str(error).lower()}.") from None
    for word in words:
        name = word.split("=")[0]
        if not word.startswith("--") or name in _REPLACEABLE:
            continue
        for flag, setting in DECIDED.items():
            if f"--{flag}".startswith(name):
                where = f"it is {setting[1:-1]}" if setting.startswith("(") else f"use the setting {setting}"
                short = "" if name == f"--{flag}" else f", short for --{flag},"
                raise ValueError(f"openrlhf.flags: {name}{short} is decided by the run's own settings: {where}.")
        if not name.startswith(_OPEN):
            raise ValueError(f"openrlhf.flags: {name} does not fit this trainer; flags begin with {', '.join(_OPEN)}.")
    return words
