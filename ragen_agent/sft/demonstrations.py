"""Demonstrations: an oracle plays, with deliberate faults, so that there is something left to learn.

The demonstrator knows the best moves, and a model that imitates it learns the reply format and single moves. What it
does badly is set by ``Demonstrations``: how many moves it plays in one reply, how often a move is drawn at random, and
how often a whole reply is. The default demonstrator of FrozenLake is *cautious*: it mostly replies with one move and
looks again, so that the turns run out on long ways. Nothing shows the learner that long replies pay; only the reward
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragen_agent.chat import ChatFormat
from ragen_agent.config import Config, Demonstrations
from ragen_agent.rollout import Instance
from ragen_agent.token_mdp import TokenMDP, Trajectory
from ragen_agent.training.console import Display
from ragen_agent.training.demo_thoughts import thinking
from ragen_agent.training.evaluation import scripted_rate
from ragen_agent.training.policy import Policy
from ragen_agent.training.tasks import SeedStream, derive_seed, draw_games, games_at
from ragen_gym.core.stats import Rate
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv

__all__ = [
    "Chunk",
    "chunks",
    "demonstrate",
    "demonstrator_rate",
    "faultless",
    "generate_demonstrations",
    "reply_ids",
    "scripted_reply",
]

CHUNK = 500  # demonstrations from one generator, and between two reports of progress


def faultless(config: Config) -> Demonstrations:
    """The demonstrator without its faults: as many moves as a reply may hold, none of them drawn at random."""
    most = config.turns.max_actions_per_turn
    return replace(config.demonstrations, moves=[0.0] * (most - 1) + [1.0], mistakes=0.0, quality=1.0)


def scripted_reply(env: TurnEnv, how: Demonstrations, rng: np.random.Generator) -> str:
    """The demonstrator's reply in this state; raises a ValueError for an unknown thought."""
    probabilities = np.asarray(how.moves) / sum(how.moves)
    moves = min(1 + int(rng.choice(len(probabilities), p=probabilities)), env.max_actions_per_turn)
    # At full quality nothing is drawn for it: the episodes are those of a demonstrator without the setting.
    knows = how.quality >= 1 or rng.random() < how.quality
    actions = plan_moves(env, moves, how.mistakes if knows else 1.0, rng)
    return thinking(env, how.thought, actions) + write_reply([env.action_names[action] for action in actions])


def reply_ids(chat: ChatFormat, reply: str) -> list[int]:
    """The ids of a reply as a model would have sampled them, its end token included."""
    return [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_id]


def demonstrate(process: TokenMDP, instances: Sequence[Instance], how: Demonstrations, seed: int) -> list[Trajectory]:
    """Episodes with the demonstrator's replies as the sampled tokens (their log-probs are 0).

    Raises:
        ValueError: an unknown thought, a reply longer than ``max_tokens_per_turn``.
    """
    env, chat = process.env.unwrapped, process.chat
    assert isinstance(env, TurnEnv)
    rng = np.random.default_rng(seed)
    trajectories = []
    for instance in instances:
        process.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        while not process.done:
            ids = reply_ids(chat, scripted_reply(env, how, rng))
            if len(ids) > process.max_tokens_per_turn:
                raise ValueError(
                    f"a reply has {len(ids)} tokens, turns.max_tokens_per_turn is {process.max_tokens_per_turn}; "
                    "raise it, or demonstrate shorter replies."
                )
            for token in ids:
                process.append(token, 0.0)
        trajectories.append(process.trajectory())
    return trajectories


@dataclass(frozen=True)
class Chunk:
    """Demonstrations drawn one after the other from one generator.

    Attributes:
        config: the settings of their game.
        how: the demonstrator.
        indices: where they stand among all demonstrations.
        instances: what is played, one for each index.
        seed: of the generator.
    """

    config: Config
    how: Demonstrations
    indices: list[int]
    instances: list[Instance]
    seed: int


def chunks(config: Config, how: Demonstrations) -> Iterator[Chunk]:
    """All ``how.episodes`` demonstrations: levels of the run's first games, by their weights."""
    rng = np.random.default_rng(derive_seed(config.seed, SeedStream.DEMONSTRATIONS))
    instances = [Instance(int(s), i) for i, s in enumerate(rng.integers(2**62, size=how.episodes))]
    shares = games_at(config, 0)
    drawn = draw_games(shares, config.seed, 0, len(instances))
    for game, share in enumerate(shares):
        demonstrator = replace(how, thought=share.config.demonstrations.thought)
        of_game = np.flatnonzero(drawn == game).tolist()
        for start in range(0, len(of_game), CHUNK):
            indices = of_game[start : start + CHUNK]
            path = (start,) if len(shares) == 1 else (start, 1 + game)
            seed = derive_seed(config.seed, SeedStream.DEMONSTRATOR, *path)
            yield Chunk(share.config, demonstrator, indices, [instances[index] for index in indices], seed)


def generate_demonstrations(config: Config, policy: Policy, how: Demonstrations, display: Display) -> list[Trajectory]:
    """``how.episodes`` demonstrations on training levels of the run's first games, by their weights."""
    display.begin("demonstrations", how.episodes)
    episodes: dict[int, Trajectory] = {}
    process, game = None, None
    for chunk in chunks(config, how):
        if process is None or chunk.config != game:
            process, game = replace(policy, config=chunk.config).processes("train", 1)[0], chunk.config
        played = demonstrate(process, chunk.instances, chunk.how, chunk.seed)
        episodes.update(zip(chunk.indices, played, strict=True))
        display.advance({}, len(chunk.indices))
    display.end()
    return [episodes[index] for index in range(how.episodes)]


def demonstrator_rate(config: Config, env: TurnEnv, instances: list[Instance]) -> Rate:
    """The success rate of the demonstrator on fixed levels."""
    how, seed = config.demonstrations, derive_seed(0, SeedStream.DEMONSTRATOR_RATE)
    return scripted_rate(env, instances, lambda env, rng: scripted_reply(env, how, rng), seed)
