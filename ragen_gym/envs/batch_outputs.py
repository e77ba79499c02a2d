"""Outputs of a batch: observations of all boards at once, and infos that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, MutableMapping, ValuesView
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ragen_gym.core.text import EDGE, TextFormat, Vocabulary
from ragen_gym.envs import kernel
from ragen_gym.envs.batch_episodes import kept_of
from ragen_gym.games._jit import compiled_params, compiling
from ragen_gym.games.game import Boards, Game


def text_writer(game: Game, vocabulary: Vocabulary, text_format: TextFormat) -> Callable[[Boards], tuple[str, ...]]:
    """A function from boards to their texts.

    Grids are looked up symbol by symbol as UCS-4 characters, which numpy makes strings of; any vocabulary costs the
    same. Other texts are written one by one.
    """
    write = game.formatter(vocabulary, text_format)

    def one_by_one(boards: Boards) -> tuple[str, ...]:
        flat, cells = boards.tobytes(), boards.shape[1]
        return tuple([write(flat[i : i + cells]) for i in range(0, len(flat), cells)])

    if (text_format, game.layout) != ("grid", "grid"):
        return one_by_one
    table = np.zeros(256, np.uint32)
    table[: len(vocabulary.symbols)] = [ord(symbol) for symbol in vocabulary.symbols]
    table[EDGE] = ord("\n")

    def all_at_once(boards: Boards) -> tuple[str, ...]:
        points = np.empty(boards.shape, np.uint32)
        kernel.characters(boards, table, points)
        return tuple(points.view(f"U{boards.shape[1]}")[:, 0].tolist())

    return all_at_once


def grid_maker(game: Game) -> Callable[[Boards], npt.NDArray[np.uint8]]:
    """A function from boards to uint8 (n, height, width)."""
    height, width = game.height, game.width

    def grids(boards: Boards) -> npt.NDArray[np.uint8]:
        out = np.empty((len(boards), height, width), np.uint8)
        kernel.grids(boards, out)
        return out

    return grids


def picture_maker(game: Game, tile_size: int) -> Callable[[Boards], npt.NDArray[np.uint8]]:
    """A function from boards to pictures, uint8 (n, height in pixels, width in pixels, 3)."""
    grids = grid_maker(game)

    def pictures(boards: Boards) -> npt.NDArray[np.uint8]:
        from ragen_gym.render.frames import frames

        pixels: npt.NDArray[np.uint8] = frames(game, grids(boards), tile_size)
        return pixels

    return pictures


def batched(space: spaces.Space[Any], n: int) -> spaces.Space[Any]:
    """``batch_space``, but with one text space for all: a copy for each would take seconds for large batches."""
    return spaces.Tuple((space,) * n) if isinstance(space, spaces.Text) else batch_space(space, n)


class Snapshot(NamedTuple):
    """Inputs of a batch's infos at one step; nothing in it changes any more."""

    game: Game
    observe: Callable[[Boards], Any]  # makes observations of boards
    which: npt.NDArray[np.int64] | None  # (m,), the environments that the infos speak of; None for all
    sizes: tuple[int, int, int]  # environments of the batch, integers and cells of each
    kept: npt.NDArray[np.uint8]  # their boards and states, a copy of ``batch_episodes.part_of`` the block
    ring: Boards  # (num_envs, ring, cells), the prepared levels

    def _parts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32], Boards]:
        """(the environments, how many episodes each has begun, the integers of their states, their boards)."""
        taken, states, boards = kept_of(self.kept, *self.sizes)
        which = np.arange(len(taken)) if self.which is None else self.which
        return which, taken.take(which), states.take(which, 0), boards.take(which, 0)

    def mask(self) -> npt.NDArray[np.bool_]:
        """The environments that the infos speak of, bool (num_envs,)."""
        mask = np.full(self.sizes[0], self.which is None)
        if self.which is not None:
            mask[self.which] = True
        return mask

    @compiling()
    def level_id(self) -> npt.NDArray[np.object_]:
        """The ids of the levels in play, (num_envs,) of str, None elsewhere."""
        out, (which, taken, _, _) = np.full(self.sizes[0], None, dtype=object), self._parts()
        out[which] = self.game.ids(self.ring[which, (taken - 1) % self.ring.shape[1]])
        return out

    def action_mask(self) -> npt.NDArray[np.int8]:
        """The actions that can change the state, int8 (num_envs, actions), 0 elsewhere."""
        out, (which, _, states, boards) = np.zeros((self.sizes[0], len(self.game.Action)), np.int8), self._parts()
        if self.game.legal is not None:
            masks = np.empty((len(boards), out.shape[1]), np.int8)
            kernel.mask_kernel(self.game.legal)(boards, states, compiled_params(self.game.params), masks)
            out[which] = masks
            return out
        for i, board, state in zip(which, boards, states.tolist(), strict=True):
            out[i] = self.game.action_mask(board.tobytes(), state)
        return out

    def final_obs(self) -> npt.NDArray[np.object_]:
        """The observations, (num_envs,) of objects, None elsewhere."""
        out, (which, _, _, boards) = np.full(self.sizes[0], None, dtype=object), self._parts()
        for i, observation in zip(which, self.observe(boards), strict=True):
            out[i] = observation
        return out


#: What computes the value of each key for which a ``Snapshot`` can stand.
_READERS: dict[str, Callable[[Snapshot], Any]] = {
    "level_id": Snapshot.level_id,
    "action_mask": Snapshot.action_mask,
    "final_obs": Snapshot.final_obs,
    **dict.fromkeys(("_level_id", "_action_mask", "_success", "_final_obs", "_final_info"), Snapshot.mask),
}


class Infos(dict[str, Any]):
    """A dictionary in which a ``Snapshot`` stands for a value until somebody reads it.

    A thousand level ids as strings cost several times the step that they belong to, and most are never read. Whoever
    reads one, in whatever way a dictionary can be read, gets what an ordinary dictionary would hold: the methods of
    ``MutableMapping`` read by ``__getitem__``.
    """

    get, setdefault, __eq__ = MutableMapping.get, MutableMapping.setdefault, MutableMapping.__eq__  # type: ignore[assignment]
    __hash__ = None
    __ne__ = object.__ne__  # which asks ``__eq__``; that of dict would compare what stands for the values

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value.__class__ is Snapshot:
            value = self[key] = _READERS[key](value)
        return value

    def __iter__(self) -> Iterator[str]:
        # Python copies a dict subclass without asking it for its values, unless the subclass iterates for itself.
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """A view of the keys with their values."""
        self._read()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """A view of the values."""
        self._read()
        return super().values()

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value."""
        if key in self:
            self[key]
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key and return it with its value."""
        if self:
            self[next(reversed(self))]
        return super().popitem()

    def copy(self) -> dict[str, Any]:
        """An ordinary dictionary with the same values."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _read(self) -> None:
        for key in self:
            self[key]

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)
