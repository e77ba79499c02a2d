# Shows:    MaskablePPO of sb3-contrib on compiled batches: masks, a score on the test split, and a video.
# Install:  pip install '.[bench,render]' stable-baselines3 sb3-contrib
# Run:      python examples/sb3_ppo.py    prints success before and after; writes sokoban.zip and videos/.
from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RecordVideo
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks

import ragen_gym  # noqa: F401  # registers the ids
from ragen_gym.integrations.sb3 import BatchVecEnv
from ragen_gym.wrappers import BatchFlatSymbols, FlatSymbols

GAME = "ragen/Sokoban-v0"


def batch(count: int, split: str) -> BatchVecEnv:
    """``count`` environments that advance in one compiled call; their observation is a vector of zeros and ones."""
    envs = gymnasium.make_vec(GAME, count, autoreset_mode="SameStep", observation="grid", split=split)
    return BatchVecEnv(BatchFlatSymbols(envs))


def single(**options: Any) -> gymnasium.Env[Any, Any]:
    """One environment on levels that training never meets."""
    return gymnasium.make(GAME, observation="grid", split="test", **options)


def episode(model: MaskablePPO, env: gymnasium.Env[Any, Any], seed: int) -> bool:
    """Play one episode with the most likely moves; True if the level is solved."""
    observation, info = env.reset(seed=seed)
    over = False
    while not over:
        action, _ = model.predict(observation, action_masks=get_action_masks(env), deterministic=True)
        observation, _, terminated, truncated, info = env.step(int(action))
        over = terminated or truncated
    return bool(info["success"])


def success(model: MaskablePPO, episodes: int) -> float:
    """The share of test levels that the model solves."""
    env = FlatSymbols(single())
    return float(np.mean([episode(model, env, seed) for seed in range(episodes)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train MaskablePPO on Sokoban.")
    parser.add_argument("--steps", type=int, default=400_000, help="moves to train on")
    parser.add_argument("--episodes", type=int, default=200, help="test levels to play")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for a network this small
    model = MaskablePPO(
        "MlpPolicy",
        batch(64, "train"),
        n_steps=32,
        batch_size=512,
        n_epochs=4,
        gamma=0.95,
        learning_rate=1e-3,
        ent_coef=0.01,
        seed=0,
        device="cpu",
    )
    before = success(model, arguments.episodes)
    model.learn(arguments.steps)
    after = success(model, arguments.episodes)
    print(f"success on {arguments.episodes} test levels: {before:.1%} before, {after:.1%} after training")
    model.save("sokoban")
    film = FlatSymbols(RecordVideo(single(render_mode="rgb_array"), "videos"))
    episode(model, film, seed=0)
    film.close()
    print("wrote sokoban.zip and videos/rl-video-episode-0.mp4")
