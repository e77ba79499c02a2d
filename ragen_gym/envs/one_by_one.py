"""The batch of boards of several sizes, which do not fit into arrays: single environments, stepped one by one."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from ragen_gym.core.levels import Level
from ragen_gym.core.validation import checked_options
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.vector import BATCH_OPTIONS, BatchEnv, one_for_each, reset_mask_of, seeds_of
from ragen_gym.games.game import Game
from ragen_gym.games.given_levels import SeveralSizesError

__all__ = ["OneByOneBatch", "make_batch"]


class OneByOneBatch(SyncVectorEnv):
    """``BatchEnv`` for levels of several sizes: the same arguments, options and episodes, more slowly."""

    def __init__(
        self,
        name: str,
        *,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **arguments: Any,
    ) -> None:
        limited = max_episode_steps not in (None, -1)
        if limited and arguments.get("regret") is True:
            arguments["regret"] = max_episode_steps
        single = StepEnv(name, **arguments)
        first: Any = TimeLimit(single, int(max_episode_steps or 0)) if limited else single
        self.game_spec, self.games, self._reset_once = single.game_spec, single.games, False
        super().__init__([partial(deepcopy, first)] * num_envs, autoreset_mode=autoreset_mode)

    @property
    def game(self) -> Game:
        """The game at the size of the first environment's board."""
        game: Game = self._cores[0].game
        return game

    @property
    def texts(self) -> tuple[str, ...]:
        """The boards as they stand, as text."""
        return tuple(core.text for core in self._cores)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the episodes in play."""
        return tuple(core.level for core in self._cores)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """The picture of the board of one environment, uint8 (height, width, 3), in render mode ``"rgb_array"``."""
        picture: npt.NDArray[np.uint8] = self._cores[index].render()
        return picture

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in those of ``options["reset_mask"]``; see ``BatchEnv``."""
        options = checked_options(options, BATCH_OPTIONS)
        mask = reset_mask_of(options.get("reset_mask"), self.num_envs, self._reset_once)
        which = np.flatnonzero(mask)
        names = ("level", "noise_seed")
        given = {name: one_for_each(name, options.get(name), which, self.num_envs) for name in names}
        seeds, infos = seeds_of(seed, self.num_envs, None), dict[str, Any]()
        for place, i in enumerate(which.tolist()):
            own = {name: values[place] for name, values in given.items() if values is not None}
            self._env_obs[i], info = self.envs[i].reset(seed=seeds[i], options=own)
            infos = self._add_info(infos, info, i)
        for flags in (self._terminations, self._truncations, self._autoreset_envs):
            flags[mask] = False
        self._reset_once = True
        return tuple(self._env_obs), infos

    @property
    def _cores(self) -> list[Any]:
        return [env.unwrapped for env in self.envs]


def make_batch(name: str, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    """The batch that ``gymnasium.make_vec`` makes: native, or for levels of several sizes one by one."""
    try:
        return BatchEnv(name, **arguments)
    except SeveralSizesError:
        if arguments.get("observation", "text") != "text":
            raise
        return OneByOneBatch(name, **arguments)
