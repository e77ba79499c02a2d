"""Kernels run as Python until they are compiled, and give the same bits in both forms."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games import _jit
from ragen_gym.games.frozen_lake.generate import fill_bitboards
from ragen_gym.games.registry import TABLE, build_game
from ragen_gym.games.sokoban import generate
from ragen_gym.games.sokoban.solve import find_plan


def run_python(program: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """A program in a new process, for which nothing is compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_a_first_episode_waits_for_no_compiler(name: str, tmp_path: Path) -> None:
    program = f"""
import sys, gymnasium, ragen_gym
env = gymnasium.make("ragen/{name}-v0")
env.reset(seed=0)
env.step(0)
ragen_gym.make_turn("{name}").reset(seed=0)
assert "numba" not in sys.modules
"""
    done = run_python(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


CHOICES: list[tuple[str, dict[str, Any], str | None]] = [
    ("FrozenLake", {}, None),
    ("FrozenLake", {"height": 3, "width": 7, "frozen_prob": 0.6, "min_path": 3}, "test"),
    ("FrozenLake", {"size": 8, "random_start": False, "frozen_prob": 0.9}, "train"),
    ("FrozenLake", {"height": 9, "width": 8, "min_path": 4}, "validation"),
    ("FrozenLake", {"height": 2, "width": 64}, None),
    ("Sokoban", {}, "train"),
    ("Sokoban", {"min_moves": 4, "max_moves": 10}, None),
    ("Sokoban", {"height": 8, "width": 6, "boxes": 2, "search_depth": 20}, "test"),
    ("Sokoban", {"size": 7, "boxes": 2, "search_depth": 30}, None),
    ("Sokoban", {"size": 8, "boxes": 3, "generator": "reverse_walk", "min_moves": 9}, None),
    ("LargeSokoban", {}, "validation"),
]


@pytest.mark.parametrize(("name", "options", "split"), CHOICES)
def test_both_forms_make_the_same_levels(
    name: str, options: dict[str, Any], split: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, keys = build_game(TABLE[name], options), episode_keys(11, 0, 3)

    def made() -> Any:
        boards = np.concatenate([game.generate(keys[i : i + 1], split) for i in range(len(keys))])
        owners = [game.split_of(bytes(board)) for board in boards]
        return boards.tolist(), game.starts(boards).tolist(), game.ids(boards), owners

    with _jit.compiling():
        compiled = made()
    only_python(monkeypatch)
    assert made() == compiled


def only_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all kernels as Python, however long they take."""

    def plain(kernel: _jit.Kernel[Any, Any], *args: Any) -> Any:
        with np.errstate(over="ignore"):
            return kernel.plain(*args)

    monkeypatch.setattr(_jit.Kernel, "__call__", plain)
    monkeypatch.setattr(_jit, "LEVEL_SECONDS", math.inf)


def test_both_forms_of_the_solver_find_the_same_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    game = build_game(TABLE["LargeSokoban"], {})
    boards = [*map(bytes, game.generate(episode_keys(5, 0, 4), None))]

    def plans() -> list[Any]:
        return [find_plan(board, game.width) for board in boards]

    with _jit.compiling():
        compiled = plans()
    only_python(monkeypatch)
    assert plans() == compiled


def test_a_level_that_takes_long_as_python_is_begun_anew_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    game = build_game(TABLE["Sokoban"], {"size": 8, "boxes": 2})
    keys = episode_keys(7, 0, 3)
    with _jit.compiling():
        boards = game.generate(keys, None)
    kernels = [each for each in vars(generate).values() if isinstance(each, _jit.Kernel)]
    for each in kernels:  # as in a process that has compiled nothing
        monkeypatch.setattr(each, "_ready", set())
    monkeypatch.setattr(_jit, "LEVEL_SECONDS", 0.0)
    assert game.generate(keys, None).tolist() == boards.tolist()
    assert any(each.is_ready for each in kernels)


def test_what_has_run_long_as_python_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    game, keys = build_game(TABLE["FrozenLake"], {}), episode_keys(3, 0, 2)
    monkeypatch.setattr(fill_bitboards, "_ready", set())
    monkeypatch.setattr(_jit, "_plain_seconds", 0.0)
    boards = game.generate(keys, None)
    assert not fill_bitboards.is_ready
    monkeypatch.setattr(_jit, "_plain_seconds", _jit.PLAIN_SECONDS)
    assert game.generate(keys, None).tolist() == boards.tolist()
    assert fill_bitboards.is_ready


@pytest.mark.slow
def test_a_batch_says_what_it_waits_for(tmp_path: Path) -> None:
    program = """
import sys, gymnasium, ragen_gym
from ragen_gym.games import _jit
_jit.NOTICE_SECONDS = 0.0

@_jit._numba().njit
def not_ours(x):
    return x + 1

not_ours(1)
print("now the batch", file=sys.stderr, flush=True)
env = gymnasium.make_vec("ragen/Bandit-v0", 2)
env.reset(seed=0)
"""
    done = run_python(program, tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("now the batch")
    assert done.stderr.count("numba compiles the game") == 1
