"""The game of the reward-hacking bench is in the table of games only where a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest

from benchmarks import loopholes
from ragen_gym import register
from ragen_gym.games.registry import TABLE

_NAME = loopholes.LoopholeLake.name
_SPEC = TABLE[_NAME]


def _forget() -> None:
    TABLE.pop(_NAME, None)
    gymnasium.registry.pop(f"ragen/{_NAME}-v0", None)


_forget()  # importing the module has registered it, and other folders test every game that is registered


@pytest.fixture(scope="module")
def loophole_lake() -> Iterator[None]:
    """The game, registered while the tests of a module run."""
    register(_SPEC)
    yield
    _forget()
