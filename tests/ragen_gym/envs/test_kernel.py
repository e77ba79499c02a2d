"""The compiled loops, alone, against plain numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.levels import SPLITS
from ragen_gym.core.seeding import episode_keys
from ragen_gym.envs import kernel
from ragen_gym.games._jit import compiled_with
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.frozen_lake.generate import fill_arrays, fill_bitboards


@pytest.mark.parametrize("width", [*range(1, 20), 64])
def test_grids_are_boards_without_their_edges(width: int) -> None:
    rng = np.random.default_rng(width)
    for height in (1, 2, 5):
        grids = rng.integers(0, 200, (7, height, width)).astype(np.uint8)
        boards = np.pad(grids, ((0, 0), (0, 0), (0, 1)), constant_values=255).reshape(7, -1)[:, :-1]
        out = np.zeros_like(grids)
        kernel.grids(np.ascontiguousarray(boards), out)
        np.testing.assert_array_equal(out, grids)


@pytest.mark.slow
@given(
    size=st.tuples(st.integers(2, 32), st.integers(2, 32)).filter(lambda size: size[0] * size[1] <= 64),
    chance=st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.999, 1.0]),
    min_path=st.integers(1, 4),
    random_start=st.booleans(),
    split=st.sampled_from([None, *SPLITS]),
    count=st.sampled_from([1, 50, 64, 150]),
    steps=st.sampled_from([0, 0, 30]),
    seed=st.integers(0, 2**32),
)
def test_lakes_are_the_same_whether_drawn_as_bits_or_as_arrays(
    size: tuple[int, int],
    chance: float,
    min_path: int,
    random_start: bool,
    split: str | None,
    count: int,
    steps: int,
    seed: int,
) -> None:
    game, keys = FrozenLake(height=size[0], width=size[1]), episode_keys(seed, 0, count)
    drawn, beyond = [], (np.asarray(game.params[0]), 0.8, steps)
    for fill in (fill_bitboards, fill_arrays):
        boards = np.zeros((count, game.cells), np.uint8)
        threshold = np.uint64(round(chance * 2**32))
        failed = fill(keys, boards, size, threshold, min_path, random_start, game.split_key(split), 20, beyond)
        drawn.append((failed, boards[: failed if failed >= 0 else count].tolist()))
    assert drawn[0] == drawn[1]


def test_rules_that_differ_in_what_they_close_over_are_two() -> None:
    def rule_of(gain: float) -> Any:
        def rule(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
            return gain * action, 0

        return rule

    for gain in (1.0, 2.0):
        assert compiled_with(_pay, rule=rule_of(gain))(np.zeros(3, np.uint8), 3) == 3 * gain


@pytest.mark.slow
def test_cached_code_follows_every_file_that_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "from ragen_gym.games._jit import compiled\nfrom inner import FEE, pay\n"
        "@compiled\ndef price(x):\n    return pay(x) + FEE\nprint(price(3))\n"
    )
    printed = []
    for fee, factor in ((1, 2), (5, 2), (5, 9), (5, 9)):
        (tmp_path / "inner.py").write_text(
            f"from ragen_gym.games._jit import compiled\nFEE = {fee}\n@compiled\ndef pay(x):\n    return {factor} * x\n"
        )
        run = subprocess.run(
            [sys.executable, "-B", "outer.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        printed.append(int(run.stdout))
    assert printed == [7, 11, 32, 32]
    assert len([*(tmp_path / "__pycache__").glob("outer.price*.nbc")]) == 3


def rule(board: np.ndarray, state: int, action: int, u: float, params: int) -> tuple[float, int]:
    raise NotImplementedError


def _pay(board: np.ndarray, action: int) -> float:
    return rule(board, 0, action, 0.0, 0)[0]


@pytest.mark.slow
def test_kernels_of_two_games_do_not_displace_each_other() -> None:
    program = """
import gymnasium, ragen_gym, numpy as np
for name in ("FrozenLake", "Bandit", "FrozenLake"):
    env = gymnasium.make_vec(f"ragen/{name}-v0", 3)
    env.reset(seed=0)
    print([env.step([1, 0, 1])[1].tolist() for _ in range(4)])
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    lines = runs[0].stdout.splitlines()
    assert lines[0] == lines[2] != lines[1]
