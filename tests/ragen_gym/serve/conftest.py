"""One server for all tests that do not need limits of their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ragen_gym.serve import Limits, serving


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a server in a thread of this process."""
    with serving(Limits()) as url:
        yield url


@pytest.fixture
def http(server: str) -> Iterator[httpx.Client]:
    """Plain requests to it."""
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client
