"""Several attempts at one level, whose rules may be partly hidden: what one attempt shows helps the next."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from itertools import permutations, product
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_gym.core.seeding import Stream, episode_key, stream_key
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.turn_config import turn_config as with_turn_options
from ragen_gym.core.validation import check_number, checked_options, items_of, shown
from ragen_gym.envs.policies import random_reply, reply_for
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.beliefs import Belief, State, TrialValues, World
from ragen_gym.games.game import listed

_MOST_SHUFFLED = 5  # actions whose names are shuffled: 120 orders
_REFLECT = "Before the next attempt, write what you have learned. No move is played."


class _Attempts(TurnEnv):
    """A ``TurnEnv`` in a world: the name of action ``a`` means ``meanings[a]``, tile ``t`` looks as ``symbols[t]``."""

    world: World

    @property
    def board(self) -> str:
        """The board as it stands, as text, in the symbols of the world."""
        symbols = self.env.vocabulary.symbols
        looks = {ord(symbols[tile]): symbols[shown] for tile, shown in enumerate(self.world.symbols)}
        return self.env.text.translate(looks)

    @property
    def seen(self) -> State:
        """The state as far as a player sees it."""
        return self.world.shown(self.env.state)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names by the action that they are."""
        names = self.env.action_names
        return tuple(names[self.world.meanings.index(action)] for action in range(len(names)))


class TrialEnv(gymnasium.Env[str, str]):
    """A trial: ``attempts`` episodes of a game on the same level, in one conversation.

    ## Description
    Each attempt is an episode of ``ragen_gym.TurnEnv``. What is hidden is drawn with the level and stays the same in
    every attempt, so a player can find it out in one attempt and use it in the next (RL²: Duan et al., arXiv
    1611.02779; LaMer, arXiv 2512.16848). It is a text task (``ragen_gym.envs.task``), so that training and evaluation
    name it ``ragen_gym.tasks:TrialEnv``.

    ## Action Space
    ``Text``: a reply, as of ``TurnEnv``; after the last turn of an attempt, with ``reflect``, any text.

    ## Observation Space
    ``Text``: the next message. The one after an attempt also begins the next attempt, or asks for the reflection.

    ## Starting State
    The seed draws the level and, independently and uniformly, the world: what the names of the actions and the symbols
    of the tiles mean, and the values of ``unknown``. ``options={"noise_seed": k}`` of ``reset`` sets the transition
    noise of all attempts.

    ## Rewards
    The rewards of ``TurnEnv``, in attempt i times ``discount`` ** (i - 1). A reflection earns 0.

    ## Episode End
    Terminated with the last attempt, which ends as an episode of ``TurnEnv`` does.

    ## Information
    ``success`` (bool): that of the last attempt, once it is over. ``successes`` (tuple of bool): of each attempt that
    is over. ``attempt``: the number of the present one, from 1. ``level_id``: of the level and the world.

    ## Arguments
    game: name of a game.
    turn_config: the options of a turn, whose limits are those of an attempt; text alone, and neither predictions nor
        stated budgets, whose truth depends on what is hidden.
    attempts: how many, 1 to 100.
    shuffled: whether the names of the actions are permuted, each order being equally likely; a game of up to 5 actions.
    hidden_symbols: whether the symbols of the tiles of first boards (``Game.level_tiles``) are permuted, each order
        being equally likely.
    unknown: options of the game whose value is drawn from a list, such as ``{"success_rate": [0.4, 1]}``.
    reflect: whether a turn between two attempts asks what was learned. Its text stays in the conversation alone.
    discount: of an attempt's rewards against the rewards of the attempt before, 0 to 1.
    oracle: whether ``optimal_reply`` is there; False for levels that are too large for it. It also needs replies of a
        single move: ``max_actions_per_turn=1``.
    split, options: as of ``StepEnv``.

    Raises:
        ValueError: an option out of range; a value of ``unknown`` that changes the boards, the messages or nothing.

    ## Version History
    v0: first release.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(
        self,
        game: str = "FrozenLake",
        turn_config: TurnConfig | None = None,
        *,
        attempts: int = 3,
        shuffled: bool = False,
        hidden_symbols: bool = False,
        unknown: Mapping[str, Any] | None = None,
        reflect: bool = False,
        discount: float = 1.0,
        oracle: bool = True,
        split: str | None = None,
        **options: Any,
    ) -> None:
        check_number("TrialEnv", "attempts", attempts, 1, 100, whole=True)
        check_number("TrialEnv", "discount", discount, 0, 1)
        flags = {"shuffled": shuffled, "hidden_symbols": hidden_symbols, "reflect": reflect, "oracle": oracle}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise ValueError(f"TrialEnv: {name}={shown(value)} must be True or False.")
        config = with_turn_options(turn_config, {})
        if config.sees:
            raise ValueError(f"TrialEnv: observation={config.observation!r} has pictures: a trial is text alone.")
        for name in ("world_modelling", "budget"):
            if getattr(config, name):
                raise ValueError(f"TrialEnv: {name}=True asks what only known rules tell; give {name}=False.")
        if "regret" in options:
            raise ValueError("TrialEnv: regret is of one episode whose rules are known; leave it out.")
        self.attempts, self.reflect, self.discount = attempts, reflect, discount
        self._envs = [
            _Attempts(StepEnv(game, split=split, **{**options, **values}), config) for values in _combined(unknown)
        ]
        self._check_worlds(unknown)
        first = self._envs[0]
        self.oracle = oracle and first.max_actions_per_turn == 1
        self.risky_returns = any(env.game.risky_returns for env in self._envs)
        actions = len(first.game.Action)
        if shuffled and actions > _MOST_SHUFFLED:
            raise ValueError(f"TrialEnv: shuffled takes games of up to {_MOST_SHUFFLED} actions; {game} has {actions}.")
        orders = list(permutations(range(actions))) if shuffled else [tuple(range(actions))]
        if hidden_symbols and options.get("levels") is not None:
            raise ValueError(
                "TrialEnv: hidden_symbols takes levels of the generator, whose chances are known, not given."
            )
        looks = self._symbols() if hidden_symbols else [()]
        self._worlds = [(env, World(env.game, order, look)) for env in self._envs for order in orders for look in looks]
        self._split = split
        #: The turns of a trial, at most.
        self.max_turns = attempts * first.max_turns + reflect * (attempts - 1)
        self.instructions = "\n".join([first.instructions, *self._rules(bool(unknown), shuffled, hidden_symbols)])
        characters = frozenset(string.printable) | first.env.charset[0]
        length = 2 * first.observation_space.max_length + len(_REFLECT) + 100  # type: ignore[attr-defined]
        self.observation_space = spaces.Text(length, charset=characters)
        self.action_space = first.action_space
        self._over, self._reflecting = True, False
        self._env: _Attempts | None = None
        self._values: TrialValues | None = None

    @property
    def env(self) -> _Attempts:
        """The attempt in play, with its ``world``.

        Raises:
            gymnasium.error.ResetNeeded: no trial was started.
        """
        if self._env is None:
            raise gymnasium.error.ResetNeeded("no trial was started: call reset() first.")
        return self._env

    @property
    def optimal_reply(self) -> Any:
        """Function that returns the reply of the Bayes-adaptive optimum; without ``oracle`` there is no such attribute.

        It raises a ValueError where the level is too large, see ``TrialValues``.
        """
        if not self.oracle:
            raise AttributeError("optimal_reply needs oracle=True and max_actions_per_turn=1")
        return self._optimal_reply

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a trial.

        Raises:
            ValueError: a seed that is negative or not an integer, or an unknown option.
        """
        noise = checked_options(options, ["noise_seed"]).get("noise_seed")
        seed = int(self.np_random.integers(2**62)) if seed is None else seed
        key = stream_key(seed, Stream.LEVEL)
        super().reset(seed=int(seed))
        world = (episode_key(key, 1) * len(self._worlds)) >> 64  # episode 0 of the stream is the level
        first = self._envs[0]
        first.env.reset(seed=seed)
        self._level = first.env.level
        self._level_id = f"{self._level.id} {world}"
        self._env, own = self._worlds[world]
        self._env.world = own
        self._noise = stream_key(seed if noise is None else noise, Stream.DYNAMICS, "noise_seed")
        self._successes: list[bool] = []
        self._over = self._reflecting = False
        self._values = None
        self._moves: list[tuple[int, float, bool, State, bool]] = []
        return self._begin(), self._report()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply.

        Raises:
            gymnasium.error.ResetNeeded: the trial is over, or none was started.
            ValueError: the reply is not a string.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("the trial is over, or none was started: call reset() before step().")
        if self._reflecting:
            self._reflecting = False
            return self._begin(), 0.0, False, False, self._report()
        message, reward, terminated, truncated, info = self.env.step(action)
        reward *= self.discount ** len(self._successes)
        ends = terminated or truncated
        if self.oracle and info["actions"]:
            name = self.env.world.meanings.index(info["actions"][0])
            self._moves.append((name, info["rewards"][0], terminated, self.env.seen, ends))
        elif self.oracle and ends:
            self._moves.append((-1, 0.0, False, self.env.seen, True))  # a malformed reply in the last turn
        if ends:
            self._successes.append(bool(info["success"]))
            self._over = len(self._successes) == self.attempts
            self._reflecting = self.reflect and not self._over
            if not self._over:
                message = f"{message}\n\n{_REFLECT if self.reflect else self._begin()}"
        return message, reward, self._over, False, self._report()

    def random_reply(self, rng: np.random.Generator) -> str:
        """A reply with as many moves as a turn allows, drawn uniformly; as a reflection, one that says nothing."""
        if self._reflecting:
            return "-"
        return random_reply(self.env, rng)

    def values(self) -> TrialValues:
        """Exact values of this trial's level before anything is seen.

        Raises:
            ValueError: see ``TrialValues``.
        """
        if self._values is None:
            start = self.env.env.game.board(self._level)
            numbers = self.env.game.starts(np.frombuffer(start, np.uint8)[None])[0].tolist()
            first, worlds = self.env.world.shown((start, numbers)), [world for _, world in self._worlds]
            chances = None
            if worlds[0].symbols:  # the first board is evidence of what its symbols mean
                drawn_by = self._envs[0].game  # whatever the world, see reset
                chances = [drawn_by.likelihood(world.true(first)[0], self._split) for world in worlds]
            moves = self._envs[0].action_budget
            self._values = TrialValues(worlds, first, moves, self.attempts, self.discount, chances)
        return self._values

    def belief(self) -> Belief:
        """Belief over the worlds after all moves of this trial; the worlds are those of ``values``.

        Raises:
            ValueError: see ``TrialValues``.
        """
        values = self.values()
        state, belief = values.start, values.prior
        for action, reward, over, then, ends in self._moves:
            if action >= 0:
                belief = values.after(state, belief, action, reward, over, then)
            state = values.start if ends else then
        return belief

    def _optimal_reply(self) -> str:
        if self._reflecting:
            return "-"
        env, after = self.env, self.attempts - 1 - len(self._successes)
        name = self.values().best(env.seen, self.belief(), env.actions_left, after)
        return reply_for(env, [env.world.meanings[name]])

    def _begin(self) -> str:
        """The first message of the next attempt."""
        seed = episode_key(self._noise, len(self._successes))
        message, _ = self.env.reset(seed=seed, options={"level": self._level})
        return f"Attempt {len(self._successes) + 1} of {self.attempts}.\n{message}"

    def _report(self) -> dict[str, Any]:
        return {
            "success": self._over and self._successes[-1],
            "successes": tuple(self._successes),
            "attempt": min(len(self._successes) + 1, self.attempts),
            "level_id": self._level_id,
        }

    def _symbols(self) -> list[tuple[int, ...]]:
        """Every way to show the tiles of first boards in each other's symbols."""
        first = self._envs[0]
        game, tiles = first.game, first.game.level_tiles
        if not tiles:
            raise ValueError(f"TrialEnv: hidden_symbols needs chances of levels, which {game.name} does not give.")
        if first.env.text_format not in ("grid", "spaced"):
            raise ValueError(
                f"TrialEnv: text_format={first.env.text_format!r} names the tiles in words, so hidden_symbols would "
                "hide nothing; use 'grid' or 'spaced'."
            )
        orders = (dict(zip(tiles, order, strict=True)) for order in permutations(tiles))
        return [tuple(int(order.get(tile, tile)) for tile in game.Tile) for order in orders]

    def _rules(self, unknown: bool, shuffled: bool, hidden_symbols: bool) -> Iterable[str]:
        yield f"These are the limits of one attempt. You make {self.attempts} attempts, all on this level."
        if shuffled:
            yield "The names of the actions are shuffled: each may do what another one says, alike in every attempt."
        if hidden_symbols:
            game = self._envs[0].game
            tiles = ", ".join(game.Tile(tile).name.lower() for tile in game.level_tiles)
            yield f"The symbols of {tiles} are shuffled: each may show another one of them, alike in every attempt."
        if unknown:
            yield "A number in the rules is not told; it is the same in every attempt."
        if self.discount < 1:
            yield f"The rewards of an attempt count {self.discount:g} times as much as those of the attempt before."

    def _check_worlds(self, unknown: Mapping[str, Any] | None) -> None:
        first = self._envs[0]
        rules = []
        for env in self._envs:
            if (env.game.height, env.game.width) != (first.game.height, first.game.width):
                raise ValueError(f"TrialEnv: unknown={shown(unknown)} changes the size of the boards, which show it.")
            if env.instructions != first.instructions:
                raise ValueError(f"TrialEnv: unknown={shown(unknown)} is no secret: the instructions tell it.")
            rules.append(listed(env.game.params))
        if any(rule in rules[:place] for place, rule in enumerate(rules)):
            raise ValueError(f"TrialEnv: unknown={shown(unknown)} holds values of which two play alike; leave one out.")


def _combined(unknown: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every combination of the values; one without any where nothing is unknown."""
    if unknown is not None and not isinstance(unknown, Mapping):
        raise ValueError(
            f"TrialEnv: unknown={shown(unknown)} is not a table; give such as {{'success_rate': [0.4, 1]}}."
        )
    table = {option: items_of(values) for option, values in (unknown or {}).items()}
    for option, values in table.items():
        if len(values) < 2:
            raise ValueError(f"TrialEnv: unknown={shown(unknown)}: {option} needs a list of two values or more.")
    return [dict(zip(table, values, strict=True)) for values in product(*table.values())]
