"""Common base of games for several players: seeds, spaces, views, the order of a cycle."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random
from pettingzoo import ParallelEnv

from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Keys, Stream, episode_keys, stream_key, uniforms
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.validation import check_choice, check_number, checked_options, plain_number, shown
from ragen_gym.envs.episode_stream import Episodes
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import PLAYING, SUCCESS, Board
from ragen_gym.games.given_levels import check_one_size
from ragen_gym.games.registry import find

if TYPE_CHECKING:
    from ragen_gym.render.renderer import Window

_METADATA = {**StepEnv.metadata, "is_parallelizable": True}
# PettingZoo's own tests reset with {"options": 1}.
_OPTIONS = ("level", "noise_seed", "options")


class ParallelGame(ParallelEnv):  # type: ignore[misc]  # PettingZoo ships no types
    """A game of the suite for several players, one move of each a cycle.

    Agents are ``player_0``, ``player_1``, …; subclasses say what their moves do to each other. One player plays exactly
    the single environment (``ragen_gym.StepEnv`` under Gymnasium's ``TimeLimit``): the same spaces, levels and noise.

    ## Action Space
    ``Discrete``: the ids of the game's ``Action`` enum, from 0.

    ## Observation Space
    ``observation="text"``: ``Text``, the board as this player sees it. ``observation="grid"``: ``Box`` of uint8
    (height, width), its tile codes. ``observation="rgb"``: ``Box`` of uint8, its picture. Every player is the game's
    own player to itself; the others have tiles of their own, numbered after the game's. ``state`` stacks the grids of
    all players.

    ## Starting State
    As in ``StepEnv``: ``reset(seed=s)`` starts the first episode of seed s, each later ``reset()`` the next one, with
    ``options={"level": …, "noise_seed": …}`` too. The transition noise of player i comes from a stream of its own; that
    of player 0 is the single environment's.

    ## Episode End
    An agent that is out leaves ``agents`` while the others go on. All that are left are truncated after ``max_cycles``.

    ## Information
    For each agent ``level_id`` (str), ``action_mask`` (int8 (actions,): 1 where the action can change what this player
    has before it) and ``success`` (bool).

    ## Arguments
    name: name or id of an environment of ``ragen_gym.games.registry.TABLE``.
    players: how many play.
    max_cycles: cycles in an episode; None for the horizon of the id.
    vocabulary: name of one of the game's vocabularies, in which the others get the first letters from Q on that it
        does not use; or a ``ragen_gym.core.text.Vocabulary`` with symbols for them after the game's.
    observation, text_format, preset, split, levels, skip_invalid, render_mode, tile_size, options: as in ``StepEnv``.

    Raises:
        ValueError: an unknown name, option or value; the message says what is allowed.
        gymnasium.error.DependencyNotInstalled: pictures are asked for, and the extra ``render`` is not installed.
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
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        self.game_spec = spec = find(name)
        players, max_cycles = plain_number(players), plain_number(max_cycles)
        check_number(name, "players", players, 1, self.most, whole=True)
        if max_cycles is not None:
            check_number(name, "max_cycles", max_cycles, 1, whole=True)
        check_choice("render_mode", render_mode, (*self.metadata["render_modes"], None))
        if arguments.get("regret"):
            raise ValueError("regret is of single environments: leave it out.")
        #: What one player alone would play; of it this takes the game, its levels and its views.
        self._alone = one = StepEnv(
            spec if players == 1 or self.shared is None else replace(spec, game=self.shared), **arguments
        )
        check_one_size(one.games, "a game of several players")
        self.game, self.vocabulary, self.split, self._seen = one.game, one.vocabulary, one.split, one._view
        self.players, self.render_mode = players, render_mode
        self.max_cycles = spec.horizon if max_cycles is None else max_cycles
        module = re.sub(r"(?<!^)(?=[A-Z])", "_", spec.name).lower()
        self.metadata = {**self.metadata, "name": f"{module}_v0"}
        self.possible_agents = [f"player_{i}" for i in range(players)]
        self.agents: list[str] = []
        self._numbers = {agent: i for i, agent in enumerate(self.possible_agents)}
        # Each agent has spaces of its own, since sampling from a space moves its generator on.
        self._observation_spaces = {agent: self._seen.space() for agent in self.possible_agents}
        self._action_spaces = {agent: spaces.Discrete(len(self.game.Action)) for agent in self.possible_agents}
        grid = self._seen.grid_space()
        self.state_space = spaces.Box(0, grid.high.max(), (players, *grid.shape), np.uint8)
        self._episodes: Episodes | None = None
        self._window = self._open_window()

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
            self._episodes = Episodes(self.game, seed, self.split, self._alone._levels)
            self._level_stream, self._episode = stream_key(seed, Stream.LEVEL), 0
        options = checked_options(options, _OPTIONS)
        level = options.get("level")
        chosen = None if level is None else self._alone.level_board(level)
        board, state, self._level_id, noise_key, _ = self._episodes.take_with(chosen, options.get("noise_seed"))
        level_key = int(episode_keys(self._level_stream, self._episode, 1)[0])
        self._episode += 1
        self.agents, self._start = [], board  # nobody plays, should the level have no room for all
        self._begin(board, state, level_key, fixed=chosen is not None or self._alone._levels is not None)
        self._keys = player_keys(noise_key, self.players, self.game.noise)
        self._cycle = 0
        self.agents = self.possible_agents[:]
        self._outcomes = dict.fromkeys(range(self.players), PLAYING)
        self._show()
        return (
            {agent: self._seen.observe(self._view(i)) for i, agent in enumerate(self.agents)},
            {agent: self._info(i) for i, agent in enumerate(self.agents)},
        )

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
        draws = uniforms(self._keys, self._cycle, 1)[:, 0].tolist() if stochastic else [0.0] * self.players
        self._cycle += 1
        rewards, outcomes = self._play(moves, draws)
        self._outcomes |= outcomes
        playing = {agent: self._numbers[agent] for agent in self.agents}
        spent = self.max_cycles is not None and self._cycle >= self.max_cycles
        self.agents = [agent for agent, i in playing.items() if not (spent or outcomes[i])]
        self._show()
        return (
            {agent: self._seen.observe(self._view(i)) for agent, i in playing.items()},
            {agent: rewards[i] for agent, i in playing.items()},
            {agent: outcomes[i] != PLAYING for agent, i in playing.items()},
            dict.fromkeys(playing, spent),
            {agent: self._info(i) for agent, i in playing.items()},
        )

    def render(self) -> Any:
        """Player 0's view as text in mode ``"ansi"``, everybody in a picture (uint8) in ``"rgb_array"``, else None.

        A window (``"human"``) shows every reset and cycle by itself.
        """
        self._check_started()
        if self.render_mode == "ansi":
            return self._seen.text(self._view(0))
        return self._draw() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window:
            self._window.close()

    def state(self) -> npt.NDArray[np.uint8]:
        """View of each player (one that is out: would see), uint8 (players, height, width) of tile codes."""
        self._check_started()
        return np.stack([self._seen.grid(self._view(i)) for i in range(self.players)])

    @property
    def level(self) -> Level:
        """The level of this episode."""
        self._check_started()
        return self.game.level(self._start)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of a player's actions, in the order of their ids."""
        self._check_started()
        return self.game.action_names(self._start)

    def _moves(self, actions: Mapping[str, Any]) -> dict[int, int]:
        """The moves by player, in the order of their numbers; errors as of ``step``."""
        mapping = isinstance(actions, Mapping)
        if not mapping or set(actions) != set(self.agents):
            given = f"given for {', '.join(map(str, actions)) or 'nobody'}" if mapping else f"no dict: {shown(actions)}"
            raise ValueError(f"actions are {given}; give one for each agent that is left: {', '.join(self.agents)}.")
        for agent in self.agents:
            action = np.asarray(actions[agent])
            if action.ndim or action.dtype.kind not in "iu" or not 0 <= action < len(self.game.Action):
                known = ", ".join(f"{a.value} {a.name}" for a in self.game.Action)
                raise ValueError(f"{agent}: action {actions[agent]!r} is not one of {self.game_spec.name}'s: {known}.")
        return {self._numbers[agent]: int(actions[agent]) for agent in self.agents}

    @abstractmethod
    def _begin(self, board: bytes, state: list[int], level_key: int, *, fixed: bool) -> None:
        """Set the players on the level; ``fixed`` if the caller chose it, so that no other may be drawn."""

    @abstractmethod
    def _play(self, moves: dict[int, int], draws: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
        """Play the moves by player, with each player's random number: rewards and outcomes by player."""

    @abstractmethod
    def _view(self, player: int) -> Board:
        """The board as this player sees it."""

    @abstractmethod
    def _picture(self) -> tuple[Board, list[int | None]]:
        """The board with all players on it, and each one's cell, None for one that has none."""

    @abstractmethod
    def _mask(self, player: int) -> npt.NDArray[np.int8]:
        """int8 (actions,): 1 where the action can change what this player has before it."""

    def _info(self, player: int) -> dict[str, Any]:
        success = self._outcomes[player] == SUCCESS
        return {"level_id": self._level_id, "action_mask": self._mask(player), "success": success}

    def _open_window(self) -> Window | None:
        if self.render_mode not in ("rgb_array", "human"):
            return None
        from ragen_gym.render.renderer import Window

        return Window(self.game_spec.id, self.metadata["render_fps"])

    def _draw(self) -> npt.NDArray[np.uint8]:
        from ragen_gym.multiagent.frames import picture

        return picture(self.game, *self._picture(), self._seen.tile_size)

    def _show(self) -> None:
        if self._window and self.render_mode == "human":
            self._window.show(self._draw())

    def _check_started(self) -> None:
        if not hasattr(self, "_cycle"):
            raise ResetNeeded("no episode was started: call reset() first.")


def player_keys(noise_key: int, players: int, stream: Stream) -> Keys:
    """The keys of the players' random numbers in one episode, uint64 (players,).

    Player 0 has the episode's own key, which is the single environment's; player i one that is hashed from that and i.
    A player's noise depends neither on how many play nor on what they do.
    """
    others = [stream_key(player << 64 | noise_key, stream) for player in range(1, players)]
    return np.array([noise_key, *others], np.uint64)


_LETTERS = ascii_uppercase[16:] + ascii_lowercase[16:]


def with_others(vocabularies: Mapping[str, Vocabulary], tiles: type[IntEnum]) -> dict[str, Vocabulary]:
    """The vocabularies, lengthened to the tiles by the first letters of Q to Z and q to z that each leaves free."""
    longer = {}
    for name, vocabulary in vocabularies.items():
        free = [letter for letter in _LETTERS if letter not in vocabulary.symbols]
        missing = len(tiles) - len(vocabulary.symbols)
        longer[name] = Vocabulary(name, (*vocabulary.symbols, *free[:missing]))
    return longer
