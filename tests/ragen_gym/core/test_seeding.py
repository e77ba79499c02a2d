"""The random numbers: the published generator, one value in every form, streams that do not touch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.seeding import GOLDEN, Stream, episode_keys, mix, stream_key, uniforms
from ragen_gym.games import kernels

WORD = 2**64 - 1
WORDS = st.integers(0, WORD) | st.sampled_from([0, 1, WORD, WORD - GOLDEN, 2**63])
SEEDS = st.integers(0, 2**80) | st.sampled_from([0, 2**32 - 1, 2**64 - 1, 2**64, 2**70])

# Vigna's splitmix64.c; the first five outputs for 1234567 are the ones that Rosetta Code lists.
PUBLISHED = {
    1234567: [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ],
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC],
}

# These must never change: they are what makes a seed the same episode for ever.
STREAM_KEYS = {
    0: (12035550249420947055, 5095610196844313600, 17160774760686499100),
    1: (627405149472732430, 6728581669027343264, 8875350024871729752),
    2**32 - 1: (15797722289250854818, 2754435515213805909, 15587829499235037605),
    2**70: (6033956565052239675, 14555981610733054508, 11673461958727511910),
}


@pytest.mark.parametrize(("seed", "outputs"), PUBLISHED.items())
def test_published_outputs(seed: int, outputs: list[int]) -> None:
    count = len(outputs)
    assert [mix((seed + n * GOLDEN) & WORD) for n in range(1, count + 1)] == outputs
    assert episode_keys(seed, 0, count).tolist() == outputs
    state, compiled = np.uint64(seed), []
    for _ in range(count):
        state, word = kernels.next_word(np.uint64(state))
        compiled.append(int(word))
    assert compiled == outputs


@given(WORDS)
def test_mix_is_one_function_in_three_forms(word: int) -> None:
    assert int(kernels.mix(np.uint64(word))) == mix(word)
    assert episode_keys((word - GOLDEN) & WORD, 0, 1).tolist() == [mix(word)]


@given(WORDS, st.integers(0, 1000), st.integers(1, 20))
def test_a_part_of_a_stream_is_that_part_of_the_whole(key: int, first: int, count: int) -> None:
    assert episode_keys(key, first, count).tolist() == episode_keys(key, 0, first + count)[first:].tolist()
    keys = np.array([key, 5], np.uint64)
    part, whole = uniforms(keys, first, count), uniforms(keys, 0, first + count)
    assert part.tolist() == whole[:, first:].tolist()
    assert part[0].tolist() == uniforms(keys[:1], first, count)[0].tolist()
    words = episode_keys(key, first, count)
    assert part[0].tolist() == [(int(word) >> 11) / 2**53 for word in words]
    assert part.min() >= 0
    assert part.max() < 1


@pytest.mark.parametrize(("seed", "keys"), STREAM_KEYS.items())
def test_stream_keys_never_change(seed: int, keys: tuple[int, int, int]) -> None:
    assert tuple(stream_key(seed, stream) for stream in Stream) == keys


@given(st.lists(SEEDS, min_size=2, max_size=6, unique=True))
def test_seeds_and_streams_have_keys_of_their_own(seeds: list[int]) -> None:
    keys = [stream_key(seed, stream) for seed in seeds for stream in Stream]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("seed", [-1, 1.0, "1", None, True])
def test_what_is_not_a_seed(seed: object) -> None:
    with pytest.raises(ValueError, match=r"is not a seed: give an integer from 0 on"):
        stream_key(seed, Stream.LEVEL)  # type: ignore[arg-type]


def test_draws_are_uniform_and_streams_uncorrelated() -> None:
    rows = {stream: uniforms(episode_keys(stream_key(3, stream), 0, 2000), 0, 10) for stream in Stream}
    for draws in rows.values():
        counts = np.histogram(draws, 100, (0, 1))[0]
        chi_square = ((counts - 200.0) ** 2 / 200).sum()
        assert chi_square < 148.2  # 99 degrees of freedom, one in a thousand
    level, dynamics, reward = (draws.ravel() for draws in rows.values())
    for one, other in ((level, dynamics), (level, reward), (dynamics, reward), (level[:-1], level[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.025  # 3.5 standard errors at 20,000 pairs
