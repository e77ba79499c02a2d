"""How many boxes a level of some size can have at all."""

from __future__ import annotations

__all__ = ["most_boxes"]

#: By the rows and columns within the walls, fewer rows than columns: the most boxes that can all start off target and
#: all end on one, in a room without inner walls (a wall only takes moves away). Found by playing backwards from every
#: choice of targets; larger rooms are not known.
_SMALL_ROOMS = {
    (2, 2): 0,
    (2, 3): 2,
    (2, 4): 2,
    (2, 5): 4,
    (2, 6): 4,
    (2, 7): 5,
    (2, 8): 5,
    (3, 3): 3,
    (3, 4): 4,
    (3, 5): 6,
    (3, 6): 7,
    (4, 4): 6,
    (4, 5): 8,
}


def most_boxes(height: int, width: int) -> int:
    """No level with more boxes has a solution and starts with every box off target.

    Args:
        height: rows of the board with its border of walls.
        width: columns of the board with its border of walls.
    """
    rows, columns = sorted((height - 2, width - 2))
    cells = (rows * columns - 1) // 2  # boxes, as many targets, and the player
    if rows == 1:  # the player can push a box to either side, and never gets past one
        return min(2, cells)
    return _SMALL_ROOMS.get((rows, columns), cells)
