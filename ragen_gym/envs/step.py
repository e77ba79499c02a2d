"""The single environment: one move an action, the board as text or as a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding

from ragen_gym.core.levels import Level, check_split
from ragen_gym.core.seeding import Stream, episode_key, stream_key
from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.core.validation import check_choice, check_number, checked_options, plain_number
from ragen_gym.envs.board_view import BoardView, merged_charset, text_space
from ragen_gym.envs.episode_stream import DRAWS, Episode, Episodes, board_list, draws
from ragen_gym.envs.regret import StepRegret, TurnRegret, moves_valued
from ragen_gym.games.game import SUCCESS, Board, Game, Rule, Solution, listed
from ragen_gym.games.given_levels import SIZE_OPTIONS, check_one_size, chosen_board, given_levels, joined_levels
from ragen_gym.games.registry import GameSpec, build_game, find

if TYPE_CHECKING:
    from ragen_gym.render.renderer import Renderer


class LazyGenerator:
    """For an environment that is seeded often: making numpy's generator takes longer than a move."""

    _generator: np.random.Generator | None = None
    _np_random_seed: int | None = None

    def _seed_generator(self, seed: int) -> None:
        self._generator, self._np_random_seed = None, seed

    @property
    def _np_random(self) -> np.random.Generator | None:
        if self._generator is None and self._np_random_seed not in (None, -1):  # -1: it was set, not seeded
            self._generator, _ = seeding.np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator) -> None:
        self._generator = generator


def _of_inner(name: str) -> Any:
    return property(
        lambda outer: getattr(outer.env.unwrapped, name),
        lambda outer, value: setattr(outer.env.unwrapped, name, value),
    )


class InnerGenerator:
    """For an environment around another, ``env``: its generator is the inner one's, as a wrapper's is."""

    _np_random, _np_random_seed = _of_inner("_np_random"), _of_inner("_np_random_seed")


METADATA = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 4}
_OPTIONS = ("level", "noise_seed")


class StepEnv(LazyGenerator, gymnasium.Env[Any, int]):
    """A game of the suite, one move an action.

    ## Action Space
    ``Discrete``: the ids of the game's ``Action`` enum, from 0.

    ## Observation Space
    ``observation="text"``: ``Text``, the board in ``text_format`` and ``vocabulary``; the text parses back to the
    board. (``gymnasium.vector.AsyncVectorEnv`` needs ``shared_memory=False`` for it, and says so.)
    ``observation="grid"``: ``Box`` of uint8 (height, width), the codes of the game's ``Tile`` enum.
    ``observation="rgb"``: ``Box`` of uint8 (height * tile_size, width * tile_size, 3), the board's picture without a
    caption (a bandit's machines are six tiles wide and high).

    ## Starting State
    ``reset(seed=s)`` starts the first episode of seed s, each later ``reset()`` the next one.
    ``options={"level": …}`` sets the level: a ``Level``, a board's text, or an integer, the place from 0 of one among
    ``levels`` (those of ``split``), so that they can be played in order. ``options={"noise_seed": k}`` sets the seed of
    the random draws after it: environments that share the seed and differ in ``noise_seed`` meet one level with other
    transition noise.

    ## Information
    ``level_id`` (str), ``action_mask`` (int8 (actions,): 1 where the action can change the state) and
    ``success`` (bool), at every reset and step. The mask belongs to the board as it stands, and to nothing else: after
    the end it says what could be moved on the last board, although no action is taken there any more.
    With ``regret``, exact and of the move just played (0 at a reset, NaN where unknown; ``ragen_gym.games.values``):
    ``regret``, how much lower the highest expected return is with this action than with a best one, and ``chance``,
    what its transition noise added to the expected return; ``success_regret`` and ``success_chance``, the same of the
    probability of success.

    ## Arguments
    name: name or id of an environment of ``ragen_gym.games.registry.TABLE``.
    observation: ``"text"``, ``"grid"`` or ``"rgb"``.
    text_format: ``"grid"``, ``"spaced"``, ``"coord"`` or ``"grid_coord"``.
    vocabulary: name of one of the game's vocabularies, or a ``ragen_gym.core.text.Vocabulary``.
    preset: a difficulty of the game, such as ``"easy"``; options given next to it override those of the preset.
    split: ``"train"``, ``"validation"``, ``"test"``, or None for all levels, those of ``"test"`` too. Who trains gives
        ``"train"``: with None the agent meets most of what a benchmark of small boards holds out.
    levels: path of a level file, or a list of levels or board texts, to draw from instead of generating; see "Starting
        State" for playing them in order. They may be written in any vocabulary and text format of the game; what all of
        its symbols say in ``vocabulary`` is what a text means. Unless ``size``, ``height`` or ``width`` is given, each
        is played at its own size; other observations than text need levels of one size.
    skip_invalid: whether levels that cannot be played are left out; ``skipped_levels`` says what is wrong with each.
    render_mode: ``"ansi"``, ``"rgb_array"``, ``"human"`` (a window) or None. The pictures show the last move, and a
        caption with step and reward.
    tile_size: side of a tile in pixels, 8 to 128.
    regret: whether ``info`` says what each move gave away. What is possible depends on the moves that are left: True
        counts them from the id's horizon, an integer is the number of moves of an episode. Where ``gymnasium.make`` is
        given ``max_episode_steps``, a wrapper ends the episode, of which the environment learns nothing: give
        ``regret`` the same number.
    options: the game's own options, such as ``size``.

    Raises:
        ValueError: an unknown name, option or value; the message says what is allowed.
        gymnasium.error.DependencyNotInstalled: pictures with text are asked for, without the extra ``render``.

    ## Version History
    v0: first release.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(
        self,
        name: str | GameSpec,
        *,
        observation: Literal["text", "grid", "rgb"] = "text",
        text_format: TextFormat = "grid",
        vocabulary: str | Vocabulary | None = None,
        preset: str | None = None,
        split: str | None = None,
        levels: Any = None,
        skip_invalid: bool = False,
        render_mode: str | None = None,
        tile_size: int = 48,
        regret: bool | int = False,
        **options: Any,
    ) -> None:
        self.game_spec: GameSpec = name if isinstance(name, GameSpec) else find(name)
        levels = joined_levels(levels, self.game_spec.game_class.foreign_levels(options))
        self.game: Game = build_game(self.game_spec, options, preset, StepEnv.__init__.__kwdefaults__ or ())
        check_choice("render_mode", render_mode, (*self.metadata["render_modes"], None))
        self.observation, self.text_format, self.render_mode = observation, text_format, render_mode
        self.split = check_split(split)
        self.vocabulary = self.game.vocabulary(self.game_spec.vocabulary if vocabulary is None else vocabulary)
        self._levels: list[bytes] | None = None
        self.skipped_levels: tuple[str, ...] = ()
        #: The game at each size of the boards; ``game`` is the one in play.
        self.games, self._size_given = [self.game], bool(SIZE_OPTIONS & options.keys())
        if levels is not None:
            sizes = {"own_size": not self._size_given, "skip_invalid": skip_invalid}
            given = given_levels(self.game, levels, split, vocabulary=self.vocabulary, **sizes)
            self._levels, self.games, self.skipped_levels = given.boards, given.games, tuple(given.skipped)
            self.game = self.games[0]
            if observation != "text":
                self.check_one_size(f"observation={observation!r}")
        self._view = BoardView(self.game, observation, self.vocabulary, text_format, tile_size)
        self.tile_size = self._view.tile_size
        self._renderer = self._open_renderer()
        self._parts = self._step_parts()
        self._actions = len(self.game.Action)
        #: How many actions there are to choose from now: none before an episode and after its end.
        self._allowed = 0
        self.action_space: spaces.Discrete[Any] = spaces.Discrete(self._actions)
        self.observation_space = self._view.space()
        #: The characters of the boards as texts, their least length and their greatest, whatever the observation.
        self.charset = merged_charset(each.charset(self.vocabulary, text_format) for each in self.games)
        if len(self.games) > 1:
            self.observation_space = text_space(self.charset)
        self._episodes: Episodes | None = None
        self._solution: Solution | None = None
        self.regret = regret
        moves = moves_valued(regret, self.game_spec, self.game)
        self._regret = StepRegret(self.game, moves) if moves else None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parts": None, "_solution": None}  # they hold functions, and are made again

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._parts = self._step_parts()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see "Starting State" in the class.

        Raises:
            ValueError: a seed that is negative or no integer, an unknown option, or a level that is none of the game.
        """
        if seed is not None or self._episodes is None:
            first = int(self.np_random.integers(2**63)) if seed is None else seed
            self._episodes = Episodes(self.game, first, self.split, self._levels)
            if seed is not None:
                self._seed_generator(int(seed))
        episode = self._episodes.take() if options is None or options == {} else self._chosen(self._episodes, options)
        self._start, state, level_id, self._noise_key, self._draws = episode
        self._state, self._level_id, self._drawn, self._solution = state, level_id, len(self._draws), None
        self._allowed = self._actions
        if len(self.games) > 1:
            self._play_at_size_of(self._start)
        board = self._board = bytearray(self._start)
        _, _, observe, mask, _ = self._parts
        info = {"level_id": level_id, "action_mask": mask(board, state), "success": False}
        if self._regret:
            info |= self._regret.begin(self._start)
        return observe(board), info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one move.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: the action is not one of the game's.
        """
        if action.__class__ is not int or not 0 <= action < self._allowed:
            action = self._checked(action)
        rule, params, observe, mask, stochastic = self._parts
        board, state = self._board, self._state
        u = 0.0
        if stochastic:
            draws = self._draws
            u = draws.pop() if draws else self._draw()
        before = self.state if self._regret else None
        reward, outcome = rule(board, state, action, u, params)
        if outcome:
            self._allowed = 0
        info = {"level_id": self._level_id, "action_mask": mask(board, state), "success": outcome == SUCCESS}
        if before and self._regret:
            info |= self._regret.info(before, action, reward, None if outcome else self.state, outcome == SUCCESS)
        return observe(board), reward, outcome > 0, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """``info["action_mask"]`` of the board as it stands, bool (actions,), under the name that sb3-contrib reads."""
        self._check_started()
        _, _, _, mask, _ = self._parts
        return mask(self._board, self._state).astype(np.bool_)  # type: ignore[no-any-return]

    def reseed_noise(self, noise_seed: int) -> None:
        """Draw the transition noise of the moves to come from another seed, as ``reset`` does with ``noise_seed``.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
            ValueError: a seed that is negative or no integer.
        """
        self._check_started()
        self._noise_key = episode_key(stream_key(noise_seed, self.game.noise, "noise_seed"), 0)
        self._draws, self._drawn = [], 0

    def twin(self) -> StepEnv:
        """An environment of the same arguments, to ``follow`` this one."""
        return copy(self)

    def follow(self, other: StepEnv, noise_seed: int) -> None:
        """Stand where another environment of the same arguments does, with the transition noise of another seed.

        What is shown to an agent follows the environment that scores it: copies of it do not show what will happen.
        """
        other._check_started()
        if getattr(self, "_start", None) != other._start:
            self._start, self._solution = other._start, None
            if len(self.games) > 1:
                self._play_at_size_of(self._start)
        self._board, self._state = bytearray(other._board), list(other._state)
        self._level_id, self._allowed = other._level_id, other._allowed
        self.reseed_noise(noise_seed)

    def stand_at(self, board: bytes, state: Sequence[int]) -> None:
        """Stand in a state of this episode's level in which the game goes on; the transition noise goes on too.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        self._check_started()
        self._board, self._state, self._allowed = bytearray(board), list(state), self._actions

    def render(self) -> Any:
        """The board as text in mode ``"ansi"``, a uint8 (height, width, 3) array in ``"rgb_array"``, else None.

        A window (``"human"``) shows every reset and step by itself.
        """
        self._check_started()
        if self.render_mode == "ansi":
            return self.text
        return self._renderer.picture(self._board) if self._renderer and self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._renderer:
            self._renderer.close()

    @property
    def text(self) -> str:
        """The board as it stands, as text."""
        self._check_started()
        return self._view.text(self._board)

    @property
    def level(self) -> Level:
        """The level of this episode."""
        self._check_started()
        return self.game.level(self._start)

    def level_families(self, seeds: Iterable[int]) -> list[int]:
        """The family (``ragen_gym.games.game.Game.family``) of the level that ``reset(seed=…)`` begins with, for each.

        The episode in play goes on as if nothing had been asked.

        Raises:
            ValueError: a seed that is negative or no integer.
        """
        keys = np.array([episode_key(stream_key(seed, Stream.LEVEL), 0) for seed in seeds], np.uint64)
        boards = board_list(self.game, keys, self.split, self._levels) if len(keys) else ()
        return [self.game.for_board(board).family(board) for board in boards]

    @property
    def state(self) -> tuple[bytes, tuple[int, ...]]:
        """The board and the integers of the state."""
        self._check_started()
        return bytes(self._board), tuple(self._state)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of a player's actions, in the order of their ids."""
        self._check_started()
        return self.game.action_names(self._board)

    def solution(self) -> Solution:
        """The oracle of this episode's level."""
        self._check_started()
        if self._solution is None:
            self._solution = self.game.solve(self._start)
        return self._solution

    def value_by_turns(self) -> TurnRegret | None:
        """Leave it to a turn environment to say what moves gave away, where that is asked for."""
        self._regret = None
        return TurnRegret(self.game) if self.regret else None

    def oracle_action(self, actions_left: int) -> int:
        """A best action here, with that many actions left, however many.

        Raises:
            ValueError: ``actions_left`` is no integer from 0 on, or too large for the level's oracle, which says so.
        """
        actions_left = plain_number(actions_left)
        check_number(type(self.game).__name__, "actions_left", actions_left, 0, whole=True)
        return self.solution().action(self._board, self._state, actions_left)

    def _check_started(self) -> None:
        if not hasattr(self, "_board"):
            raise ResetNeeded("no episode was started: call reset() first.")

    def _draw(self) -> float:
        self._draws = draws(self.game, np.array([self._noise_key], np.uint64), self._drawn)[0]
        self._drawn += DRAWS
        return self._draws.pop()

    def check_one_size(self, who: str) -> None:
        """Raise a ValueError, which says that ``who`` needs boards of one size, if those of the levels have several."""
        check_one_size(self.games, who)

    def level_board(self, level: Any) -> bytes:
        """The first board of a level that ``reset`` is given, or of its place among ``levels``.

        Raises:
            ValueError: there is no such level, or its board has another size than those that are played.
        """
        return chosen_board(self.games, level, self._levels, self.vocabulary, size_given=self._size_given)

    def _play_at_size_of(self, board: bytes) -> None:
        game = self.game.for_board(board)
        if game is not self.game:
            self.game = game
            self._view = BoardView(game, self.observation, self.vocabulary, self.text_format, self.tile_size)
            if self._renderer:
                self._renderer.game = game
            self._parts = self._step_parts()

    def _chosen(self, episodes: Episodes, options: dict[str, Any]) -> Episode:
        level = checked_options(options, _OPTIONS).get("level")
        board = None if level is None else self.level_board(level)
        return episodes.take_with(board, options.get("noise_seed"))

    def _step_parts(self) -> tuple[Rule, Any, Callable[[Board], Any], Callable[..., Any], bool]:
        """What a step needs and no episode changes, for one look-up.

        A renderer puts itself before the rule, so that an environment without one loses no time.
        """
        rule, observe = self.game.rule, self._view.observe
        if self._renderer:
            rule = self._renderer.rule
        if self._renderer and self.render_mode == "human":
            observe = self._renderer.watching(observe)
        return rule, listed(self.game.params), observe, self.game.masker(), self.game.stochastic

    def _open_renderer(self) -> Renderer | None:
        if self.render_mode not in ("rgb_array", "human"):
            return None
        from ragen_gym.render.renderer import Renderer, Window

        window = Window(self.game_spec.id, self.metadata["render_fps"])
        return Renderer(self.game, self.game.rule, self.tile_size, window)

    def _checked(self, action: Any) -> int:
        """An action that is not an ``int`` in range as one that is; errors as of ``step``."""
        if not self._allowed:
            raise ResetNeeded("the episode is over, or none was started: call reset() before step().")
        number = np.asarray(action)
        if number.ndim or number.dtype.kind not in "iu" or not 0 <= number < self._allowed:
            names = ", ".join(f"{a.value} {a.name}" for a in self.game.Action)
            raise ValueError(f"action {action!r} is not one of {self.game_spec.name}'s: {names}.")
        return int(action)
