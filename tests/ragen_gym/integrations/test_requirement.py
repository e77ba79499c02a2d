"""What an adapter says where its library is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest


@pytest.mark.parametrize(
    ("adapter", "library", "install"),
    [
        ("art", "art", "openpipe-art"),
        ("molt", "molt", "molt-rl"),
        ("ors", "openreward", "'openreward>=0.1.167'"),
        ("skyrl", "skyrl_gym", "skyrl-gym"),
        ("verl", "verl", "verl"),
    ],
)
def test_a_missing_library_is_named_with_its_installation(adapter: str, library: str, install: str) -> None:
    if find_spec(library):
        pytest.skip(f"{library} is installed")
    with pytest.raises(ModuleNotFoundError, match=f"run `pip install {install}`"):
        import_module(f"ragen_gym.integrations.{adapter}")
