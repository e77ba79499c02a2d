"""What importing the package costs, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ragen_agent


@pytest.mark.parametrize(
    "code", ["import ragen_agent", "import ragen_agent.cli as c; c.build_parser()"], ids=["package", "list of commands"]
)
def test_importing_is_light(code: str) -> None:
    heavy = "{'torch', 'transformers', 'ray', 'numba', 'pygame'}"
    program = f"import sys; {code}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in ragen_agent.__all__:
        assert getattr(ragen_agent, name).__name__ == name
        assert name in dir(ragen_agent)


def test_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trajectories'; it has ChatFormat"):
        _ = ragen_agent.Trajectories
