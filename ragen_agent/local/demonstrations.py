"""Demonstrations: an oracle plays, with faults on purpose, so that there is something left to learn.

The demonstrator knows the best moves and a model that imitates it learns the reply format and single moves. What it
does badly is set by `Demonstrations`: how many moves it dares in one answer, and how often a move is drawn at
random. The default demonstrator of FrozenLake is *cautious*: it mostly answers one move and looks again, so that the
turns run out on long ways. Nobody shows the learner that long answers pay; only the reward does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ragen_agent.config import Demonstrations
from ragen_agent.rollout import Instance
from ragen_agent.token_mdp import TokenMDP, Trajectory
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import PLAYING

__all__ = ["THOUGHTS", "demonstrate", "plan", "scripted_reply", "thinking"]


def direction(env: TurnEnv) -> str:
    """Where the goal lies as seen from the player, such as `down right`, whatever the text format.

    Raises:
        ValueError: the game has no player or no goal.
    """
    names = [tile.name for tile in env.game.Tile]
    if "PLAYER" not in names or "GOAL" not in names:
        raise ValueError(
            f"demonstrations.thought is 'direction', but {env.game.name} has no player and goal; "
            "give --set demonstrations.thought=none."
        )
    tiles = np.array([list(line) for line in env.game.own_text(env.env.state[0]).split("\n")])
    symbols = dict(zip(names, env.game.own_vocabulary.symbols, strict=True))
    (row, column), (goal_row, goal_column) = (np.argwhere(tiles == symbols[name])[0] for name in ("PLAYER", "GOAL"))
    down, right = int(goal_row - row), int(goal_column - column)
    words = ((down, "down" if down > 0 else "up"), (right, "right" if right > 0 else "left"))
    return " ".join(word for distance, word in words if distance)


#: What a demonstrator writes as its thought, by name; each is a function of the turn environment.
THOUGHTS: dict[str, Callable[[TurnEnv], str]] = {
    "none": lambda env: "",
    "direction": direction,
    "choose": lambda env: f"{env.action_names[0]} or {env.action_names[1]}?",
}


def thinking(env: TurnEnv, thought: str) -> str:
    """The thought in its tags, or nothing in an environment without thinking.

    Raises:
        ValueError: there is no such thought.
    """
    if thought not in THOUGHTS:
        raise ValueError(f"demonstrations.thought is {thought!r}; choose one of {', '.join(THOUGHTS)}.")
    return f"<think>{THOUGHTS[thought](env)}</think>" if env.think else ""


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
    """The demonstrator's reply in this state."""
    chances = np.asarray(how.moves) / sum(how.moves)
    moves = min(1 + int(rng.choice(len(chances), p=chances)), env.max_actions_per_turn)
    answer = " || ".join(env.action_names[action] for action in plan(env, moves, how.mistakes, rng))
    return f"{thinking(env, how.thought)}<answer>{answer}</answer>"


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
            ids = [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_id]
            if len(ids) > process.max_tokens_per_turn:
                raise ValueError(
                    f"a reply has {len(ids)} tokens, turns.max_tokens_per_turn is {process.max_tokens_per_turn}; "
                    "raise it, or demonstrate shorter replies."
                )
            for token in ids:
                process.append(token, 0.0)
        trajectories.append(process.trajectory())
    return trajectories
