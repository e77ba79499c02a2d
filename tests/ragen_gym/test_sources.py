"""House rules that the sources themselves must keep."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ragen_gym

ROOT = Path(ragen_gym.__file__).parent
#: These look at global random state, the audit at the clock and at processes too, as others' environments use them.
LOOKS = {ROOT / "testing" / "tasks.py", *ROOT.joinpath("audit").rglob("*.py")}
SOURCES = sorted({*ROOT.rglob("*.py")} - LOOKS)

#: numpy.random's names that are not the global generator.
PRIVATE = {"Generator", "default_rng", "SeedSequence", "PCG64"}
#: Where a clock may be read: what times, shows or serves, and never decides what happens in a game; when a kernel is
#: compiled (``_jit.py``), and how many levels are made at once (``episode_stream.py``).
CLOCKED = {"atropos.py", "sb3.py", "bench", "cli", "console.py", "inference", "render", "serve", "_jit.py"}
CLOCKED |= {"episode_stream.py"}

IMPURE_MODULES = {"random", "secrets", "uuid"}
#: Random names of temporary files decide nothing.
ALLOWED = {"storage.py": ["secrets.token_hex"], "validate.py": ["time"]}  # the seconds of a check, in OpenEnv's report
CLOCKS = {"time", "datetime"}
IMPURE_CALLS = {"os.urandom", "os.getpid", "os.getrandom"}


def faults(source: str, clock: bool) -> list[str]:
    """What a source uses of global random state, `hash()`, the process id and, unless it may, the clock."""
    tree, found = ast.parse(source), []
    forbidden = IMPURE_MODULES if clock else IMPURE_MODULES | CLOCKS
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            found.append("hash()")
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            module, _, name = path.rpartition(".")
            if module in ("np.random", "numpy.random") and name not in PRIVATE:
                found.append(path)
            if path in IMPURE_CALLS:
                found.append(path)
        found += [name for name in names if name.split(".")[0] in forbidden]
        found += [name for name in names if name.startswith("numpy.random.") and name.split(".")[2] not in PRIVATE]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_global_decides_what_happens(path: Path) -> None:
    clock = bool(CLOCKED & set(path.relative_to(ROOT).parts))
    assert faults(path.read_text(encoding="utf-8"), clock) == ALLOWED.get(path.name, [])


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from random import choice",
        "import numpy as np\nnp.random.seed(0)",
        "import numpy as np\nnp.random.rand()",
        "from numpy.random import rand",
        "hash('x')",
        "import time",
        "from time import perf_counter",
        "import os\nos.getpid()",
        "import uuid",
    ],
)
def test_the_search_finds_it(source: str) -> None:
    assert faults(source, clock=False)


def test_the_search_lets_pass_what_may() -> None:
    assert not faults("import numpy as np\nnp.random.default_rng(0)\nenv.np_random.integers(3)", clock=False)
    assert not faults("import time", clock=True)
    assert faults("import random", clock=True)


HEAVY = ("numba", "pygame", "torch", "transformers", "hypothesis", "pettingzoo", "matplotlib", "PIL")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import ragen_gym",
        "import ragen_gym; ragen_gym.make_turn; ragen_gym.StepEnv",
        "import gymnasium, ragen_gym; gymnasium.make('ragen/FrozenLake-v0')",
        "import ragen_gym; ragen_gym.make_turn('Bandit').reset(seed=0)",
    ],
)
def test_import_is_light(code: str) -> None:
    check = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == ""


def test_public_names_are_there() -> None:
    for name in ragen_gym.__all__:
        assert getattr(ragen_gym, name) is not None
    with pytest.raises(AttributeError, match="module 'ragen_gym' has no attribute 'Chess'"):
        ragen_gym.Chess  # noqa: B018


def test_the_wrappers_need_no_import_of_their_own() -> None:
    program = "import ragen_gym; print(ragen_gym.wrappers.OneHotPlanes.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "OneHotPlanes"
