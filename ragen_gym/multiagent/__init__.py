"""The games for several players, as PettingZoo environments (extra ``multiagent``).

``parallel_env`` gives a game as a Parallel environment, all moves of a cycle at once; ``env`` gives the same game turn
by turn (AEC), by PettingZoo's own conversion. What the players do to each other is said by ``SokobanTeam``,
``FrozenLakeRace`` and ``BanditContest``; what they have in common by ``ParallelGame``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragen_gym.games.registry import TABLE, find

try:
    from pettingzoo.utils import parallel_to_aec, wrappers
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "ragen_gym.multiagent needs PettingZoo: install it with  pip install 'ragen-gym[multiagent]'.",
        name=missing.name,
    ) from missing

if TYPE_CHECKING:
    from ragen_gym.multiagent.parallel import ParallelGame

__all__ = ["GAMES", "env", "parallel_env", "raw_env"]

#: The environment for each kind of game: the class of the game, the class for several players.
GAMES: dict[str, str] = {
    "ragen_gym.games.bandit:Bandit": "ragen_gym.multiagent.bandit:BanditContest",
    "ragen_gym.games.bandit:BanditRev": "ragen_gym.multiagent.bandit:BanditContest",
    "ragen_gym.games.frozen_lake:FrozenLake": "ragen_gym.multiagent.frozen_lake:FrozenLakeRace",
    "ragen_gym.games.sokoban:Sokoban": "ragen_gym.multiagent.sokoban:SokobanTeam",
}


def parallel_env(name: str, *, players: int = 2, **arguments: Any) -> ParallelGame:
    """The game of that name or id for several players, as a Parallel environment.

    Args:
        name: name or id, such as ``"FrozenLake"`` or ``"ragen/FrozenLake-v0"``.
        players: 1 to 4 workers of Sokoban, 1 to 8 players of the other games.
        arguments: those of ``ParallelGame``, and the game's options.

    Raises:
        ValueError: an unknown name, option or value, or a game that is not for several players.
    """
    spec = find(name)
    if spec.game not in GAMES:
        several = ", ".join(other.name for other in TABLE.values() if other.game in GAMES)
        raise ValueError(f"{spec.name} is not a game for several players: choose one of {several}.")
    module, _, class_name = GAMES[spec.game].partition(":")
    made: ParallelGame = getattr(import_module(module), class_name)(name, players=players, **arguments)
    return made


def raw_env(name: str, *, players: int = 2, **arguments: Any) -> Any:
    """The same, turn by turn: ``parallel_env`` converted by PettingZoo's ``parallel_to_aec``."""
    return parallel_to_aec(parallel_env(name, players=players, **arguments))


def env(name: str, *, players: int = 2, **arguments: Any) -> Any:
    """The same in PettingZoo's usual wrappers, which refuse actions outside the space and calls out of order."""
    return wrappers.OrderEnforcingWrapper(
        wrappers.AssertOutOfBoundsWrapper(raw_env(name, players=players, **arguments))
    )
