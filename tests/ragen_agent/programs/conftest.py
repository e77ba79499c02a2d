"""A worker of the small model in an episode, reached over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ragen_agent.run.policy import Policy
from tests.ragen_agent.programs.served import Served, serving, small


@pytest.fixture(scope="module")
def agent() -> Policy:
    return small()


@pytest.fixture
def served(agent: Policy) -> Iterator[Served]:
    with serving(agent) as found:
        yield found
