"""What all games for several players share: seeds, spaces, views, the order of a cycle."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random
from pettingzoo import ParallelEnv

from ragen_gym.envs.episodes import Episodes
from ragen_gym.envs.step import OBSERVATIONS, StepEnv
from ragen_gym.games.game import SUCCESS, Board, Game
from ragen_gym.levels import Level, check_split
from ragen_gym.registry import Row, build_game, find
from ragen_gym.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.text import TEXT_FORMATS, TextFormat, Vocabulary

__all__ = ["ParallelGame", "player_key"]

_METADATA = {**StepEnv.metadata, "is_parallelizable": True}
# PettingZoo's own tests reset with {"options": 1}.
_OPTIONS = ("level", "noise_seed", "options")


class ParallelGame(ParallelEnv):  # type: ignore[misc]  # PettingZoo ships no types
    """A game of the suite for several players, one move of each a cycle.

    Agents are ``player_0``, ``player_1``, …; subclasses say what their moves do to each other. One player plays exactly
    the single environment (`ragen_gym.StepEnv` under Gymnasium's ``TimeLimit``): the same spaces, levels and luck.

    ## Action Space
    ``Discrete``: the ids of the game's ``Action`` enum, from 0.

    ## Observation Space
    ``observation="text"``: ``Text``, the board as this player sees it. ``observation="grid"``: ``Box`` of uint8
    (height, width), its tile codes. Every player is the game's own player to itself; the others have tiles of their
    own, numbered after the game's. `state` stacks the grids of all players.

    ## Starting State
    As in `StepEnv`: ``reset(seed=s)`` starts the first episode of seed s, each later ``reset()`` the next one, with
    ``options={"level": …, "noise_seed": …}`` too. The luck of player i comes from a stream of its own, that of
    player 0 being the single environment's.

    ## Episode End
    An agent that is out leaves ``agents`` while the others go on. All that are left are truncated after ``max_cycles``.

    ## Information
    For each agent ``level_id`` (str), ``action_mask`` (int8 (actions,): 1 where the action can change what this player
    has before it) and ``success`` (bool).

    ## Arguments
    name: name or id of a row of `ragen_gym.registry.TABLE`.
    players: how many play.
    max_cycles: cycles in an episode; None for the horizon of the id.
    vocabulary: name of one of the game's vocabularies, in which the others get the first letters from Q on that it
        does not use; or a `ragen_gym.text.Vocabulary` with symbols for them after the game's.
    observation, text_format, preset, split, levels, render_mode, knobs: as in `StepEnv`.

    Raises:
        ValueError: an unknown name, knob or value; the message says what is allowed.
    """

    metadata: dict[str, Any] = _METADATA
    #: The most players.
    most: ClassVar[int] = 8
    #: The game with tiles for the others, ``"module:Class"``; None where a board shows no players.
    shared: ClassVar[str | None] = None

    def __init__(
        self,
        name: str,
        *,
        players: int = 2,
        max_cycles: int | None = None,
        observation: Literal["text", "grid"] = "text",
        text_format: TextFormat = "grid",
        vocabulary: str | Vocabulary | None = None,
        preset: str | None = None,
        split: str | None = None,
        levels: Any = None,
        render_mode: str | None = None,
        **knobs: Any,
    ) -> None:
        self.row: Row = find(name)
        _check_count("players", players, self.most)
        if max_cycles is not None:
            _check_count("max_cycles", max_cycles, None)
        _check("observation", observation, OBSERVATIONS)
        _check("text_format", text_format, TEXT_FORMATS)
        _check("render_mode", render_mode, (*self.metadata["render_modes"], None))
        one_alone = players == 1 or self.shared is None
        self.game: Game = build_game(
            self.row if one_alone else replace(self.row, game=self.shared or self.row.game), knobs, preset
        )
        self.players = players
        self.max_cycles = self.row.horizon if max_cycles is None else max_cycles
        self.observation, self.text_format, self.render_mode = observation, text_format, render_mode
        self.split = check_split(split)
        self.vocabulary = self.game.vocabulary(vocabulary or self.row.vocabulary)
        self.metadata = {**self.metadata, "name": _snake(self.row.name) + "_v0"}
        self.possible_agents = [f"player_{i}" for i in range(players)]
        self.agents: list[str] = []
        self._numbers = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._write = self.game.formatter(self.vocabulary, text_format)
        self._levels = None if levels is None else self.game.fixed_boards(levels, split)
        # Each agent has spaces of its own, since sampling from a space moves its generator on.
        self._observation_spaces = {agent: self._space() for agent in self.possible_agents}
        self._action_spaces = {agent: spaces.Discrete(len(self.game.Action)) for agent in self.possible_agents}
        grid = self._grid_space()
        self.state_space = spaces.Box(0, grid.high.max(), (players, *grid.shape), np.uint8)
        self._episodes: Episodes | None = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of this agent's observations, always the same object."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete[Any]:
        """The space of this agent's actions, always the same object."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode; see "Starting State" in the class."""
        if seed is not None or self._episodes is None:
            seed = int(np_random()[0].integers(2**63)) if seed is None else seed
            self._episodes = Episodes(self.game, seed, self.split, self._levels)
            self._level_stream, self._episode = stream_key(seed, Stream.LEVEL), 0
        for option in options or {}:
            _check("option", option, _OPTIONS)
        level, noise_seed = (options or {}).get("level"), (options or {}).get("noise_seed")
        chosen = None if level is None else self.game.board(level)
        board, state, self._level_id, noise_key, _ = self._episodes.take_with(chosen, noise_seed)
        level_key = int(episode_keys(self._level_stream, self._episode, 1)[0])
        self._episode += 1
        players = range(self.players)
        self._keys = np.array([player_key(noise_key, i, self.game.noise) for i in players], np.uint64)
        self._cycle = 0
        self.agents = self.possible_agents[:]
        self._start = board
        self._begin(board, state, level_key, fixed=chosen is not None or self._levels is not None)
        return self._observe(), {agent: self._info(agent, 0) for agent in self.agents}

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one cycle: a move of every agent that is left.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: an action is missing, not one of the game's, or of an agent that is out.
        """
        if not self.agents:
            raise ResetNeeded("the episode is over, or none was started: call reset() before step().")
        moves = self._moves(actions)
        stochastic = self.game.stochastic
        luck = uniforms(self._keys, self._cycle, 1)[:, 0].tolist() if stochastic else [0.0] * self.players
        self._cycle += 1
        rewards, outcomes = self._play(moves, luck)
        playing = self.agents
        spent = self.max_cycles is not None and self._cycle >= self.max_cycles
        self.agents = [a for a in playing if not (spent or outcomes[self._numbers[a]])]
        return (
            {a: self._observation(self._numbers[a]) for a in playing},
            {a: rewards[self._numbers[a]] for a in playing},
            {a: outcomes[self._numbers[a]] > 0 for a in playing},
            dict.fromkeys(playing, spent),
            {a: self._info(a, outcomes[self._numbers[a]]) for a in playing},
        )

    def render(self) -> str | None:
        """The board as player 0 sees it, as text, in render mode ``"ansi"``; None without a mode."""
        self._check_started()
        return self._write(self._view(0)) if self.render_mode == "ansi" else None

    def state(self) -> npt.NDArray[np.uint8]:
        """What each player sees (one that is out: would see), uint8 (players, height, width) of tile codes."""
        self._check_started()
        return np.stack([self._grid(self._view(i)) for i in range(self.players)])

    @property
    def level(self) -> Level:
        """The level of this episode."""
        self._check_started()
        return self.game.level(self._start)

    @property
    def action_names(self) -> tuple[str, ...]:
        """What a player calls the actions, in the order of their ids."""
        self._check_started()
        return self.game.action_names(self._start)

    @abstractmethod
    def _begin(self, board: bytes, state: list[int], level_key: int, *, fixed: bool) -> None:
        """Set the players on the level; ``fixed`` if the caller chose it, so that no other may be drawn."""

    @abstractmethod
    def _play(self, moves: dict[int, int], luck: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
        """Play the moves by player, with each player's random number: rewards and outcomes by player."""

    @abstractmethod
    def _view(self, player: int) -> Board:
        """The board as this player sees it."""

    @abstractmethod
    def _mask(self, player: int) -> npt.NDArray[np.int8]:
        """int8 (actions,): 1 where the action can change what this player has before it."""

    def _moves(self, actions: Mapping[str, int]) -> dict[int, int]:
        if set(actions) != set(self.agents):
            raise ValueError(
                f"actions are given for {', '.join(map(str, actions)) or 'nobody'}; "
                f"give one for each agent that is left: {', '.join(self.agents)}."
            )
        for agent in self.agents:
            if not self._action_spaces[agent].contains(actions[agent]):
                names = ", ".join(f"{a.value} {a.name}" for a in self.game.Action)
                raise ValueError(f"{agent}: action {actions[agent]!r} is not one of {self.row.name}'s: {names}.")
        return {self._numbers[agent]: int(actions[agent]) for agent in self.agents}

    def _observe(self) -> dict[str, Any]:
        return {agent: self._observation(self._numbers[agent]) for agent in self.agents}

    def _observation(self, player: int) -> Any:
        view = self._view(player)
        return self._write(view) if self.observation == "text" else self._grid(view)

    def _info(self, agent: str, outcome: int) -> dict[str, Any]:
        mask = self._mask(self._numbers[agent])
        return {"level_id": self._level_id, "action_mask": mask, "success": outcome == SUCCESS}

    def _grid(self, board: Board) -> npt.NDArray[np.uint8]:
        height, width = self.game.height, self.game.width
        return np.frombuffer(bytes(board) + b"\xff", np.uint8).reshape(height, -1)[:, :width].copy()

    def _grid_space(self) -> spaces.Box:
        highest = len(self.game.Tile) - 1 if len(self.game.Tile) > 2 else 255
        return spaces.Box(0, highest, (self.game.height, self.game.width), np.uint8)

    def _space(self) -> spaces.Space[Any]:
        if self.observation == "grid":
            return self._grid_space()
        charset, shortest, longest = self.game.charset(self.vocabulary, self.text_format)
        return spaces.Text(longest, min_length=shortest, charset=charset)

    def _check_started(self) -> None:
        if self._episodes is None:
            raise ResetNeeded("no episode was started: call reset() first.")


def player_key(noise_key: int, player: int, stream: Stream) -> int:
    """The key of a player's random numbers in an episode: the episode's own for player 0, a hash of both for others."""
    return noise_key if player == 0 else stream_key(player << 64 | noise_key, stream)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _check(what: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}={value!r} is not known: choose one of {', '.join(map(repr, allowed))}.")


def _check_count(what: str, value: Any, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{what}={value!r} must be an integer from 1 {f'to {most}' if most else 'on'}.")
