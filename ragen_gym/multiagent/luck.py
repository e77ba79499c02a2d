"""Each player's own random numbers."""

from __future__ import annotations

import numpy as np

from ragen_gym.core.seeding import Keys, Stream, stream_key

__all__ = ["player_keys"]


def player_keys(noise_key: int, players: int, stream: Stream) -> Keys:
    """The keys of the players' random numbers in one episode, uint64 (players,).

    Player 0 has the episode's own key, which is the single environment's; player i one that is hashed from that and i.
    A player's luck depends neither on how many play nor on what they do.
    """
    others = [stream_key(player << 64 | noise_key, stream) for player in range(1, players)]
    return np.array([noise_key, *others], np.uint64)
