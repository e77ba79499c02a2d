"""OpenRLHF's command line for a run, and which further flags of OpenRLHF may follow it.

Every setting of ours is one of its flags, and a flag that a setting decides is refused: a run does what its
configuration says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.trainers import OpenRLHF

__all__ = ["AGGREGATIONS", "DECIDED", "MODULE", "REPLACEABLE", "REPLACED", "check_extra_flags", "command_flags"]

MODULE = "openrlhf.cli.train_ppo_ray"
"""What ``python -m`` runs with these flags."""

AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
"""The aggregations of the loss that OpenRLHF has, by our names."""

BETAS = [0.9, 0.999]  # torch's own, as in the local trainer
VALUE_CLIP = 0.2  # as in `ragen_agent.algo.losses.value_loss`
EXECUTOR = Path(__file__).with_name("executor.py")

#: Flags that ``command_flags`` writes, and the setting that decides each, or in parentheses what else does.
DECIDED = {
    "actor.model_name_or_path": "model",
    "actor.num_nodes": "openrlhf.actor_nodes",
    "actor.num_gpus_per_node": "openrlhf.actor_gpus",
    "ref.num_nodes": "openrlhf.actor_nodes",
    "ref.num_gpus_per_node": "openrlhf.actor_gpus",
    "critic.num_nodes": "openrlhf.critic_nodes",
    "critic.num_gpus_per_node": "openrlhf.critic_gpus",
    "vllm.num_engines": "openrlhf.vllm_engines",
    "vllm.tensor_parallel_size": "openrlhf.vllm_tensor_parallel",
    "vllm.gpu_memory_utilization": "openrlhf.vllm_memory",
    "vllm.sync_backend": "openrlhf.accelerator",
    "vllm.enforce_eager": "openrlhf.vllm_eager",
    "vllm.enable_sleep": "openrlhf.colocate",
    "vllm.enable_prefix_caching": "(always on: every turn of an episode begins with the turns before it)",
    "data.prompt_dataset": "(the run's own prompt dataset)",
    "data.input_key": "(that of the prompt dataset)",
    "data.label_key": "(that of the prompt dataset)",
    "data.max_len": "turns.max_tokens_per_episode",
    "train.agent_func_path": "(ours; a file with a subclass of it may replace it)",
    "train.seed": "seed",
    "train.num_episodes": "training.iterations",
    "train.max_epochs": "training.updates",
    "train.batch_size": "training.minibatch",
    "train.micro_batch_size": "openrlhf.micro_batch",
    "train.colocate_all": "openrlhf.colocate",
    "rollout.batch_size": "training.groups",
    "rollout.n_samples_per_prompt": "training.group_size",
    "rollout.micro_batch_size": "openrlhf.micro_batch",
    "rollout.temperature": "training.temperature",
    "actor.adam.lr": "training.learning_rate",
    "actor.adam.betas": "(0.9 and 0.999, as in the local trainer)",
    "actor.lr_scheduler": "openrlhf.schedule",
    "actor.lr_warmup_ratio": "openrlhf.warm_up",
    "actor.max_norm": "training.max_grad_norm",
    "actor.eps_clip_low_high": "training.clip_low and training.clip_high",
    "actor.dual_clip": "training.dual_clip",
    "actor.entropy_coef": "training.entropy_bonus",
    "actor.loss_agg_mode": "training.aggregation",
    "actor.gradient_checkpointing_enable": "openrlhf.gradient_checkpointing",
    "critic.adam.lr": "training.critic_learning_rate",
    "critic.adam.betas": "(0.9 and 0.999, as in the local trainer)",
    "critic.lr_scheduler": "openrlhf.schedule",
    "critic.lr_warmup_ratio": "openrlhf.warm_up",
    "critic.max_norm": "training.max_grad_norm",
    "critic.value_clip": "(0.2, as in the local trainer)",
    "algo.kl.init_coef": "training.kl and training.kl_kind",
    "algo.kl.estimator": "training.kl_kind",
    "algo.kl.use_loss": "training.kl_place",
    "algo.advantage.estimator": "training.algo",
    "algo.advantage.gamma": "training.gamma",
    "algo.advantage.lambd": "training.gae_lambda",
    "algo.advantage.is_correction_level": "openrlhf.correction",
    "algo.advantage.is_correction_mode": "openrlhf.correction",
    "algo.advantage.is_correction_threshold": "openrlhf.correction",
    "ds.zero_stage": "openrlhf.zero_stage",
    "ds.attn_implementation": "openrlhf.attention",
    "ds.lora.rank": "lora.rank",
    "ds.lora.alpha": "lora.alpha",
    "ds.lora.target_modules": "lora.targets",
    "ds.enable_sleep": "openrlhf.colocate",
    "ds.packing_samples": "openrlhf.packing",
    "ds.adam_offload": "openrlhf.adam_offload",
    "ckpt.path": "(the run's folder)",
    "ckpt.output_dir": "(the run's folder)",
    "ckpt.max_num": "(two, so that one is always complete)",
    "ckpt.best_metric_key": "(none: the summary measures the last model)",
    "ckpt.load_enable": "(ragen-agent train --resume RUN)",
    "logger.wandb.run_name": "(the run's folder)",
    "logger.wandb.project": "openrlhf.wandb",
    "logger.wandb.key": "(the environment variable WANDB_API_KEY)",
    "logger.tensorboard_dir": "openrlhf.tensorboard",
}

#: Flags that would repeat or undo what our trainer does in another way.
REPLACED = {
    "algo.dynamic_filtering_enable": "the filter is ours: training.filter and training.keep",
    "algo.dynamic_filtering_range": "the filter is ours: training.filter and training.keep",
    "train.async_enable": "an iteration trains on what the current weights played",
    "train.partial_rollout_enable": "an iteration trains on what the current weights played",
    "train.dynamic_batch_enable": "minibatches are cut by us: training.minibatch",
    "rollout.vllm_generate_batch_size": "an iteration plays training.groups levels, no more and no less",
    "ckpt.save_steps": "training.save_every says when a state is saved",
    "ckpt.disable_ds": "without its states a run cannot be resumed",
    "eval.dataset": "the fixed test levels are played: [evaluation]",
    "eval.steps": "openrlhf.evaluate_every says when",
    "eval.temperature": "evaluation.temperature says which",
    "data.input_template": "prompts are made from the level, token by token",
    "data.apply_chat_template": "prompts are made from the level, token by token",
    "reward.model_name_or_path": "the game gives the reward",
    "reward.remote_url": "the game gives the reward",
    "reward.clip_range": "the game gives the reward",
}

#: A decided flag that may be given nevertheless, with a class of the same interface.
REPLACEABLE = ("train.agent_func_path",)


def command_flags(
    config: Config,
    settings: OpenRLHF,
    folder: Path,
    model: Path,
    *,
    cpu: bool,
    resume: bool = False,
    extra: Sequence[str] = (),
) -> list[str]:
    """The flags of ``python -m openrlhf.cli.train_ppo_ray``.

    Args:
        config: the settings that both trainers share.
        settings: those of this trainer.
        folder: the run's folder, absolute.
        model: folder of the model to start from.
        cpu: whether the run does without CUDA.
        resume: whether to continue from the last saved iteration.
        extra: further flags of OpenRLHF, which come last.

    Raises:
        ValueError: a flag of ``extra`` that a setting decides; see ``check_extra_flags``.
    """
    check_extra_flags(extra)
    training, kl = config.training, config.training.kl_estimate
    values: dict[str, object] = {
        "actor.model_name_or_path": model,
        "actor.num_nodes": settings.actor_nodes,
        "actor.num_gpus_per_node": settings.actor_gpus,
        "ref.num_nodes": settings.actor_nodes,
        "ref.num_gpus_per_node": settings.actor_gpus,
        "critic.num_nodes": settings.critic_nodes,
        "critic.num_gpus_per_node": settings.critic_gpus,
        "vllm.num_engines": settings.vllm_engines,
        "vllm.tensor_parallel_size": settings.vllm_tensor_parallel,
        "vllm.gpu_memory_utilization": settings.vllm_memory,
        "vllm.sync_backend": "gloo" if cpu else "nccl",
        "data.prompt_dataset": folder / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": config.turns.max_tokens_per_episode,
        "train.agent_func_path": EXECUTOR,
        "train.seed": config.seed,
        "train.num_episodes": 1,
        "train.max_epochs": training.updates,
        "train.batch_size": training.minibatch,
        "train.micro_batch_size": settings.micro_batch,
        "rollout.batch_size": training.groups,
        "rollout.n_samples_per_prompt": training.group_size,
        "rollout.micro_batch_size": settings.micro_batch,
        "rollout.temperature": training.temperature,
        "actor.adam.lr": training.learning_rate,
        "critic.adam.lr": training.critic_learning_rate,
        "actor.lr_scheduler": settings.schedule,
        "critic.lr_scheduler": settings.schedule,
        "critic.value_clip": VALUE_CLIP,
        "actor.lr_warmup_ratio": settings.warm_up,
        "critic.lr_warmup_ratio": settings.warm_up,
        "actor.adam.betas": BETAS,
        "critic.adam.betas": BETAS,
        "actor.max_norm": training.max_grad_norm,
        "critic.max_norm": training.max_grad_norm,
        "actor.eps_clip_low_high": [training.clip_low, training.upper_clip],
        "actor.entropy_coef": training.entropy_bonus,
        "actor.loss_agg_mode": AGGREGATIONS[training.aggregation],
        "algo.kl.init_coef": 0.0 if kl == "none" else training.kl,
        "algo.kl.estimator": "k1" if kl == "none" else kl,
        "algo.advantage.estimator": "gae" if training.critic else "group_norm",
        "algo.advantage.gamma": training.gamma,
        "algo.advantage.lambd": training.gae_lambda,
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
        "algo.advantage.is_correction_threshold": settings.correction,
        "ds.zero_stage": settings.zero_stage,
        "ds.attn_implementation": "sdpa" if cpu else settings.attention,
        "ds.lora.rank": config.lora.rank,
        "ds.lora.alpha": int(config.lora.alpha),
        "ckpt.path": folder / "deepspeed",
        "ckpt.output_dir": folder / "checkpoint.new",
        "ckpt.max_num": 2,
        "ckpt.best_metric_key": "none",
        "logger.wandb.run_name": folder.name,
    }
    if config.lora.targets != ["all-linear"]:
        values["ds.lora.target_modules"] = config.lora.targets
    if training.dual_clip:
        values["actor.dual_clip"] = training.dual_clip
    if settings.tensorboard:
        values["logger.tensorboard_dir"] = folder / "tensorboard"
    if settings.wandb:
        values["logger.wandb.project"] = settings.wandb
        values["logger.wandb.key"] = "environment"  # wandb reads WANDB_API_KEY or its own login; here it would be seen
    switches = {
        "algo.kl.use_loss": kl != "none" and training.kl_place == "loss",
        "ckpt.load_enable": resume,
        "vllm.enforce_eager": cpu or settings.vllm_eager,
        "vllm.enable_prefix_caching": True,
        "vllm.enable_sleep": settings.colocate and not cpu,
        "ds.enable_sleep": settings.colocate and not cpu,
        "ds.packing_samples": settings.packing and not cpu,
        "ds.adam_offload": settings.adam_offload,
        "actor.gradient_checkpointing_enable": settings.gradient_checkpointing,
        "train.colocate_all": settings.colocate,
    }
    words: list[str] = []
    for name, value in values.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return [*words, *(f"--{name}" for name, on in switches.items() if on), *extra]


def check_extra_flags(extra: Sequence[str]) -> None:
    """Checks the flags that follow ours.

    Raises:
        ValueError: a flag that a setting decides, or that does not fit this trainer. Argparse reads ``--train.see`` as
            ``--train.seed``, so a prefix of such a flag is refused too.
    """
    for word in extra:
        if not word.startswith("--"):
            continue
        name = word[2:].split("=")[0]
        if name in REPLACEABLE:
            continue
        for flag, setting in DECIDED.items():
            if flag.startswith(name):
                where = f"it is {setting[1:-1]}" if setting.startswith("(") else f"use the setting {setting}"
                what = f"--{name}" if name == flag else f"--{name}, short for --{flag},"
                raise ValueError(f"{what} is decided by the run's own settings: {where}.")
        for flag, reason in REPLACED.items():
            if flag.startswith(name):
                raise ValueError(f"--{flag} does not fit this trainer: {reason}; leave it out.")
