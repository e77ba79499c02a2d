"""Small environments for the audit: a sound one of each kind, and ones that each have a single fault."""

from __future__ import annotations

import itertools
import os
import random  # noqa: TID251  # faults
import time
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
SIZE = 6
Cell = tuple[int, int]


class Maze(gymnasium.Env[Any, int]):
    """A walk to a goal, sound in every respect. noise_seed: none is needed, it has no noise."""

    def __init__(self, split: str | None = None) -> None:
        self.split = split
        self.action_space: Any = spaces.Discrete(4)
        self.observation_space = spaces.Text(SIZE * (SIZE + 1), charset="#.PGW\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        while True:
            self.draw()
            held_out = zlib.crc32("".join(self.rows(player=False)).encode()) % 4 == 0
            if self.acceptable() and self.split in (None, "test" if held_out else "train"):
                break
        self.steps, self.over = 0, False
        return self.observation(), self.info()

    def draw(self) -> None:
        cells = [(int(place) // SIZE, int(place) % SIZE) for place in self.np_random.permutation(SIZE * SIZE)[:10]]
        self.place(cells[0], cells[1], set(cells[2:]))

    def place(self, player: Cell, goal: Cell, walls: set[Cell]) -> None:
        self.player, self.goal, self.walls = player, goal, walls

    def acceptable(self) -> bool:
        return self.distance() >= 2

    def distance(self) -> int:
        reached, border, steps = {self.player}, {self.player}, 0
        while border and self.goal not in reached:
            border = {new for at in border for move in MOVES if (new := self.moved(at, move)) not in reached}
            reached |= border
            steps += 1
        return steps if self.goal in reached else -1

    def moved(self, at: Cell, move: Cell) -> Cell:
        new = at[0] + move[0], at[1] + move[1]
        return new if max(new) < SIZE and min(new) >= 0 and new not in self.walls else at

    def rows(self, player: bool = True) -> list[str]:
        grid = [["#" if (y, x) in self.walls else "." for x in range(SIZE)] for y in range(SIZE)]
        grid[self.goal[0]][self.goal[1]] = "G"
        if player:
            grid[self.player[0]][self.player[1]] = "W" if self.player == self.goal else "P"
        return ["".join(row) for row in grid]

    def observation(self) -> Any:
        return "\n".join(self.rows())

    def info(self) -> dict[str, Any]:
        return {"success": self.player == self.goal}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(action, bool) or not self.action_space.contains(action):
            raise ValueError(f"action={action!r} is not one of 0 to 3.")
        if self.over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset().")
        self.player = self.moved(self.player, MOVES[self.direction(int(action))])
        self.steps += 1
        won = self.player == self.goal
        self.over = won or self.steps >= 20
        return self.observation(), float(won), won, self.over and not won, self.info()

    def direction(self, action: int) -> int:
        return action


class SlipperyMaze(Maze):
    """With noise, and ``options={"noise_seed": k}`` for the seed of it alone: sound."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Takes ``noise_seed``."""
        found = super().reset(seed=seed)
        self.noise = np.random.default_rng([seed or 0, (options or {}).get("noise_seed", 0)])
        return found

    def direction(self, action: int) -> int:
        return int(self.noise.choice([action, (action + 1) % 4]))


class OwnGenerator(Maze):
    """Slips by a generator of its own, beside the one that Gymnasium seeds: sound."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.slips = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def direction(self, action: int) -> int:
        return int(self.slips.choice([action, (action + 1) % 4]))


class TakesAny(Maze):
    """Takes its seed among arguments of any name: sound."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**arguments)


class Swallows(Maze):
    """Takes options of any name, and reads none: sound, and without splits."""

    def __init__(self, **options: Any) -> None:
        super().__init__()


class UnsplitMaze(Maze):
    """Declares no split: sound."""

    def __init__(self) -> None:
        super().__init__()


class HidesLevel(UnsplitMaze):
    """Every episode begins alike, and its first step shows the level: sound."""

    def observation(self) -> Any:
        return super().observation() if self.steps else "begin"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)


def many() -> Any:
    return gymnasium.vector.SyncVectorEnv([Maze, Maze])


class Sum(gymnasium.Env[str, str]):
    """A question that is answered in one reply: sound."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.numbers = [int(number) for number in self.np_random.integers(0, 5, 2)]
        return f"Question {self.np_random.integers(10**9)}: what is {self.numbers[0]} + {self.numbers[1]}?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", self.score(action), True, False, {}

    def score(self, reply: str) -> float:
        return float(reply == str(sum(self.numbers)))


class Parser(Sum):
    """Declares that any text is an action: sound."""

    action_space = spaces.Text(12)


# Each class below has one fault, which its name says.


class IgnoresSeed(Maze):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.np_random = np.random.default_rng()
        return super().reset(seed=None)


class HashesSeed(Maze):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else hash(str(seed)) % 2**32)


class SeedsGlobal(Maze):
    """Draws from the global generator that it has seeded, with a pause in between."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        random.seed(seed)
        time.sleep(0.002)
        return super().reset(seed=random.randrange(2**31))


class AwaitedMaze:
    """A maze whose ``reset`` and ``step`` are coroutines: sound."""

    kind: type[Maze] = Maze
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.maze = self.kind()

    async def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        return self.maze.reset(seed=seed)

    async def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.maze.step(action)
        return observation, reward, terminated or truncated, info

    async def close(self) -> None:
        self.maze.close()


class AwaitedSeedsGlobal(AwaitedMaze):
    kind = SeedsGlobal


class KeepsHistory(Maze):
    history = ""

    def observation(self) -> Any:
        self.history += super().observation() + "\n\n"
        return self.history


class ReadsGlobal(Maze):
    def direction(self, action: int) -> int:
        return random.randrange(4)


class MovesGlobal(Maze):
    def direction(self, action: int) -> int:
        random.random()
        return action


class CountsMembers(Maze):
    """The level depends on how many environments were made before."""

    made = itertools.count()

    def __init__(self, split: str | None = None) -> None:
        super().__init__(split)
        self.number = next(self.made)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else seed + self.number)


class SameSplits(Maze):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.split = None
        return super().reset(seed=seed)


class TenLevels(UnsplitMaze):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else seed % 10)


class HidesTenLevels(TenLevels, HidesLevel):
    pass


class OutOfSpace(Maze):
    def observation(self) -> Any:
        return super().observation().replace("P", "p")


class PaysSilence(Sum):
    def score(self, reply: str) -> float:
        return super().score(reply) if reply.strip() else 0.5


class PaysAfterEnd(Maze):
    def step(self, action: int) -> Any:
        if self.over:
            return self.observation(), 1.0, True, False, self.info()
        observation, reward, *_, info = super().step(action)
        self.over = self.steps >= 3
        return observation, reward, self.over, False, info


class RefusesAction(Maze):
    def direction(self, action: int) -> int:
        if action == 3:
            raise RuntimeError("no way")
        return action


class FailsSometimes(Maze):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None and seed % 5 == 0:
            raise RuntimeError("no level was found")
        return super().reset(seed=seed)


class EndsProcess(Maze):
    def direction(self, action: int) -> int:
        if self.steps > 2:
            os._exit(3)
        return action


class Hangs(Maze):
    def direction(self, action: int) -> int:
        if self.steps > 2:
            time.sleep(3600)
        return action
