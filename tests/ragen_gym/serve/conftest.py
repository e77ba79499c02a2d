"""One server for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ragen_gym.serve import serving


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a server in a thread of this process."""
    with serving() as url:
        yield url


@pytest.fixture
def http(server: str) -> Iterator[httpx.Client]:
    """Plain requests to it."""
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client
