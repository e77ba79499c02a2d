"""StarPO-S from scratch: a language model of 0.1M parameters learns FrozenLake, in one file read from top to bottom.

The library brings the game (`make_turn`), the token process (`TokenMDP`), the sampling engine and the formulas
(`ragen_agent.algo`). The training loop, the scoring of tokens and the loss are written out here.

1. Imitate a cautious demonstrator, who knows the way but mostly replies with one move and runs out of turns.
2. Repeat: play groups of episodes, keep the groups whose returns differ most, compare the episodes of a group,
   and take policy-gradient steps on the sampled tokens (RAGEN, arXiv 2504.20073, section 3).
3. Compare the start and the result with the reference policies on the same levels of the test split.

Install:  pip install '.[agent]'
Run:      python examples/starpo_from_scratch.py
Printed:  success on 192 test levels, in % with 95 % intervals, seed 0, 471 s on two busy cores: random play 11.5
          (7.7 to 16.7), imitation 1.0 (0.3 to 3.7), StarPO-S 26.0 (20.3 to 32.7), optimal play 100 (98.0 to 100).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent import ChatFormat, TokenMDP, Trajectory, algo
from ragen_agent.config import SmallModel
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.models.small_model import build_model, build_tokenizer
from ragen_agent.run.evaluation import baselines, fixed_instances, rate_of_played
from ragen_agent.tasks.demo_thoughts import thinking
from ragen_agent.tokens.rollout import Instance, group, play
from ragen_gym import make_turn
from ragen_gym.core.stats import Rate
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv


@dataclass(frozen=True)
class Settings:
    """Every number of the run. The defaults are small enough for two CPU cores."""

    seed: int = 0
    # Imitation.
    demonstrations: int = 6000
    epochs: int = 1
    imitation_batch: int = 32
    imitation_rate: float = 3e-3
    # Reinforcement.
    iterations: int = 40
    groups: int = 32  # levels in an iteration
    group_size: int = 8  # episodes on each level
    keep: float = 0.5  # share of the groups kept, those with the largest std of returns
    minibatch: int = 64  # episodes in an optimiser step
    learning_rate: float = 1e-3
    clip_low: float = 0.2  # the ratio of a token's probabilities is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.28
    entropy_bonus: float = 0.001  # per nat
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    # Evaluation.
    levels: int = 192
    evaluation_temperature: float = 0.5


# The game: a 4 x 4 lake without slip. Two replies of at most five moves each, in at most 24 tokens.


def make_env(split: str) -> TurnEnv:
    """The environment whose action is a model's whole reply."""
    return make_turn(
        "FrozenLake",
        split=split,
        size=4,
        success_rate=1.0,
        min_path=3,
        max_turns=2,
        max_actions_per_turn=5,
        max_actions=10,
    )


class Policy:
    """A small Qwen2 with random weights, its tokenizer and chat format, and the engine that samples its tokens."""

    def __init__(self, seed: int) -> None:
        self.tokenizer = build_tokenizer()
        self.model: PreTrainedModel = build_model(SmallModel(), self.tokenizer, seed)
        self.chat = ChatFormat.from_tokenizer(self.tokenizer)
        self.engine = TorchEngine(self.model, self.chat.stop_ids, len(self.tokenizer))

    def processes(self, split: str, count: int) -> list[TokenMDP]:
        """Token processes, one for each episode that is played at the same time."""
        return [TokenMDP(make_env(split), self.chat, max_tokens_per_turn=24) for _ in range(count)]


# Tokens as tensors, and their probabilities under the current weights.


@dataclass(frozen=True)
class Batch:
    """Trajectories padded on the right; each tensor is (rows, width)."""

    ids: Tensor  # int64
    sampled: Tensor  # bool: the tokens that the policy sampled; the others are prompts and glue
    log_probs: Tensor  # float32, as recorded when the tokens were sampled


def batch_of(trajectories: Sequence[Trajectory]) -> Batch:
    """Pads trajectories; padding stands on the right, where causal attention never reads it."""

    def padded(rows: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    return Batch(
        padded([t.ids for t in trajectories], torch.long),
        padded([t.sampled for t in trajectories], torch.bool),
        padded([t.log_probs for t in trajectories], torch.float32),
    )


def score(policy: Policy, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens, and entropies (nats) of the distributions that they were drawn from.

    Both are float32 (rows, width) with gradient, 0 at other tokens. The engine's bias suppresses ids that a reply must
    not hold, so these are the distributions that the engine samples from.
    """
    hidden = policy.model.base_model(batch.ids[:, :-1], use_cache=False).last_hidden_state
    before = hidden[batch.sampled[:, 1:]]  # a token is drawn at the place before it; most places need no logits
    logits = (policy.model.get_output_embeddings()(before).float() + policy.engine.bias) / temperature
    every = logits.log_softmax(-1)
    log_probs = every.gather(-1, batch.ids[batch.sampled][:, None]).squeeze(-1)
    entropy = -(every.exp() * every).sum(-1)
    zeros = torch.zeros(batch.ids.shape)
    return zeros.masked_scatter(batch.sampled, log_probs), zeros.masked_scatter(batch.sampled, entropy)


def descend(policy: Policy, optimiser: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float) -> None:
    """One optimiser step."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_grad_norm)
    optimiser.step()


# 1. Imitation.


def demonstrate(process: TokenMDP, seed: int, rng: np.random.Generator) -> Trajectory:
    """An episode of the demonstrator, who gives one of the oracle's moves in a reply, or rarely two or three."""
    env = process.env.unwrapped
    assert isinstance(env, TurnEnv)
    process.begin(seed=seed)
    while not process.done:
        moves = plan_moves(env, 1 + int(rng.choice(3, p=[0.8, 0.15, 0.05])))
        reply = thinking(env, "direction") + write_reply([env.action_names[move] for move in moves])
        ids = process.chat.reply_ids(reply)
        process.append_reply(ids, [0.0] * len(ids))
    return process.trajectory()


def imitate(policy: Policy, settings: Settings) -> None:
    """Maximum likelihood of the demonstrator's tokens."""
    rng = np.random.default_rng(settings.seed)
    (process,) = policy.processes("train", 1)
    rows = [demonstrate(process, int(rng.integers(2**62)), rng) for _ in range(settings.demonstrations)]
    optimiser = torch.optim.AdamW(
        policy.model.parameters(), settings.imitation_rate, betas=(0.9, 0.99), weight_decay=0.0
    )
    steps = [part for _ in range(settings.epochs) for part in minibatches(len(rows), settings.imitation_batch, rng)]
    for number, chosen in enumerate(steps):
        for parameters in optimiser.param_groups:  # up over 20 steps, and down along a line
            parameters["lr"] = settings.imitation_rate * min((number + 1) / 20, 1 - 0.9 * number / len(steps))
        batch = batch_of([rows[row] for row in chosen])
        log_probs, _ = score(policy, batch, 1.0)
        loss = -algo.masked_mean(log_probs, batch.sampled)
        descend(policy, optimiser, loss, settings.max_grad_norm)
        if number % 50 == 0:
            print(f"imitation step {number:3}: {float(loss.detach()):.3f} nats a token", flush=True)


def minibatches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Each index once, in random order, ``size`` at a time."""
    order = rng.permutation(count).tolist()
    yield from (order[start : start + size] for start in range(0, count, size))


# 2. Reinforcement by StarPO-S.


def rollouts(policy: Policy, processes: Sequence[TokenMDP], number: int, settings: Settings) -> list[Trajectory]:
    """The episodes of an iteration. The episodes of a group are adjacent and share a level that no other has."""
    rng = np.random.default_rng([settings.seed, number])
    episodes = group(rng.integers(2**40, size=settings.groups).tolist(), settings.group_size)
    seed = int(rng.integers(2**62))
    return play(policy.engine, processes, episodes, temperature=settings.temperature, seed=seed)


def advantages_of(played: Sequence[Trajectory], settings: Settings) -> tuple[Tensor, Tensor]:
    """Advantages, float (groups, group size), and the kept groups, bool (groups,).

    A trajectory's advantage is its return minus the group's mean, over the group's std. A group whose episodes all
    earn the same has nothing to teach: the filter drops the groups with the smallest std.
    """
    returns = torch.tensor([t.total_reward for t in played]).view(settings.groups, settings.group_size)
    kept = algo.keep_groups(algo.group_std(returns), "top", settings.keep)
    return algo.normalised(returns, "grpo"), kept


def loss_of(policy: Policy, batch: Batch, advantages: Tensor, settings: Settings) -> Tensor:
    """The clipped policy loss minus the entropy bonus: token means over the minibatch.

    Every sampled token of a trajectory, (rows,) of them, has the trajectory's advantage.
    """
    log_probs, entropy = score(policy, batch, settings.temperature)
    loss, _ = algo.policy_loss(
        log_probs,
        batch.log_probs,
        algo.broadcast_to_tokens(advantages, batch.sampled),
        batch.sampled,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
    )
    return loss - settings.entropy_bonus * algo.masked_mean(entropy, batch.sampled)


def update(
    policy: Policy, optimiser: torch.optim.Optimizer, played: Sequence[Trajectory], number: int, settings: Settings
) -> None:
    """The optimiser steps of an iteration, one for each minibatch of kept trajectories."""
    advantages, kept = advantages_of(played, settings)
    if not bool(algo.group_std(torch.tensor([t.total_reward for t in played]).view_as(advantages))[kept].any()):
        return  # no group has different returns: the entropy bonus alone would move the weights
    rows = kept[:, None].expand_as(advantages).flatten().nonzero().flatten().tolist()
    rng = np.random.default_rng([settings.seed, number, 1])
    for part in minibatches(len(rows), settings.minibatch, rng):
        chosen = [rows[index] for index in part]
        batch = batch_of([played[row] for row in chosen])
        loss = loss_of(policy, batch, advantages.flatten()[chosen], settings)
        descend(policy, optimiser, loss, settings.max_grad_norm)


def reinforce(policy: Policy, settings: Settings) -> None:
    """The training loop."""
    processes = policy.processes("train", settings.groups * settings.group_size)
    optimiser = torch.optim.AdamW(policy.model.parameters(), settings.learning_rate, weight_decay=0.0)
    for number in range(settings.iterations):
        played = rollouts(policy, processes, number, settings)
        update(policy, optimiser, played, number, settings)
        if number % 5 == 0 or number == settings.iterations - 1:
            success = sum(t.success for t in played) / len(played)
            print(f"iteration {number + 1:3}: {success:.1%} of the training episodes succeed", flush=True)


# 3. Evaluation.


def evaluate(policy: Policy, levels: Sequence[Instance], settings: Settings) -> Rate:
    """The policy's rate of success on fixed levels of the test split."""
    processes = policy.processes("test", len(levels))
    return rate_of_played(
        play(policy.engine, processes, levels, temperature=settings.evaluation_temperature, seed=settings.seed)
    )


def main(settings: Settings) -> dict[str, Rate]:
    """The run; the rates on the test split, by player."""
    begun = time.monotonic()
    env = make_env("test")
    levels = fixed_instances(env, settings.levels)
    policy = Policy(settings.seed)
    imitate(policy, settings)
    start = evaluate(policy, levels, settings)
    print(f"{time.monotonic() - begun:.0f} s: after imitation {start} of the test levels", flush=True)
    reinforce(policy, settings)
    rates = {**baselines(env, levels), "imitation": start, "StarPO-S": evaluate(policy, levels, settings)}
    print(f"{time.monotonic() - begun:.0f} s. Success on {len(levels)} levels of the test split:")
    for player, rate in rates.items():
        print(f"{player:>10}  {rate}")
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="StarPO-S on FrozenLake, from scratch.")
    for name in ("seed", "demonstrations", "iterations", "levels"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    torch.set_num_threads(1)  # the fastest for a network this small
    main(Settings(**vars(parser.parse_args())))
