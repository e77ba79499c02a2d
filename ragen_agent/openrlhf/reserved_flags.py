"""Which flags of OpenRLHF may follow after `--`, and what to use instead of the others.

A flag that a setting of ours decides is refused: what a run's configuration says is what the run does.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DECIDED", "REPLACEABLE", "REPLACED", "refuse"]

#: Flags that `command.flags` writes, and the setting behind each; in brackets what is no setting.
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
    "data.prompt_dataset": "(the run's own seed list)",
    "data.input_key": "(the seed list's)",
    "data.label_key": "(the seed list's)",
    "data.max_len": "turns.max_tokens_per_episode",
    "train.agent_func_path": "(ours; a file with a subclass of it may take its place)",
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
    "ckpt.max_num": "(two, so that one is always whole)",
    "ckpt.best_metric_key": "(none: the summary measures the last model)",
    "ckpt.load_enable": "(ragen-agent train --resume RUN)",
    "logger.wandb.run_name": "(the run's folder)",
    "logger.wandb.project": "openrlhf.wandb",
    "logger.wandb.key": "(the environment variable WANDB_API_KEY)",
    "logger.tensorboard_dir": "openrlhf.tensorboard",
}

#: Flags that would do again, or undo, what our trainer does in another way.
REPLACED = {
    "algo.dynamic_filtering_enable": "the filter is ours: training.filter and training.keep",
    "algo.dynamic_filtering_range": "the filter is ours: training.filter and training.keep",
    "train.async_enable": "an iteration trains on what the present weights played",
    "train.partial_rollout_enable": "an iteration trains on what the present weights played",
    "train.dynamic_batch_enable": "minibatches are cut by us: training.minibatch",
    "rollout.vllm_generate_batch_size": "an iteration plays training.groups levels, no more and no less",
    "ckpt.save_steps": "training.save_every says when a state is saved",
    "ckpt.disable_ds": "without its states a run cannot be resumed",
    "eval.dataset": "the fixed test levels are measured: [evaluation]",
    "eval.steps": "openrlhf.evaluate_every says when",
    "eval.temperature": "evaluation.temperature says it",
    "data.input_template": "prompts are made from the level, token by token",
    "data.apply_chat_template": "prompts are made from the level, token by token",
    "reward.model_name_or_path": "the game gives the reward",
    "reward.remote_url": "the game gives the reward",
    "reward.clip_range": "the game gives the reward",
}

#: A decided flag that may be given all the same: whoever does brings a class of the same contract.
REPLACEABLE = ("train.agent_func_path",)


def refuse(extra: Sequence[str]) -> None:
    """Raises a ValueError for a flag that is decided elsewhere, or short for one that is.

    Argparse takes `--train.see` for `--train.seed`, so the beginning of such a flag is refused like the whole of it.
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
