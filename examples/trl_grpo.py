# Shows:    GRPO of TRL on whole conversations: each reply is a turn of the game, and the return is the reward.
# Install:  pip install ragen-gym trl
# Run:      python examples/trl_grpo.py --model Qwen/Qwen3-0.6B    logs game/success and others.
from __future__ import annotations

import argparse

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ragen_gym.integrations import rows
from ragen_gym.integrations.trl_rollout import game_return, rollout_func

GAME = "FrozenLake"
OPTIONS = {"success_rate": 1.0, "max_turns": 3}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO on FrozenLake with TRL.")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name or folder")
    parser.add_argument("--levels", type=int, default=1024, help="levels of the training split")
    parser.add_argument("--steps", type=int, default=100, help="updates")
    parser.add_argument("--group", type=int, default=8, help="episodes of each level")
    parser.add_argument("--batch", type=int, default=16, help="episodes of an update on each device")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a reply")
    parser.add_argument("--out", default="runs/trl", help="folder for checkpoints")
    parser.add_argument("--cpu", action="store_true", help="train without a GPU")
    arguments = parser.parse_args()
    config = GRPOConfig(
        arguments.out,
        max_steps=arguments.steps,
        num_generations=arguments.group,
        per_device_train_batch_size=arguments.batch,
        max_completion_length=arguments.max_tokens,
        logging_steps=1,
        report_to="none",
        use_cpu=arguments.cpu,
    )
    data = list(rows(GAME, arguments.levels, **OPTIONS))  # a prompt with its seed; split="train" is the default
    trainer = GRPOTrainer(
        model=arguments.model,
        args=config,
        train_dataset=Dataset.from_list(data),
        rollout_func=rollout_func(data, **OPTIONS),
        reward_funcs=[game_return],
    )
    trainer.train()
    trainer.save_model()
