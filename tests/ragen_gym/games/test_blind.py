"""Blind scripts against scripts written apart, which play boards as text by rules of their own."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_gym import StepEnv
from ragen_gym.bench.suites import Split, load_suite
from ragen_gym.envs.policies import blind_policy, blind_value, play_episode
from ragen_gym.games.game import Game

Cell = tuple[int, int]
WAYS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def cells_of(text: str, symbols: str) -> list[Cell]:
    rows = text.split("\n")
    return [(r, c) for r, row in enumerate(rows) for c, symbol in enumerate(row) if symbol in symbols]


def crosses(text: str, moves: int) -> bool:
    """Walk vertically, then horizontally, over a lake on which nothing slips."""
    (row, column), (goal_row, goal_column) = cells_of(text, "P")[0], cells_of(text, "G")[0]
    down, right = goal_row - row, goal_column - column
    way = [(row + (k if down > 0 else -k), column) for k in range(1, abs(down) + 1)]
    way += [(goal_row, column + (k if right > 0 else -k)) for k in range(1, abs(right) + 1)]
    return len(way) <= moves and not set(way) & set(cells_of(text, "O"))


Boxes = frozenset[Cell]


def pushed(player: Cell, boxes: Boxes, way: str, walls: set[Cell]) -> tuple[Cell, Boxes]:
    there = player[0] + WAYS[way][0], player[1] + WAYS[way][1]
    beyond = there[0] + WAYS[way][0], there[1] + WAYS[way][1]
    if there in walls or (there in boxes and (beyond in walls or beyond in boxes)):
        return player, boxes
    return there, (boxes - {there}) | {beyond} if there in boxes else boxes


def first_move(player: Cell, boxes: Boxes, targets: set[Cell], border: set[Cell]) -> str:
    """Breadth-first search among the border alone: what it finds first comes first in the order of the moves."""
    met, waiting = {(player, boxes)}, deque([(player, boxes, "")])
    while waiting:
        player, boxes, first = waiting.popleft()
        for way in WAYS:
            now = pushed(player, boxes, way, border)
            if now[1] <= targets:
                return first or way
            if now not in met:
                met.add(now)
                waiting.append((*now, first or way))
    return "Up"


def sorts(text: str, moves: int) -> bool:
    """Push every box onto a target by plans that know of no inner wall."""
    walls, targets = set(cells_of(text, "#")), set(cells_of(text, "O√S"))
    (player,), boxes = cells_of(text, "PS"), frozenset(cells_of(text, "X√"))
    last_row, last_column = max(walls)
    border = {(r, c) for r, c in walls if r in (0, last_row) or c in (0, last_column)}
    for _ in range(moves):
        now = pushed(player, boxes, first_move(player, boxes, targets, border), walls)
        if now[1] <= targets or now == (player, boxes):
            return now[1] <= targets
        player, boxes = now
    return False


def won(split: Split) -> list[bool]:
    """The instances that the game's script wins."""
    env, found = split.make_game(), []
    for index in range(len(split.levels)):
        split.begin(env.env, index, 0)
        found.append(play_episode(env.env, blind_policy, env.action_budget).success)
    return found


def split_of(suite: str, name: str) -> Split:
    return next(split for split in load_suite(suite).splits if split.name == name)


@pytest.mark.parametrize(("suite", "percent"), [("ragen-2", 84.8), ("vagen-v1", None)])
def test_lakes(suite: str, percent: float | None) -> None:
    split = split_of(suite, "frozen_lake")
    moves = split.make_game().action_budget
    apart = [crosses(level.text, moves) for level in split.boards]
    assert apart == won(split)
    assert percent is None or round(100 * np.mean(apart), 1) == percent


@pytest.mark.parametrize(("suite", "percent"), [("ragen-v1", 88.7), ("ragen-2", None)])
def test_boards_of_one_box(suite: str, percent: float | None) -> None:
    split = split_of(suite, "sokoban")
    apart = [sorts(level.text, split.make_game().action_budget) for level in split.boards]
    assert apart == won(split)
    assert percent is None or round(100 * np.mean(apart), 1) == percent


@pytest.mark.parametrize(("name", "rate"), [("Bandit", 1.0), ("BanditRev", 0.0)])
def test_a_bandits_script_believes_the_names(name: str, rate: float) -> None:
    env = StepEnv(name)
    for seed in range(20):
        env.reset(seed=seed)
        assert blind_value(env, 1)[0] == rate


def test_the_value_of_a_slippery_lake_is_that_of_many_episodes() -> None:
    env, board = StepEnv("FrozenLake", success_rate=0.8, levels=["P___\n_O__\n____\n__G_"]), 0
    env.reset(options={"level": board})
    success, total = blind_value(env, 10)
    won = []
    for noise in range(4000):
        env.reset(options={"level": board, "noise_seed": noise})
        won.append(play_episode(env, blind_policy, 10).success)
    assert success == total
    assert np.mean(won) == pytest.approx(success, abs=4 * (success * (1 - success) / 4000) ** 0.5)
    assert 0.5 < success < 0.95


def test_a_game_without_a_script_says_how_to_add_one(monkeypatch: pytest.MonkeyPatch) -> None:
    env = StepEnv("FrozenLake")
    env.reset(seed=0)
    monkeypatch.setattr(type(env.game), "blind", Game.blind)
    with pytest.raises(ValueError, match=r"FrozenLake has no blind script: give its class `blind = staticmethod"):
        blind_policy(env, 10)


# Levels beyond the blind script


def chances(text: str, moves: int) -> tuple[float, float]:
    """(The script's chance of the goal, the best one) on a lake that slips to each side with chance 1/3."""
    rows, directions = text.split("\n"), [(0, -1), (1, 0), (0, 1), (-1, 0)]
    (goal,), (start,) = cells_of(text, "G"), cells_of(text, "P")

    @cache
    def value(cell: Cell, left: int, script: bool) -> float:
        if rows[cell[0]][cell[1]] == "O" or cell == goal or left == 0:
            return float(cell == goal)
        down, right = goal[0] - cell[0], goal[1] - cell[1]
        ahead = (1 if down > 0 else 3) if down else (2 if right > 0 else 0)
        found = []
        for action in (ahead,) if script else range(4):
            ends = []
            for way in (action - 1, action, action + 1):
                row, column = cell[0] + directions[way % 4][0], cell[1] + directions[way % 4][1]
                inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
                ends.append(value((row, column) if inside else cell, left - 1, script))
            found.append(sum(ends) / 3)
        return max(found)

    return value(start, moves, True), value(start, moves, False)


def test_slippery_lakes_beyond_the_script() -> None:
    lost = set[bool]()
    for seed in range(100):
        for beyond in (False, True):
            script, best = chances(StepEnv("FrozenLake", split="test", beyond_blind=beyond).reset(seed=seed)[0], 32)
            lost.add(script < best / 2)
            assert not beyond or script < best / 2
    assert lost == {False, True}


@pytest.mark.parametrize("size", [(3, 5), (8, 8), (5, 14)])
def test_lakes_of_any_size_beyond_the_script(size: tuple[int, int]) -> None:
    """Boards of up to 64 cells, and larger ones, are drawn by different kernels."""
    env = StepEnv("FrozenLake", height=size[0], width=size[1], success_rate=1, beyond_blind=True)
    for seed in range(20):
        assert not crosses(env.reset(seed=seed)[0], 100)


def test_no_lake_without_holes_is_beyond_the_script() -> None:
    with pytest.raises(ValueError, match=r"beyond_blind=True.* or leave beyond_blind out"):
        StepEnv("FrozenLake", frozen_prob=1, beyond_blind=True).reset(seed=0)


@pytest.mark.parametrize("boxes", [1, 2])
def test_boards_beyond_the_script(boxes: int) -> None:
    env = gymnasium.make("ragen/Sokoban-v0", boxes=boxes, split="test", beyond_blind=True)
    for seed in range(30):
        text, _ = env.reset(seed=seed)
        assert not sorts(text, 30)


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban", "LargeSokoban"])
def test_a_level_that_the_script_loses_stays(name: str) -> None:
    options: dict[str, Any] = {"success_rate": 1} if name == "FrozenLake" else {}
    env, hard = StepEnv(name, **options), StepEnv(name, **options, beyond_blind=True)
    kept = 0
    for seed in range(200):
        first = env.reset(seed=seed)[0]
        if not play_episode(env, blind_policy, 1000).success:
            assert hard.reset(seed=seed)[0] == first
            kept += 1
    assert 0 < kept < 150


@pytest.mark.parametrize("name", ["Bandit", "BanditRev"])
def test_bandits_have_no_such_levels(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"has no option 'beyond_blind'.* Here beyond_blind is without meaning: the blind"
    ):
        gymnasium.make(f"ragen/{name}-v0", beyond_blind=True)
