"""Sokoban: push every box onto a target, and never into a corner."""

from __future__ import annotations

from array import array
from dataclasses import InitVar, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import level_items
from ragen_gym.core.seeding import Stream
from ragen_gym.core.text import Vocabulary, parse_grid
from ragen_gym.core.validation import check_number, shown
from ragen_gym.games.game import Board, Boards, Solution
from ragen_gym.games.grid import GridGame
from ragen_gym.games.sokoban import rules
from ragen_gym.games.sokoban.rules import most_boxes
from ragen_gym.games.sokoban.xsb import XSB, split_text, to_rectangle, xsb_rows

__all__ = ["GENERATORS", "Generator", "Sokoban"]

Generator = Literal["reverse_play", "reverse_walk"]
GENERATORS: tuple[str, ...] = get_args(Generator)

#: Steps of a walk, and moves of a solution, at most.
_LONGEST = 100_000


@dataclass(frozen=True)
class Sokoban(GridGame):
    """A warehouse: push every box onto a target. Boxes cannot be pulled, so a push can be fatal.

    ## Description
    Sokoban as the RAGEN paper plays it (arXiv 2504.20073, section 3.1). An action moves the player one cell; if a box
    is there and the cell beyond it is free, the box moves along. An action that leads against a wall, or pushes a box
    against a wall or another box, changes nothing. Nothing is random once the level is drawn.

    ## Starting State
    Every level is made by playing backwards from a solved board, so every level has a solution, and no box starts on
    a target.

    ``generator="reverse_play"`` is the distribution of the paper's code (after gym-sokoban's): a room is carved along a
    random walk, player and targets are dropped on it at random, and a depth-first search pulls the boxes about, up to
    ``search_depth`` moves deep, for the state with the highest product of the number of times that it turned to another
    box and the sum of the boxes' distances from their targets. The player then strolls up to three cells away.
    ``generator="reverse_walk"`` is cheaper: the player walks backwards at random for ``walk_steps`` steps, pulling
    whatever box it leaves behind, and then on until no box is on a target.

    Levels outside the bounds on moves, or of another split, are drawn again.

    ## Levels
    A level that is given, alone or in a list or a file, may be written in any vocabulary of the game and any text
    format, or in XSB, the common format (``#`` wall, space, ``-`` or ``_`` floor, ``.`` target, ``$`` box, ``*`` box on
    target, ``@`` player, ``+`` player on target; ``4#`` is ``####``, and ``|`` ends a row). In XSB rows may be ragged:
    what lies outside the walls becomes wall. A file may hold many levels, of several sizes, separated by empty lines,
    comments after ``;`` or titles, as Boxoban's files do, or be a collection in XML (.slc). A level has one player,
    boxes and targets in equal number, a box off target, and a closed wall.

    Where ``height``, ``width`` or ``size`` is given, walls fill smaller boards up to it. Otherwise each level is played
    at its own size.

    ## Rewards
    -0.1 for each action, +1 for a box pushed onto a target, -1 for a box pushed off one, +10 when the last box is on
    a target; what happens in one step adds up.

    ## Episode End
    Terminated when every box is on a target (success). Truncated by the horizon.

    ## Blind Script
    Plays a shortest solution of the level without its inner walls, found anew before each move; of several, the one
    whose first move comes first among the actions. It ignores every wall but those on the border. Where there is no
    such solution, or the search takes more than 50,000 nodes, it moves up.

    ## Arguments
    height, width: rows and columns with the border of walls, 3 to 64, one of them 5 or more; ``size`` sets both.
    boxes: number of boxes of a generated level, from 1 on. A level that is given may have any number.
    generator: ``"reverse_play"`` or ``"reverse_walk"``.
    search_depth: depth of the search of ``"reverse_play"``, from 2 to 10,000; the paper's code has 300 for 6x6 boards
        and 10 for 8x8 boards. A deep search of a large board looks at 300,000 states, which takes some 40 ms a level.
    walk_steps: steps of ``"reverse_walk"``, from 1 to 100,000.
    min_moves, max_moves: bounds on the moves of a move-optimal solution, from 1 to 100,000; None is no bound.
    beyond_blind: True draws levels that the blind script never solves, however many moves it has.

    ## Version History
    v0: first release.
    """

    height: int = 6
    width: int = 6
    boxes: int = 1
    generator: Generator = "reverse_play"
    search_depth: int = 300
    walk_steps: int = 100
    min_moves: int | None = None
    max_moves: int | None = None
    beyond_blind: bool = False
    size: InitVar[int | None] = None

    name = "Sokoban"
    Action = rules.Action
    Tile = rules.Tile
    player_tiles = frozenset(rules.PLAYERS)
    box_tiles = frozenset(rules.BOXES)
    target_tiles = frozenset(rules.TARGETS)
    ground_tiles = frozenset({rules.Tile.WALL, rules.Tile.FLOOR})
    fills = rules.Tile.WALL
    read_as: ClassVar = {rules.Tile.PLAYER: rules.Tile.FLOOR, rules.Tile.PLAYER_ON_TARGET: rules.Tile.TARGET}
    noise = Stream.DYNAMICS
    rule = staticmethod(rules.step)
    legal = staticmethod(rules.legal)
    foreign_options: ClassVar[dict[str, str]] = {
        "dim_room": "height and width",
        "num_boxes": "boxes",
    }
    example_moves = ("Down", "Up")
    mistakes: ClassVar[dict[str, str]] = {"unsolvable": "makes a box unmovable, or the level unsolvable"}
    vocabularies: ClassVar[dict[str, Vocabulary]] = {
        "ragen": Vocabulary("ragen", "#_O√XPS"),
        "new_vocab": Vocabulary("new_vocab", "W.GCBA@"),
        "letters": Vocabulary("letters", "WFTDBPQ"),
        "digits": Vocabulary("digits", "0123456"),
        "xsb": XSB,
    }
    #: By the length of a shortest solution; every level can be solved in the paper's budget of 10 actions.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"max_moves": 4},
        "medium": {"min_moves": 3, "max_moves": 10},
        "hard": {"min_moves": 5, "max_moves": 10},
        "expert": {"min_moves": 7, "max_moves": 10},
    }
    painter = "ragen_gym.render.sokoban"
    sprites: ClassVar[dict[str, list[str]]] = {
        "WALL": ["wall"],
        "FLOOR": ["floor"],
        "TARGET": ["floor", "target"],
        "BOX": ["floor", "*box"],
        "BOX_ON_TARGET": ["floor", "target", "*box:done"],
        "PLAYER": ["floor", "*worker"],
        "PLAYER_ON_TARGET": ["floor", "target", "*worker"],
    }
    description = (
        "You are in a warehouse. Push every box onto a target. You push a box by walking into it, if the cell beyond "
        "it is free; you cannot pull a box, and you cannot push two at once."
    )

    def __post_init__(self, size: int | None) -> None:
        self.square(size, 3, 64)
        bounds = {"boxes": (1, 64 * 64), "search_depth": (2, 10_000), "walk_steps": (1, _LONGEST)}
        for option, (low, high) in bounds.items():
            check_number("Sokoban", option, getattr(self, option), low, high, whole=True)
        most = most_boxes(self.height, self.width)
        if self.boxes > most:
            fix = f"set boxes to {most} or fewer, or make the board larger" if most else "make the board larger"
            raise ValueError(
                f"Sokoban: boxes={self.boxes} do not fit on height={self.height}, width={self.width}: each "
                f"needs a cell and a target, and a push three cells in a line; {fix}."
            )
        if not isinstance(self.generator, str) or self.generator not in GENERATORS:
            raise ValueError(f"Sokoban: generator={shown(self.generator)} must be one of {', '.join(GENERATORS)}.")
        if not isinstance(self.beyond_blind, bool):
            raise ValueError(f"Sokoban: beyond_blind={shown(self.beyond_blind)} must be True or False.")
        for bound in ("min_moves", "max_moves"):
            check_number("Sokoban", bound, getattr(self, bound), 1, _LONGEST, whole=True, none=True)
        if self.max_moves is not None and (self.min_moves or 0) > self.max_moves:
            raise ValueError(f"Sokoban: min_moves={self.min_moves} is above max_moves={self.max_moves}.")
        if self.max_moves is not None and self.max_moves < self.boxes:
            raise ValueError(
                f"Sokoban: max_moves={self.max_moves} is below boxes={self.boxes}: every box starts off target, so "
                "each needs a push."
            )

    @staticmethod
    def blind(board: Any, state: Any, params: Any) -> int:
        """The blind script's move; see "Blind Script"."""
        from ragen_gym.games.sokoban.blind import blind

        return blind(board, state, params)

    @cached_property
    def params(self) -> array[int]:
        """The offset of each direction on the board."""
        stride = self.width + 1
        return array("q", (-stride, stride, -1, 1))

    @property
    def stochastic(self) -> bool:
        """Never."""
        return False

    def generate(self, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
        """One level for each key; see "Starting State"."""
        from ragen_gym.games.sokoban.generate import generate

        return generate(self, keys, split)

    def starts(self, boards: Boards) -> npt.NDArray[np.int32]:
        """The player's cell and the number of boxes off target on each board, int32 (n, 2)."""
        from ragen_gym.games.sokoban.generate import first_states

        return first_states(boards)

    def solve(self, board: Board) -> Solution:
        """Move-optimal play, found by search as it is asked for."""
        from ragen_gym.games.sokoban.solve import SokobanSolution

        return SokobanSolution(self, board)

    def level_items(self, source: str | Path, vocabulary: Vocabulary | None = None) -> list[tuple[str, Any]]:
        """The levels of a file or text, each with its place in it; see "Levels" in the class."""
        vocabularies = [*self.vocabularies.values(), *([vocabulary] if vocabulary else [])]
        # Collections come with titles in every encoding; a board has none of the characters that differ.
        return level_items(source, lambda text: split_text(text, vocabularies), lenient=True)

    def read_rows(self, rows: list[str], vocabulary: Vocabulary | None) -> bytes:
        """The board of rows of symbols; see "Levels" in the class."""
        if self.fitting(rows, vocabulary):
            return super().read_rows(rows, vocabulary)
        plain = xsb_rows(rows)
        if plain is None:
            names = ", ".join(f"{each.name} {' '.join(each.symbols)}" for each in self.vocabularies.values())
            text = "\n".join(rows)
            slips = {"\t": "a tab within a row: write spaces", "(": "a group of runs in parentheses: write it out"}
            held = "".join(f" It holds {slip}." for sign, slip in slips.items() if sign in text)
            raise ValueError(
                f"Sokoban: a board is written in the symbols of one of {names}; this one is not:\n{text}{held}"
            )
        return parse_grid(to_rectangle(plain), self.vocabularies["xsb"], self.name)

    def fitting(self, rows: list[str], vocabulary: Vocabulary | None) -> list[Vocabulary]:
        """The vocabularies of the rows but for XSB, whose rows may be ragged."""
        return [each for each in super().fitting(rows, vocabulary) if each.name != XSB.name]

    def options_at(self, height: int, width: int) -> dict[str, Any]:
        """As many boxes as fit: the number for generated levels says nothing about a given one."""
        return {"boxes": max(1, min(self.boxes, most_boxes(height, width)))}

    def check(self, board: bytes) -> None:
        """Raise a ValueError unless walls close the board and it has one player, and boxes and targets in pairs."""
        player = sum(board.count(tile) for tile in rules.PLAYERS)
        boxes = sum(board.count(tile) for tile in rules.BOXES)
        targets = sum(board.count(tile) for tile in rules.TARGETS)
        if player != 1:
            raise ValueError(f"Sokoban: a board has one player; this one has {player}.")
        if boxes != targets or not boxes:
            raise ValueError(
                f"Sokoban: a board has a box or more and as many targets; this one has {boxes} and {targets}."
            )
        stride = self.width + 1
        border = board[: self.width] + board[-self.width :] + board[::stride] + board[self.width - 1 :: stride]
        if any(border):
            raise ValueError("Sokoban: every cell on the edge of a board must be a wall; close the border.")

    def over(self, board: Board) -> bool:
        """True if every box is on a target."""
        return rules.Tile.BOX not in board

    def ragen_v1_task(self) -> str:
        """As RAGEN's prompt: push the boxes to the targets, and what cannot be done."""
        return (
            "You play Sokoban and are its player: push all boxes onto the targets. Beside a box, a move towards it "
            "pushes it on in that direction. A box cannot be pushed through a wall, and it cannot be pulled."
        )

    def rewards(self) -> tuple[tuple[str, float], ...]:
        """Rewards."""
        return (
            ("each action", -0.1),
            ("a box pushed onto a target", 1.0),
            ("a box pushed off a target", -1.0),
            ("all boxes on targets", 10.0),
        )
