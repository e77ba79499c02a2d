"""The native batch: many environments of one game in a few arrays, stepped by one compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Keys, Stream, episode_keys, stream_key
from ragen_gym.core.validation import BatchType, check_number, checked_options, plain_number
from ragen_gym.envs import kernel
from ragen_gym.envs.batch_episodes import LevelPrefetch
from ragen_gym.envs.batch_outputs import Infos, Snapshot, batched, grid_maker, picture_maker, text_writer
from ragen_gym.envs.episode_stream import stacked
from ragen_gym.envs.step import StepEnv
from ragen_gym.games._jit import compiled_params
from ragen_gym.games.game import Boards

RENDER_MODES = ("ansi", "rgb_array")

_KERNEL_MODES = {
    AutoresetMode.DISABLED: kernel.STOP,
    AutoresetMode.NEXT_STEP: kernel.NEXT_STEP,
    AutoresetMode.SAME_STEP: kernel.SAME_STEP,
}
BATCH_OPTIONS = ("reset_mask", "level", "noise_seed")
_NEVER = 2**62
#: What ``BatchEnv._compile`` makes, which a pickle cannot hold.
_MADE_AGAIN = ("_texts", "_pictures", "_observe", "_advance", "_params")

Results = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


class BatchEnv(VectorEnv[Any, Any, Any], metaclass=BatchType):
    """``num_envs`` environments of one game: what ``gymnasium.make_vec`` makes of every id of the suite.

    Environment i with seed s plays what the single environment plays with seed s, episode after episode, with the
    same observations, rewards and infos. ``gymnasium.vector.SyncVectorEnv`` over single environments returns the same,
    far more slowly.

    ## Observation Space
    ``observation="text"``: a tuple of strings. ``"grid"``: uint8 (num_envs, height, width). ``"rgb"``: uint8
    (num_envs, height in pixels, width in pixels, 3).

    ## Starting State
    ``reset(seed=s)`` gives environment i the seed s + i; a list gives each its own, and with None it goes on to its
    next episode. Options: ``"reset_mask"``, bool (num_envs,), marks the environments to reset; ``"level"`` and
    ``"noise_seed"`` are those of the single environment, one for all or a list of one for each.

    ## Information
    That of the single environment, each an array over environments next to its mask ``_key``. ``level_id``,
    ``action_mask``, and in mode ``"SameStep"`` ``final_obs`` are computed when they are read.

    ## Arguments
    name: name or id of an environment of ``ragen_gym.games.registry.TABLE``.
    num_envs: number of environments.
    max_episode_steps: steps after which an episode is truncated; None or -1 for no limit. ``make_vec`` gives the id's.
    autoreset_mode: a ``gymnasium.vector.AutoresetMode`` or its value: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
    render_mode: ``"ansi"``, ``"rgb_array"`` or None.
    arguments: all others of ``ragen_gym.StepEnv`` but ``regret``.

    Raises:
        ValueError: an unknown name, option or value; the message says what is allowed.

    Memory for each environment: its board and state, up to 16 more of both
    (``ragen_gym.envs.batch_episodes.LevelPrefetch``), and about 60 bytes; besides, the arrays that a step returns.
    """

    def __init__(
        self,
        name: str,
        *,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        n = self.num_envs = plain_number(num_envs)
        check_number(name, "num_envs", n, 1, 2**31 - 1, whole=True)
        limit = plain_number(max_episode_steps)
        if limit is None or (type(limit) is int and limit == -1):
            limit = _NEVER
        check_number(name, "max_episode_steps", limit, 1, _NEVER, whole=True)
        self.autoreset_mode = _check_mode(autoreset_mode)
        if render_mode not in (*RENDER_MODES, None):
            raise ValueError(f"render_mode={render_mode!r} is not a batch's: choose 'ansi', 'rgb_array' or None.")
        if arguments.get("regret"):
            raise ValueError("regret is of single environments: use vectorization_mode='sync', or leave it out.")
        single = StepEnv(name, **arguments)
        single.check_one_size("a native batch")
        self.game_spec, self.game, self.render_mode = single.game_spec, single.game, render_mode
        self.observation, self.text_format, self.vocabulary = single.observation, single.text_format, single.vocabulary
        own = {"render_modes": list(RENDER_MODES), "autoreset_mode": self.autoreset_mode}
        self.metadata = {**single.metadata, **own}
        self.single_action_space, self.single_observation_space = single.action_space, single.observation_space
        self.action_space = batch_space(single.action_space, n)
        self.observation_space = batched(single.observation_space, n)
        self._tile_size = single.tile_size
        self.games, self._level_board = single.games, single.level_board
        self._prefetch = LevelPrefetch(self.game, n, single.split, single._levels)
        self._resets_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        mode = _KERNEL_MODES[self.autoreset_mode]
        self._settings = np.array([len(self.game.Action), limit, mode, self.game.stochastic])
        self._started = self._dry = False
        self._compile()

    def _compile(self) -> None:
        """Make what the game and the arguments give and no episode changes."""
        game = self.game
        self._texts = text_writer(game, self.vocabulary, self.text_format)
        self._pictures = picture_maker(game, self._tile_size)
        writers: dict[str, Callable[[Boards], Any]] = {
            "text": self._texts,
            "grid": grid_maker(game),
            "rgb": self._pictures,
        }
        self._observe = writers[self.observation]
        self._advance, self._params = kernel.step_kernel(game.rule), compiled_params(game.params)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _MADE_AGAIN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in those of ``options["reset_mask"]``; see the class.

        Raises:
            ValueError: an option or a seed that does not fit, or a first reset that leaves environments out.
        """
        options = checked_options(options, BATCH_OPTIONS)
        mask = reset_mask_of(options.get("reset_mask"), self.num_envs, self._started)
        which = np.flatnonzero(mask)
        levels = one_for_each("level", options.get("level"), which, self.num_envs)
        boards = levels and [self._level_board(level) for level in levels]
        noise = _noise_of(one_for_each("noise_seed", options.get("noise_seed"), which, self.num_envs), self.game.noise)
        seeds = seeds_of(seed, self.num_envs, None if self._started else self.np_random)
        given = [(i, chosen) for i in which.tolist() if (chosen := seeds[i]) is not None]
        if given:
            self._prefetch.seed([i for i, _ in given], [chosen for _, chosen in given])
            self._dry = True
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        if self._dry:
            self._prefetch.refill()
        if boards:
            self._prefetch.put(which, stacked(boards))
        self._dry = self._begin(which)
        if noise is not None:
            self._prefetch.buffers.noise[which] = noise
        self._started = True
        snapshot = self._snapshot(None if mask.all() else which)
        return self._observe(self._prefetch.buffers.boards), _infos(snapshot, np.zeros(self.num_envs, np.bool_))

    def step(self, actions: Any) -> Results:
        """Play one move in every environment; what is over is handled as ``autoreset_mode`` says.

        Args:
            actions: integers (num_envs,).

        Raises:
            gymnasium.error.ResetNeeded: there was no reset, or an episode is over and nothing resets it.
            ValueError: not one action of the game for each environment; nothing has happened then.
        """
        given, n, prefetch = np.asarray(actions), self.num_envs, self._prefetch
        if given.shape != (n,) or given.dtype.kind not in "iu":
            raise ValueError(self._bad_actions(given))
        self._check_started()
        if self.autoreset_mode is AutoresetMode.DISABLED and prefetch.buffers.done.any():
            raise ResetNeeded(
                f"the episodes of environments {np.flatnonzero(prefetch.buffers.done).tolist()} are over: "
                'call reset(options={"reset_mask": terminated | truncated}) before step().'
            )
        if self._dry:
            prefetch.refill()
        rewards, terminated = np.empty(n), np.empty(n, np.bool_)
        truncated, success = np.empty(n, np.bool_), np.empty(n, np.bool_)
        moves = given.astype(np.int64, copy=False)
        results = rewards, terminated, truncated, success
        count, dry = self._advance(
            moves, self._settings, self._params, prefetch.block, prefetch.boards, prefetch.states, *results
        )
        self._dry = dry
        if count < 0:
            raise ValueError(self._bad_actions(given))
        resets = count and self._resets_at_once
        final = self._finish(prefetch.buffers.ended[:count].copy(), success) if resets else {}
        infos = _infos(self._snapshot(None), success)
        infos.update(final)
        return self._observe(prefetch.buffers.boards), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """The boards as text in render mode ``"ansi"``, as pictures in ``"rgb_array"``, None without a mode."""
        self._check_started()
        if self.render_mode is None:
            return None
        return self.texts if self.render_mode == "ansi" else tuple(self._pictures(self._prefetch.buffers.boards))

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """``infos["action_mask"]`` of the boards as they stand, bool (num_envs, actions)."""
        self._check_started()
        return self._snapshot(None).action_mask().astype(np.bool_)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """The picture of the board of one environment, uint8 (height, width, 3), whatever the render mode."""
        self._check_started()
        picture: npt.NDArray[np.uint8] = self._pictures(self._prefetch.buffers.boards[index : index + 1])[0]
        return picture

    @property
    def texts(self) -> tuple[str, ...]:
        """The boards as they stand, as text."""
        self._check_started()
        return self._texts(self._prefetch.buffers.boards)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the episodes in play."""
        self._check_started()
        ring, slots = self._prefetch.boards, (self._prefetch.buffers.taken - 1) % self._prefetch.boards.shape[1]
        return tuple(self.game.level(board.tobytes()) for board in ring[np.arange(self.num_envs), slots])

    def _check_started(self) -> None:
        if not self._started:
            raise ResetNeeded("no episode was started: call reset() first.")

    def _begin(self, which: npt.NDArray[np.int64]) -> bool:
        """Begin the next episodes of the environments ``which``; whether one of them was the last prepared."""
        return kernel.begin(which, self._prefetch.block, self._prefetch.boards, self._prefetch.states)

    def _finish(self, which: npt.NDArray[np.int64], success: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Begin the next episodes of ``which``; the infos of how the last ones ended. For SAME_STEP."""
        last_success = np.zeros_like(success)
        last_success[which], success[which] = success[which], False
        snapshot = self._snapshot(which)
        self._dry = self._begin(which)
        final = _infos(snapshot, last_success)
        return {"final_obs": snapshot, "_final_obs": snapshot, "final_info": final, "_final_info": snapshot}

    def _snapshot(self, which: npt.NDArray[np.int64] | None) -> Snapshot:
        prefetch = self._prefetch
        return Snapshot(self.game, self._observe, which, prefetch.sizes, prefetch.part.copy(), prefetch.boards)

    def _bad_actions(self, actions: npt.NDArray[Any]) -> str:
        names = ", ".join(f"{action.value} {action.name}" for action in self.game.Action)
        wanted = f"actions must be {self.num_envs} integers, each one of {names}"
        if actions.shape != (self.num_envs,):
            return f"{wanted}; got an array of shape {actions.shape}."
        if actions.dtype.kind not in "iu":
            return f"{wanted}; got {actions.dtype}."
        i = int(np.flatnonzero((actions < 0) | (actions >= len(self.game.Action)))[0])
        return f"{wanted}; environment {i} got {actions[i]}."


def _infos(snapshot: Snapshot, success: npt.NDArray[np.bool_]) -> Infos:
    lazy = dict.fromkeys(("level_id", "action_mask", "_level_id", "_action_mask", "_success"), snapshot)
    return Infos({"success": success, **lazy})


def _check_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        modes = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode={value!r} is not known: choose one of {modes}.") from None


def reset_mask_of(mask: Any, n: int, started: bool) -> npt.NDArray[np.bool_]:
    """The environments to reset, bool (n,); None is all. Before all were ``started`` none may be left out."""
    if mask is None:
        return np.ones(n, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n,):
        raise ValueError(f"reset_mask={mask!r} is not an array of bool of shape ({n},).")
    if not mask.any():
        raise ValueError("reset_mask marks no environment: mark those to reset.")
    if not started and not mask.all():
        raise ValueError("reset_mask leaves out environments that were never reset: reset all of them first.")
    return mask


def seeds_of(seed: Any, n: int, rng: np.random.Generator | None) -> list[int | None]:
    """A seed for each environment, or None where it goes on with the one it has; ``rng`` draws those, if given."""
    if seed is None or _is_seed(seed):
        seeds: list[int | None] = [None if seed is None else int(seed) + i for i in range(n)]
    else:
        seeds = list(seed) if np.iterable(seed) else [seed]
    if not all(each is None or _is_seed(each) for each in seeds):
        raise ValueError(
            f"seed={seed!r} must be an integer from 0 on, a list of them, one for each environment, or None."
        )
    if len(seeds) != n:
        raise ValueError(f"seed holds {len(seeds)} seeds for {n} environments: give one for each, or a single one.")
    if rng is None or None not in seeds:
        return seeds
    drawn = rng.integers(2**63, size=n).tolist()
    return [new if chosen is None else chosen for chosen, new in zip(seeds, drawn, strict=True)]


def _is_seed(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def one_for_each(option: str, value: Any, which: npt.NDArray[np.intp], n: int) -> list[Any] | None:
    """Value of an option for each environment of ``which``: one for all or a sequence of ``n``; None for None."""
    if value is None:
        return None
    single = isinstance(value, str | Level) or (isinstance(value, np.ndarray) and not value.ndim)
    if single or not isinstance(value, Sequence | np.ndarray):
        return [value] * len(which)
    if len(value) != n:
        raise ValueError(
            f"{option} holds {len(value)} values for {n} environments: give one for each, or a single one."
        )
    return [value[i] for i in which]


def _noise_of(seeds: list[int] | None, stream: Stream) -> Keys | None:
    if seeds is None:
        return None
    for seed in seeds:
        if not _is_seed(seed):
            stream_key(seed, stream, "noise_seed")  # which says what is wrong with it
    keys = {seed: episode_keys(stream_key(seed, stream, "noise_seed"), 0, 1)[0] for seed in dict.fromkeys(seeds)}
    return np.array([keys[seed] for seed in seeds], np.uint64)
