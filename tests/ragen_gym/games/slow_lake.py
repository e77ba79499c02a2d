"""The rules of FrozenLake once more, slow and plain, for the tests to believe."""

from __future__ import annotations

from collections import deque

CLOCKWISE = ("Up", "Right", "Down", "Left")
COMPASS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


class SlowLake:
    """The rules once more, with a dictionary of places and the directions of a compass."""

    def __init__(self, text: str, success_rate: float) -> None:
        self.cells = {(r, c): symbol for r, row in enumerate(text.split("\n")) for c, symbol in enumerate(row)}
        self.player = next(place for place, symbol in self.cells.items() if symbol == "P")
        self.cells[self.player] = "_"
        self.success_rate = success_rate
        self.moves = 0

    def step(self, name: str, u: float) -> tuple[float, bool, bool]:
        """(reward, terminated, success)."""
        turn = 0 if u < self.success_rate else -1 if u < (1 + self.success_rate) / 2 else 1
        down, right = COMPASS[CLOCKWISE[(CLOCKWISE.index(name) + turn) % 4]]
        target = self.player[0] + down, self.player[1] + right
        if target in self.cells:
            self.player = target
        self.moves += 1
        here = self.cells[self.player]
        return float(here == "G"), here in "GO", here == "G"

    def text(self) -> str:
        rows, columns = (1 + max(axis) for axis in zip(*self.cells, strict=True))
        shown = {**self.cells, self.player: {"_": "P", "O": "X", "G": "√"}[self.cells[self.player]]}
        return "\n".join("".join(shown[r, c] for c in range(columns)) for r in range(rows))


def bfs(text: str) -> int:
    """Moves on a shortest path from the player to the goal, or -1."""
    lake = SlowLake(text, 1.0)
    distance = {lake.player: 0}
    queue = deque([lake.player])
    while queue:
        row, column = place = queue.popleft()
        if lake.cells[place] == "G":
            return distance[place]
        for down, right in COMPASS.values():
            target = row + down, column + right
            if lake.cells.get(target, "O") != "O" and target not in distance:
                distance[target] = distance[place] + 1
                queue.append(target)
    return -1
