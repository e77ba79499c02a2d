"""Demonstrations: an oracle plays, with faults on purpose, so that there is something left to learn.

The demonstrator knows the best moves and a model that imitates it learns the reply format and single moves. What it
does badly is set by `Demonstrations`: how many moves it dares in one answer, how often a move is drawn at random, and
how often a whole answer is. The default demonstrator of FrozenLake is *cautious*: it mostly answers one move and looks
again, so that the turns run out on long ways. Nobody shows the learner that long answers pay; only the reward does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen_agent.chat import ChatFormat
from ragen_agent.config import Demonstrations
from ragen_agent.rollout import Instance
from ragen_agent.token_mdp import TokenMDP, Trajectory
from ragen_agent.training.demo_thoughts import thinking
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import PLAYING

__all__ = ["demonstrate", "plan", "reply_ids", "scripted_reply"]


def plan(env: TurnEnv, moves: int, mistakes: float, rng: np.random.Generator) -> list[int]:
    """Up to `moves` actions from here, as if every move went where it is meant to.

    Each is the oracle's, or a uniform one with chance `mistakes`; the list ends where the game would be over.
    """
    game, solution = env.game, env.solution()
    board, state = env.env.state
    cells, integers = bytearray(board), list(state)
    actions: list[int] = []
    for left in range(env.actions_left, max(0, env.actions_left - moves), -1):
        action = solution.action(cells, integers, left)
        if mistakes and rng.random() < mistakes:
            action = int(rng.integers(len(game.Action)))
        actions.append(action)
        if game.rule(cells, integers, action, 0.0, game.params)[1] != PLAYING:
            break
    return actions


def scripted_reply(env: TurnEnv, how: Demonstrations, rng: np.random.Generator) -> str:
    """The demonstrator's reply in this state; raises a ValueError for an unknown thought."""
    chances = np.asarray(how.moves) / sum(how.moves)
    moves = min(1 + int(rng.choice(len(chances), p=chances)), env.max_actions_per_turn)
    # At full quality nothing is drawn for it: the episodes are those of a demonstrator without the setting.
    knows = how.quality >= 1 or rng.random() < how.quality
    actions = plan(env, moves, how.mistakes if knows else 1.0, rng)
    answer = " || ".join(env.action_names[action] for action in actions)
    return f"{thinking(env, how.thought, actions)}<answer>{answer}</answer>"


def reply_ids(chat: ChatFormat, reply: str) -> list[int]:
    """The ids of a reply as a model would have sampled them, its end included."""
    return [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_id]


def demonstrate(process: TokenMDP, instances: Sequence[Instance], how: Demonstrations, seed: int) -> list[Trajectory]:
    """Episodes in which the demonstrator's replies stand as the sampled tokens (their log-probs are 0).

    Raises:
        ValueError: an unknown thought, a reply longer than `max_tokens_per_turn`.
    """
    env, chat = process.env.unwrapped, process.chat
    assert isinstance(env, TurnEnv)
    rng = np.random.default_rng(seed)
    trajectories = []
    for instance in instances:
        process.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        while not process.done:
            reply = scripted_reply(env, how, rng)
            ids = reply_ids(chat, reply)
            if len(ids) > process.max_tokens_per_turn:
                raise ValueError(
                    f"a reply has {len(ids)} tokens, turns.max_tokens_per_turn is {process.max_tokens_per_turn}; "
                    "raise it, or demonstrate shorter replies."
                )
            for token in ids:
                process.append(token, 0.0)
        trajectories.append(process.trajectory())
    return trajectories
