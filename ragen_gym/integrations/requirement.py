"""Advice on installing the library of an adapter where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def requirement(install: str) -> Iterator[None]:
    """Imports that need a library.

    Args:
        install: what pip installs, such as ``"openreward>=0.1.167"``.

    Raises:
        ModuleNotFoundError: a module is missing; the message says what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: run `pip install {install}`.", name=error.name) from error
