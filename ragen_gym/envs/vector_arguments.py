"""What may be given to a batch, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Keys, Stream, episode_keys, stream_key

__all__ = ["check_mode", "check_positive", "noise_of", "one_for_each", "reset_mask", "seeds_of"]


def check_positive(what: str, value: Any) -> int:
    """``value`` if it is an integer from 1 on, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{what}={value!r} must be an integer from 1 on.")
    return int(value)


def check_mode(value: AutoresetMode | str) -> AutoresetMode:
    """The mode, or the mode of that value, else a ValueError."""
    try:
        return AutoresetMode(value)
    except ValueError:
        modes = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode={value!r} is not known: choose one of {modes}.") from None


def reset_mask(mask: Any, n: int, started: bool) -> npt.NDArray[np.bool_]:
    """The environments to reset, bool (n,); None is all.

    Raises:
        ValueError: it is no such array, it marks nothing, or it leaves environments out before all were ``started``.
    """
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
    """A seed for each environment, or None where it goes on with the one it has; ``rng`` draws those, if given.

    Raises:
        ValueError: the number of seeds is not ``n``.
    """
    if seed is None or isinstance(seed, int | np.integer):
        seeds: list[int | None] = [None if seed is None else int(seed) + i for i in range(n)]
    else:
        seeds = list(seed)
    if len(seeds) != n:
        raise ValueError(f"seed holds {len(seeds)} seeds for {n} environments: give one for each, or a single one.")
    if rng is None or None not in seeds:
        return seeds
    drawn = rng.integers(2**63, size=n).tolist()
    return [new if chosen is None else chosen for chosen, new in zip(seeds, drawn, strict=True)]


def one_for_each(option: str, value: Any, which: npt.NDArray[np.intp], n: int) -> list[Any] | None:
    """What an option gives to each environment of ``which``: one value for all, or a sequence of ``n``; None for None.

    Raises:
        ValueError: a sequence of another length.
    """
    if value is None:
        return None
    if isinstance(value, str | Level) or not isinstance(value, Sequence | np.ndarray):
        return [value] * len(which)
    if len(value) != n:
        raise ValueError(
            f"{option} holds {len(value)} values for {n} environments: give one for each, or a single one."
        )
    return [value[i] for i in which]


def noise_of(seeds: list[int] | None, stream: Stream) -> Keys | None:
    """The key of the first episode's noise of each seed."""
    if seeds is None:
        return None
    keys = {seed: episode_keys(stream_key(seed, stream), 0, 1)[0] for seed in dict.fromkeys(seeds)}
    return np.array([keys[seed] for seed in seeds], np.uint64)
