"""Exact randomness: a seed gives independent streams, a stream gives one generator per episode.

Every random number of the suite comes from SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): the n-th output of a generator with key ``k`` is ``mix(k + n * GOLDEN)``. That is a pure
function of two integers, so the same seed gives the same episode in every process, thread, platform, and in single and
batch form.

A seed has three streams, ``Stream.LEVEL``, ``Stream.DYNAMICS`` and ``Stream.REWARD``. The key of a stream is a hash of
the seed and the stream's number; the n-th output of the stream is the key of the generator that serves the n-th
episode. Replacing the seed of the noise (``options={"noise_seed": k}``) therefore never changes a level.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF

Keys = npt.NDArray[np.uint64]


class Stream(IntEnum):
    """The use of a random number."""

    LEVEL = 1
    DYNAMICS = 2
    REWARD = 3


def mix(x: int) -> int:
    """SplitMix64's output function, a bijection of 64-bit integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def stream_key(seed: int, stream: Stream, name: str = "seed") -> int:
    """The 64-bit key of one stream of a seed.

    Args:
        seed: any integer from 0 on; longer ones are absorbed 64 bits at a time.
        stream: which stream.
        name: of the seed, for the error.

    Raises:
        ValueError: the seed is negative or not an integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"{name}={seed!r} is not a seed: give an integer from 0 on.")
    rest, key = int(seed), mix(int(stream) * GOLDEN & _WORD)
    while True:
        key = mix(((key ^ (rest & _WORD)) + GOLDEN) & _WORD)
        rest >>= 64
        if not rest:
            return key


def episode_key(key: int, episode: int) -> int:
    """The key of one episode of a stream, as ``episode_keys`` gives it, without numpy's overhead."""
    return mix((key + (episode + 1) * GOLDEN) & _WORD)


def episode_keys(key: int, first: int, count: int) -> Keys:
    """Keys of the episodes ``first`` to ``first + count - 1`` of a stream, uint64 (count,)."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return _mix_array(np.uint64(key) + steps * np.uint64(GOLDEN))


def uniforms(keys: Keys, first: int, count: int) -> npt.NDArray[np.float64]:
    """Outputs ``first`` to ``first + count - 1`` of each generator as float64 in [0, 1), shape (len(keys), count)."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    words = _mix_array(keys[:, None] + steps)
    return np.ldexp((words >> np.uint64(11)).astype(np.float64), -53)


def _mix_array(x: Keys) -> Keys:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
