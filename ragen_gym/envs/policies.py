"""Reference policies (random, blind, greedy and optimal moves), their episodes, and the replies of a model.

Baselines, scripted agents, demonstrations, pictures of episodes and tests all play by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import episode_key
from ragen_gym.envs.budget import Budget, honest_budget
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import PLAYING, Game
from ragen_gym.games.values import Script, draws_of, exact_play, script_of

Policy = Callable[[StepEnv, int], int]
"""policy(environment, actions left) -> the next action."""

Draw = Callable[[int, int], int]
"""draw(choices, actions left) -> an integer from 0 to ``choices - 1``, all equally likely."""

_UNBOUNDED = 1000  # actions of an episode that neither the id nor the rules bound


def generator_draw(rng: np.random.Generator) -> Draw:
    """Draws from a generator, one after another."""
    return lambda choices, actions_left: int(rng.integers(choices))


def hashed_draw(key: int) -> Draw:
    """Draws that are a function of a 64-bit key and the actions left: independent of what was drawn before."""
    return lambda choices, actions_left: (episode_key(key, actions_left - 1) * choices) >> 64


def random_policy(draw: Draw) -> Policy:
    """Moves drawn uniformly from all actions."""
    return lambda env, actions_left: draw(len(env.game.Action), actions_left)


def blind_policy(env: StepEnv, actions_left: int) -> int:
    """The move of the game's blind script (``Game.blind``).

    Raises:
        ValueError: the game has none.
    """
    return _blind_script(env.game)(*env.state, env.game.params)


def _blind_script(game: Game) -> Callable[[Any, Any, Any], int]:
    if game.blind is None:
        raise ValueError(
            f"{game.name} has no blind script: give its class `blind = staticmethod(your_function)`, a function of "
            "(board, state, params) that returns an action; see ragen_gym.games.game.Game.blind."
        )
    return game.blind


def blind_value(env: StepEnv, actions: int) -> tuple[float, float]:
    """(Probability of success, expected return) of the blind script from here, within so many actions.

    Exact, but for a game that keeps the thresholds of its noise to itself: an average there.

    Raises:
        ValueError: the game has no blind script.
    """
    won, total = exact_play(env.game, env.state, actions, _SCRIPTS["blind"](env))
    return sum(won), total


def random_value(env: StepEnv, actions: int, most: float = inf) -> tuple[float, float]:
    """(Probability of success, expected return) of uniformly drawn moves from here, within so many actions.

    Exact where ``blind_value`` is.

    Raises:
        OverflowError: its moves begin in more than ``most`` states, each counted once for every number of moves left.
    """
    won, total = exact_play(env.game, env.state, actions, _SCRIPTS["random"](env), most)
    return sum(won), total


def moves_to_go(env: StepEnv, actions: int, policy: str = "oracle") -> npt.NDArray[np.float64]:
    """Distribution of the moves from here to a success, within so many actions; see ``ragen_gym.envs.budget.Chances``.

    Exact where ``blind_value`` is.

    Args:
        env: stands where the play begins.
        actions: the most moves.
        policy: ``"random"``, ``"blind"`` or ``"oracle"``, which has the highest chance of success, and among those a
            shortest expected episode.

    Raises:
        ValueError: the blind script of a game that has none.
    """
    lost = policy == "oracle" and not env.solution().success(*env.state, actions)
    won = [0.0] * actions if lost else exact_play(env.game, env.state, actions, _SCRIPTS[policy](env))[0]
    return np.array([0.0, *won, max(0.0, 1 - sum(won))])


def _blind_moves(env: StepEnv) -> Script:
    game, script = env.game, _blind_script(env.game)
    return lambda board, state, left: [(1.0, script(board, state, game.params))]


def _random_moves(env: StepEnv) -> Script:
    each = [(1 / len(env.game.Action), int(action)) for action in env.game.Action]
    return lambda board, state, left: each


_SCRIPTS: dict[str, Callable[[StepEnv], Script]] = {
    "random": _random_moves,
    "blind": _blind_moves,
    "oracle": lambda env: script_of(env.solution()),
}


def oracle_policy(env: StepEnv, actions_left: int) -> int:
    """The move of the oracle: the highest chance of success within the actions left."""
    return env.oracle_action(actions_left)


def greedy_policy(draw: Draw) -> Policy:
    """The highest expected reward at once; among several such moves, one that changes the state, drawn uniformly."""

    def policy(env: StepEnv, actions_left: int) -> int:
        worth = expected_rewards(env)
        best = [action for action, reward in enumerate(worth) if reward > max(worth) - 1e-9]
        mask = env.game.action_mask(*env.state)
        moving = [action for action in best if mask[action]] or best
        return moving[draw(len(moving), actions_left)]

    return policy


#: The policies by name, each made from a source of draws.
POLICIES: dict[str, Callable[[Draw], Policy]] = {
    "random": random_policy,
    "blind": lambda draw: blind_policy,
    "greedy": greedy_policy,
    "oracle": lambda draw: oracle_policy,
}


def expected_rewards(env: StepEnv) -> list[float]:
    """The expected reward of each action in this state, by the rule and its transition noise.

    Exact, but for a game that keeps the thresholds of its noise to itself (``Game.noise_in_params``): an average there.
    """
    game = env.game
    board, state = env.state
    return [
        sum(p * game.rule(bytearray(board), list(state), int(action), u, game.params)[0] for p, u in draws_of(game))
        for action in game.Action
    ]


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode of a policy."""

    level_id: str
    actions: tuple[int, ...]
    total: float  # sum of the rewards
    success: bool


def action_budget(env: StepEnv) -> int:
    """Actions in an episode: the id's horizon, the rules' own limit where it has none, 1,000 where they set none."""
    return env.game_spec.horizon or env.game.longest or _UNBOUNDED


def play_episode(env: StepEnv, policy: Policy, budget: int, watch: Callable[[], None] = lambda: None) -> PlayedEpisode:
    """Play from a fresh reset to the end of the game, or for ``budget`` actions; ``watch`` is called after each."""
    actions: list[int] = []
    total, success = 0.0, False
    for actions_left in range(budget, 0, -1):
        actions.append(policy(env, actions_left))
        _, reward, terminated, _, info = env.step(actions[-1])
        total, success = total + reward, bool(info["success"])
        watch()
        if terminated:
            break
    return PlayedEpisode(env.level.id, tuple(actions), total, success)


def play_turns(env: ReplyEnv, write: Callable[[Any], str]) -> dict[str, Any]:
    """Play turns from a fresh reset to the end of the episode; the last ``info``. ``write`` gives each reply."""
    info: dict[str, Any] = {}
    while not env.over:
        info = env.step(write(env))[4]
    return info


def plan_moves(env: TurnEnv, moves: int, mistakes: float = 0.0, rng: np.random.Generator | None = None) -> list[int]:
    """Up to so many of the oracle's moves from here, as if every move went where it is meant to.

    The list ends where the game would be over, or the actions left are used up.

    Each is, with a chance of ``mistakes``, drawn uniformly by ``rng`` instead.
    """
    game, solution = env.game, env.solution()
    board, state = env.env.state
    cells, integers = bytearray(board), list(state)
    actions: list[int] = []
    for actions_left in range(env.actions_left, max(0, env.actions_left - moves), -1):
        action = solution.action(cells, integers, actions_left)
        if rng is not None and mistakes and rng.random() < mistakes:
            action = int(rng.integers(len(game.Action)))
        actions.append(action)
        if game.rule(cells, integers, action, 0.0, game.params)[1] != PLAYING:
            break
    return actions


def reply_for(env: TurnEnv, actions: Sequence[int], thought: str = "", budget: Budget | None = None) -> str:
    """A reply without fault that names these actions.

    Where the environment asks for the board in the thinking, the true one stands before the thought, and after it the
    one that the actions lead to if every move goes where it is meant to. Where it asks for a budget and none is given,
    the reply states that of optimal play.
    """
    names = [env.action_names[action] for action in actions]
    if env.config.budget and budget is None:
        budget = honest_budget(moves_to_go(env.env, env.actions_left))
    if not env.config.think:
        return write_reply(names, budget=budget)
    board = env.state_text.write(env.env.state[0])
    seen = f"<observation>\n{board}\n</observation>" if env.config.grounding else ""
    expected = f"<prediction>\n{_board_after(env, actions)}\n</prediction>" if env.config.world_modelling else ""
    return write_reply(names, f"{seen}{thought}{expected}", budget)


def random_reply(env: ReplyEnv, rng: np.random.Generator) -> str:
    """A reply of as many moves as a turn allows, each drawn uniformly from all actions; a text task draws its own.

    Raises:
        ValueError: the task draws none.
    """
    if isinstance(env, TaskEnv):
        return env.random_reply(rng)
    assert isinstance(env, TurnEnv)
    return reply_for(env, rng.integers(len(env.action_names), size=env.max_actions_per_turn).tolist())


def _board_after(env: TurnEnv, actions: Sequence[int]) -> str:
    game = env.game
    board, state = env.env.state
    cells, integers = bytearray(board), list(state)
    for action in actions:
        if game.rule(cells, integers, action, 0.0, game.params)[1] != PLAYING:
            break
    return env.state_text.write(cells)
