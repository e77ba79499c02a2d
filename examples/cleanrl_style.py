# Shows:    PPO in one file, in the style of CleanRL, on the suite's compiled batch; no library but torch.
# Install:  pip install ragen-gym torch
# Run:      python examples/cleanrl_style.py    prints success in training, then on test levels.
from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import ragen_gym  # noqa: F401  # registers the ids
from ragen_gym.wrappers import BatchFlatSymbols

ENVS, STEPS, EPOCHS, MINIBATCHES = 128, 16, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, RATE = 0.95, 0.95, 0.2, 0.01, 3e-3


def batch(count: int, split: str) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """``count`` environments that advance in one compiled call; an episode that ends is followed by the next one."""
    envs = gymnasium.make_vec(
        "ragen/FrozenLake-v0", count, autoreset_mode="SameStep", observation="grid", preset="easy", split=split
    )
    return BatchFlatSymbols(envs)


def judged(network: nn.Module, observation: Tensor, mask: Tensor) -> tuple[Categorical, Tensor]:
    """The policy over the moves that change something, and the value of each state."""
    output = network(observation)
    return Categorical(logits=output[:, :-1].masked_fill(~mask, -1e9)), output[:, -1]


def gae(rewards: Tensor, values: Tensor, ended: Tensor, last: Tensor) -> Tensor:
    """Generalised advantage estimates, float (steps, envs) (Schulman et al., arXiv 1506.02438, equation 16)."""
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        following = last if t == len(rewards) - 1 else values[t + 1]
        running = rewards[t] - values[t] + ~ended[t] * GAMMA * (following + LAMBDA * running)
        advantages[t] = running
    return advantages


def success(network: nn.Module, episodes: int) -> float:
    """The share of levels of the test split that the most likely moves solve."""
    envs = batch(episodes, "test")
    observation, info = envs.reset(seed=0)
    solved, over = np.zeros(episodes, bool), np.zeros(episodes, bool)
    while not over.all():
        with torch.no_grad():
            policy, _ = judged(network, torch.from_numpy(observation), mask_of(info))
        observation, _, terminated, truncated, info = envs.step(policy.probs.argmax(1).numpy())
        ends = (terminated | truncated) & ~over  # the first episode of each environment counts
        if ends.any():
            solved[ends] = info["final_info"]["success"][ends]
        over |= ends
    return float(solved.mean())


def mask_of(info: dict[str, Any]) -> Tensor:
    """The moves that change something, bool (envs, moves)."""
    return torch.from_numpy(np.stack(info["action_mask"]).astype(bool))


def main(updates: int, episodes: int) -> None:
    """Train, printing as it goes, and play the test levels."""
    torch.set_num_threads(1)  # the fastest for a network this small
    torch.manual_seed(0)
    envs = batch(ENVS, "train")
    inputs, moves = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    network = nn.Sequential(
        nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, moves + 1)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    raw, info = envs.reset(seed=0)
    observation, mask = torch.from_numpy(raw), mask_of(info)
    for update in range(1, updates + 1):
        steps, finished, won = [], 0, 0
        for _ in range(STEPS):
            with torch.no_grad():
                policy, value = judged(network, observation, mask)
            action = policy.sample()
            raw, reward, terminated, truncated, info = envs.step(action.numpy())
            done = terminated | truncated
            if done.any():
                finished, won = finished + int(done.sum()), won + int(info["final_info"]["success"].sum())
            kept = (observation, mask, action, policy.log_prob(action), value)
            steps.append((*kept, torch.from_numpy(reward).float(), torch.from_numpy(done)))
            observation, mask = torch.from_numpy(raw), mask_of(info)
        observations, masks, actions, old, values, rewards, ended = (
            torch.stack(each) for each in zip(*steps, strict=True)
        )
        with torch.no_grad():
            advantages = gae(rewards, values, ended, judged(network, observation, mask)[1])
        flat = [each.flatten(0, 1) for each in (observations, masks, actions, old, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ENVS * STEPS).chunk(MINIBATCHES):
                seen, allowed, chosen, before, advantage, target = (each[rows] for each in flat)
                policy, value = judged(network, seen, allowed)
                ratio = (policy.log_prob(chosen) - before).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                loss = -gain.mean() + (value - target).square().mean() / 2 - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.step()
        if update == 1 or update % 10 == 0:
            print(f"update {update}: solved {won / max(1, finished):.1%} of {finished} training episodes")
    print(f"success on {episodes} test levels: {success(network, episodes):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PPO on FrozenLake.")
    parser.add_argument("--updates", type=int, default=60, help="of 2,048 moves each")
    parser.add_argument("--episodes", type=int, default=256, help="test levels to play")
    main(**vars(parser.parse_args()))
