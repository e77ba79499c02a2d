"""OpenRLHF's command line for a run, as data: every setting of ours is one of its flags.

Further flags of OpenRLHF may follow, but none that a setting of ours decides already (`refuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_agent.config.openrlhf import Workers
from ragen_agent.openrlhf.reserved_flags import refuse
from ragen_agent.openrlhf.state import AGGREGATIONS

__all__ = ["MODULE", "check_layout", "flags"]

MODULE = "openrlhf.cli.train_ppo_ray"
"""What `python -m` runs with these flags."""

BETAS = [0.9, 0.999]  # torch's own, as in the local trainer
VALUE_CLIP = 0.2  # as in `ragen_agent.algo.losses.value_loss`
EXECUTOR = Path(__file__).with_name("executor.py")


def flags(run: Workers, model: Path, cpu: bool, resume: bool, extra: Sequence[str] = ()) -> list[str]:
    """The flags of `python -m openrlhf.cli.train_ppo_ray`.

    Args:
        run: the settings.
        model: folder of the model to start from.
        cpu: whether the run does without CUDA.
        resume: whether to read the last saved iteration.
        extra: flags of OpenRLHF's own that come last.

    Raises:
        ValueError: a flag of `extra` that a setting decides, see `conflicts.refuse`.
    """
    refuse(extra)
    training, settings, turns = run.config.training, run.settings, run.config.turns
    folder, kl = Path(run.folder), training.kl_estimate
    actor, critic = (settings.actor_nodes, settings.actor_gpus), (settings.critic_nodes, settings.critic_gpus)
    values: dict[str, object] = {
        "actor.model_name_or_path": model,
        "actor.num_nodes": actor[0],
        "actor.num_gpus_per_node": actor[1],
        "ref.num_nodes": actor[0],
        "ref.num_gpus_per_node": actor[1],
        "critic.num_nodes": critic[0],
        "critic.num_gpus_per_node": critic[1],
        "vllm.num_engines": settings.vllm_engines,
        "vllm.tensor_parallel_size": settings.vllm_tensor_parallel,
        "vllm.gpu_memory_utilization": settings.vllm_memory,
        "vllm.sync_backend": "gloo" if cpu else "nccl",
        "data.prompt_dataset": folder / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": turns.max_tokens_per_episode,
        "train.agent_func_path": EXECUTOR,
        "train.seed": run.config.seed,
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
        "ds.lora.rank": run.config.lora.rank,
        "ds.lora.alpha": int(run.config.lora.alpha),
        "ckpt.path": folder / "deepspeed",
        "ckpt.output_dir": folder / "checkpoint.new",
        "ckpt.max_num": 2,
        "ckpt.best_metric_key": "none",
        "logger.wandb.run_name": folder.name,
    }
    if run.config.lora.targets != ["all-linear"]:
        values["ds.lora.target_modules"] = run.config.lora.targets
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


def check_layout(run: Workers) -> None:
    """Raises a ValueError if the models cannot be laid over the GPUs, or adapted, as the settings say."""
    settings, lora = run.settings, run.config.lora
    if lora.rank and settings.zero_stage == 3:
        raise ValueError("lora.rank needs openrlhf.zero_stage 2: at stage 3 no GPU holds the weights to merge.")
    if lora.rank and not lora.alpha.is_integer():
        raise ValueError(f"lora.alpha is {lora.alpha}, which OpenRLHF takes as a whole number only.")
    actor = settings.actor_nodes * settings.actor_gpus
    engines = settings.vllm_engines * settings.vllm_tensor_parallel
    critic = settings.critic_nodes * settings.critic_gpus
    if not settings.colocate:
        return
    if actor != engines:
        raise ValueError(
            f"openrlhf.colocate puts every model on the same GPUs, so the actor's {actor} and vLLM's {engines} must be "
            "equally many: actor_nodes * actor_gpus = vllm_engines * vllm_tensor_parallel."
        )
    if run.config.training.critic and critic != actor:
        raise ValueError(
            f"openrlhf.colocate puts every model on the same GPUs, so the actor's {actor} and the critic's {critic} "
            "must be equally many: actor_nodes * actor_gpus = critic_nodes * critic_gpus."
        )
