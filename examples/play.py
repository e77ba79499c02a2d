# Shows:    an environment at its two grains: single moves (Gymnasium), and whole replies of a language model.
# Install:  pip install ragen-gym
# Run:      python examples/play.py    prints the boards of both episodes, and the success of the oracle and of chance.
from __future__ import annotations

import argparse

import gymnasium
import numpy as np

import ragen_gym  # registers the ids
from ragen_gym.envs.policies import plan_moves, play_turns, random_reply, reply_for


def play_moves(seed: int) -> None:
    """An episode of random moves; the mask leaves out moves that change nothing."""
    env = gymnasium.make("ragen/FrozenLake-v0", split="test", success_rate=1)
    rng = np.random.default_rng(seed)
    board, info = env.reset(seed=seed)
    print(board)
    over = False
    while not over:
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        board, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        print(f"\n{env.unwrapped.action_names[action]}, reward {reward:g}\n{board}")
    print("solved" if info["success"] else "not solved")


def play_replies(seed: int) -> None:
    """An episode in which the oracle writes the replies of a model."""
    env = ragen_gym.make_turn("Sokoban", split="test", max_turns=5, max_actions_per_turn=3)
    message, info = env.reset(seed=seed)
    print(f"[system]\n{env.instructions}\n\n[user]\n{message}")
    while not env.over:
        reply = reply_for(env, plan_moves(env, moves=3), thought="The oracle knows the way.")
        message, reward, _, _, info = env.step(reply)
        print(f"\n[assistant]\n{reply}\n\n[user, reward {reward:g}]\n{message}")
    print("solved" if info["success"] else "not solved")


def success_of_chance(episodes: int) -> float:
    """The share of levels that random replies solve."""
    env = ragen_gym.make_turn("Sokoban", split="test", max_turns=5, max_actions_per_turn=3)
    rng = np.random.default_rng(0)
    solved = 0
    for seed in range(episodes):
        env.reset(seed=seed)
        solved += play_turns(env, lambda turns: random_reply(turns, rng))["success"]
    return solved / episodes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play an episode of moves and an episode of replies.")
    parser.add_argument("--seed", type=int, default=7, help="the same seed is the same level everywhere")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of random replies")
    arguments = parser.parse_args()
    play_moves(arguments.seed)
    print("\n" + "-" * 40 + "\n")
    play_replies(arguments.seed)
    print(f"\nrandom replies solve {success_of_chance(arguments.episodes):.1%} of {arguments.episodes} test levels")
