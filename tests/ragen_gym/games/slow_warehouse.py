"""The rules of Sokoban once more, slow and plain, and searches through everything, for the tests to believe."""

from __future__ import annotations

from itertools import count

WAYS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
Cell = tuple[int, int]
Place = tuple[Cell, frozenset[Cell]]


class SlowWarehouse:
    """The rules as sets of cells."""

    def __init__(self, text: str) -> None:
        self.cells = {(r, c): symbol for r, row in enumerate(text.split("\n")) for c, symbol in enumerate(row)}
        self.floor = {cell for cell, symbol in self.cells.items() if symbol != "#"}
        self.targets = frozenset(cell for cell, symbol in self.cells.items() if symbol in "O√SR")
        self.boxes = frozenset(cell for cell, symbol in self.cells.items() if symbol in "X√")
        self.player = next(cell for cell, symbol in self.cells.items() if symbol in "PS")

    def after(self, place: Place, name: str) -> tuple[Place, bool]:
        """Where a move leads, and whether it pushes."""
        (player, boxes), (down, right) = place, WAYS[name]
        target = player[0] + down, player[1] + right
        beyond = target[0] + down, target[1] + right
        if target not in self.floor:
            return place, False
        if target not in boxes:
            return (target, boxes), False
        if beyond not in self.floor or beyond in boxes:
            return place, False
        return (target, boxes - {target} | {beyond}), True

    def step(self, name: str) -> tuple[float, bool]:
        """(reward, whether the game is won)."""
        placed = len(self.boxes & self.targets)
        (self.player, self.boxes), _ = self.after((self.player, self.boxes), name)
        reward, won = -0.1 + len(self.boxes & self.targets) - placed, self.boxes == self.targets
        return (reward + 10 if won else reward), won

    def moves(self) -> list[str]:
        """The moves that change something."""
        place = self.player, self.boxes
        return [name for name in WAYS if self.after(place, name)[0] != place]

    def text(self) -> str:
        rows, columns = (1 + max(axis) for axis in zip(*self.cells, strict=True))
        return "\n".join("".join(self.symbol((r, c)) for c in range(columns)) for r in range(rows))

    def symbol(self, cell: Cell) -> str:
        if cell not in self.floor:
            return "#"
        on_target = cell in self.targets
        if cell == self.player:
            return "S" if on_target else "P"
        if cell in self.boxes:
            return "√" if on_target else "X"
        return "O" if on_target else "_"

    def fewest(self) -> int | None:
        """The moves of a shortest plan: breadth-first search through all places."""
        places, seen = [(self.player, self.boxes)], {(self.player, self.boxes)}
        for moves in count():
            if any(boxes == self.targets for _, boxes in places):
                return moves
            reached = {self.after(place, name)[0] for place in places for name in WAYS} - seen
            if not reached:
                return None
            seen |= reached
            places = [*reached]
        raise AssertionError("unreachable")


def pull_search(floor: set[Cell], targets: list[Cell], player: Cell, depth: int) -> tuple[int, Cell, list[Cell], int]:
    """The depth-first search of the paper's generator as its documentation tells it, by recursion.

    Returns (best score, player, boxes, displacement of the boxes).
    """
    best = [(0, player, list(targets), 0)]
    seen = set()

    def visit(player: Cell, boxes: list[Cell], pulled: list[bool], turns: int, last: int, left: int) -> None:
        state = player, frozenset(zip(boxes, pulled, strict=True))
        if left <= 0 or state in seen:
            return
        seen.add(state)
        apart = sum(abs(r - y) + abs(c - x) for (r, c), (y, x) in zip(boxes, targets, strict=True))
        covered = player in targets or any(box in targets for box in boxes)
        if not covered and turns * apart > best[0][0]:
            best[0] = turns * apart, player, list(boxes), apart
        for down, right in WAYS.values():
            there, behind = (player[0] + down, player[1] + right), (player[0] - down, player[1] - right)
            if there not in floor or there in boxes:
                continue
            if behind in boxes:
                j = boxes.index(behind)
                moved, marks = [*boxes[:j], player, *boxes[j + 1 :]], [*pulled[:j], True, *pulled[j + 1 :]]
                visit(there, moved, marks, turns + (j != last), j, left - 1)
            else:
                visit(there, boxes, pulled, turns, last, left - 1)

    visit(player, list(targets), [False] * len(targets), 0, -1, depth - 1)
    return best[0]
