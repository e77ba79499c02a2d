"""FrozenLake: reach the goal over ice that may slip, around the holes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import Stream
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.validation import check_number, shown
from ragen_gym.games.frozen_lake import rules
from ragen_gym.games.game import Board, Boards, Masker, Solution
from ragen_gym.games.grid import GridGame

__all__ = ["FrozenLake", "FrozenLakeSolution"]

#: Gymnasium's own lakes, as its ``map_name`` names them.
_MAPS = {
    "4x4": "SFFF\nFHFH\nFFFH\nHFFG",
    "8x8": "SFFFFFFF\nFFFFFFFF\nFFFHFFFF\nFFFFFHFF\nFFFHFFFF\nFHHFFFHF\nFHFFHFHF\nFFFHFFFG",
}
_TIE = 1e-12
#: Rows of the oracle's table at most, one for every number of actions left, and its cells in all: 300 MB.
_MOST_ROWS, _MOST_CELLS = 50_000, 2**25


@dataclass(frozen=True)
class FrozenLake(GridGame):
    """A lake of ice with holes in it: reach the goal, whichever way the ice lets you slide.

    ## Description
    Gymnasium's FrozenLake as the RAGEN paper plays it (arXiv 2504.20073, section 3.1): start and goal lie anywhere,
    every level has a path, and a move may slip. A move goes in the intended direction with probability
    ``success_rate`` and in each perpendicular direction with half of the rest. A move off the board leaves the player
    where it is.

    ## Starting State
    Start and goal are drawn uniformly, every other cell is ice with probability ``frozen_prob``, and levels without a
    path of at least ``min_path`` moves are drawn again.

    ## Rewards
    1 for reaching the goal, 0 for anything else.

    ## Episode End
    Terminated on the goal (success) or in a hole. Truncated by the horizon.

    ## Blind Script
    Walks to the goal's row, then along it to the goal. It ignores every hole, and slips.

    ## Levels
    A lake that is given may be written in any vocabulary of the game; ``letters`` are Gymnasium's. Gymnasium's ``desc``
    (rows, also as an array of bytes, or what its ``generate_random_map`` returns) and ``map_name`` ("4x4" or "8x8")
    give one lake, as ``levels`` does. Unless ``size``, ``height`` or ``width`` is given, each lake is played at its own
    size.

    ## Arguments
    height, width: rows and columns, 2 to 64 cells a side; ``size`` sets both.
    frozen_prob: probability that a cell is ice and not a hole, in [0, 1].
    success_rate: probability of the intended direction, in [0, 1]; 1 makes the lake deterministic. The slip
        probability, to each side, is half of the rest.
    min_path: the least number of moves on a shortest path from start to goal.
    random_start: False puts the start in the upper left corner and the goal in the lower right one.
    beyond_blind: True draws levels that the blind script loses: its chance of the goal within 4 (height + width) moves
        is below half of the best chance. Without slip it walks into a hole there.
    """

    frozen_prob: float = 0.8
    success_rate: float = 1 / 3
    min_path: int = 1
    random_start: bool = True
    beyond_blind: bool = False
    size: InitVar[int | None] = None

    name = "FrozenLake"
    Action = rules.Action
    Tile = rules.Tile
    player_tiles = frozenset(rules.PLAYERS)
    goal_tiles = frozenset({rules.Tile.GOAL, rules.Tile.PLAYER_ON_GOAL})
    read_as: ClassVar = {rules.Tile.PLAYER: rules.Tile.GOAL}
    level_tiles = rules.Tile.ICE, rules.Tile.HOLE, rules.Tile.GOAL, rules.Tile.PLAYER
    noise = Stream.DYNAMICS
    rule = staticmethod(rules.step)
    legal = staticmethod(rules.legal)
    blind = staticmethod(rules.blind)
    vocabularies: ClassVar[dict[str, Vocabulary]] = {
        "ragen": Vocabulary("ragen", "_OGPX√"),
        "letters": Vocabulary("letters", "FHGSDW"),
        "digits": Vocabulary("digits", "012345"),
        "punctuation": Vocabulary("punctuation", ".o*@x+"),
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"success_rate": 1.0, "frozen_prob": 0.9},
        "medium": {"success_rate": 1.0, "min_path": 3},
        "hard": {"success_rate": 0.8, "min_path": 3},
        "expert": {"success_rate": 1 / 3, "min_path": 3},
    }
    #: The demonstrator mostly replies with one move, so it runs out of turns; longer replies are discovered.
    training: ClassVar[dict[str, Any]] = {
        "env_options": {"size": 4, "success_rate": 1.0, "min_path": 3},
        "turns": {"max_turns": 2, "max_actions_per_turn": 5, "max_actions": 10, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 16000, "moves": [0.8, 0.15, 0.05], "thought": "direction"},
        "warm_start": {"epochs": 2},
        "training": {"iterations": 80, "groups": 32, "group_size": 8, "keep": 0.5, "learning_rate": 1e-3},
    }
    foreign_options: ClassVar[dict[str, str]] = {
        "is_slippery": "success_rate: 1 for False, 1/3 for True",
        "map_name": "levels: give the map's rows as a board, or size for random lakes",
        "desc": "levels: a list of boards, each a text of its rows, such as 'SFFF\\nFHFH\\nFFFH\\nHFFG'",
        "reward_schedule": "fixed: 1 for the goal, 0 for anything else",
        "p": "frozen_prob",
    }
    example_moves = ("Down", "Up")
    painter = "ragen_gym.render.frozen_lake"
    sprites: ClassVar[dict[str, list[str]]] = {
        "ICE": ["ice"],
        "HOLE": ["ice", "hole"],
        "GOAL": ["ice", "flag"],
        "PLAYER": ["ice", "*penguin"],
        "PLAYER_IN_HOLE": ["ice", "hole", "*penguin:swims"],
        "PLAYER_ON_GOAL": ["ice", "flag-reached", "*penguin"],
    }
    mistakes: ClassVar[dict[str, str]] = {
        "fatal": "walks into a hole",
        "risk": "takes a worse chance, such as next to a hole",
        "chance": "slips, without a mistake",
    }
    description = (
        "You stand on a frozen lake. Walk over the ice to the goal and keep out of the holes. "
        "You cannot leave the board."
    )

    @classmethod
    def foreign_levels(cls, options: dict[str, Any]) -> list[Any] | None:
        """The one lake that Gymnasium's ``desc``, or else its ``map_name``, gives."""
        rows, map_name = options.pop("desc", None), options.get("map_name")
        if rows is None and "map_name" not in options:
            return None
        if rows is None and (not isinstance(map_name, str) or map_name not in _MAPS):
            raise ValueError(
                f"FrozenLake: map_name={shown(map_name)} is not a map: choose one of {', '.join(_MAPS)}; for random "
                "lakes give size, and random_start=False for a start in the upper left corner."
            )
        options.pop("map_name", None)
        rows = _MAPS[str(map_name)] if rows is None else rows
        return [rows if isinstance(rows, str) else list(rows)]

    def __post_init__(self, size: int | None) -> None:
        self.square(size, 2, 64)
        for chance in ("frozen_prob", "success_rate"):
            check_number("FrozenLake", chance, getattr(self, chance), 0, 1)
        check_number("FrozenLake", "min_path", self.min_path, 1, self.height * self.width - 1, whole=True)
        for option in ("random_start", "beyond_blind"):
            if not isinstance(getattr(self, option), bool):
                raise ValueError(f"FrozenLake: {option}={shown(getattr(self, option))} must be True or False.")

    @cached_property
    def params(self) -> tuple[array[int], float, float]:
        """(``rules.destinations``, P(intended), P(intended or first side))."""
        moves = array("I", rules.destinations(self.height, self.width))  # unsigned: compiled, an index needs no check
        return moves, float(self.success_rate), (1 + float(self.success_rate)) / 2

    @property
    def stochastic(self) -> bool:
        """True if the ice can slip."""
        return self.success_rate < 1

    def generate(self, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
        """One lake for each key; see "Starting State"."""
        from ragen_gym.games.frozen_lake.generate import generate

        return generate(self, keys, split)

    def likelihood(self, board: Board, split: str | None) -> float:
        """See ``Game.likelihood``: a draw with its chance of ice, where it has start, goal, path and split; else 0."""
        from ragen_gym.games.frozen_lake.generate import can_draw

        ice, holes = board.count(rules.Tile.ICE), board.count(rules.Tile.HOLE)
        drawn = self.conserved(board)[:2] == (1, 1) and self.owns(split, board) and can_draw(self, board)
        return drawn * self.frozen_prob**ice * (1 - self.frozen_prob) ** holes

    def starts(self, boards: Boards) -> npt.NDArray[np.int32]:
        """The player's cell on each board, int32 (n, 1)."""
        from ragen_gym.games.frozen_lake.generate import player_cells

        return player_cells(boards)

    def masker(self) -> Callable[[Board, Sequence[int]], npt.NDArray[np.int8]]:
        """``action_mask`` as a function: it depends on the player's cell alone."""
        return Masker(self, self.cells).of_cell

    def solve(self, board: Board) -> Solution:
        """Exact play by dynamic programming over the actions left."""
        return FrozenLakeSolution(self, board)

    def conserved(self, board: Board) -> tuple[int, int, int]:
        """The numbers of players, goals and holes."""
        player = sum(board.count(tile) for tile in rules.PLAYERS)
        goal = board.count(rules.Tile.GOAL) + board.count(rules.Tile.PLAYER_ON_GOAL)
        return player, goal, board.count(rules.Tile.HOLE) + board.count(rules.Tile.PLAYER_IN_HOLE)

    def check(self, board: bytes) -> None:
        """Raise a ValueError unless there is one player and one goal."""
        player, goal, _ = self.conserved(board)
        if (player, goal) != (1, 1):
            raise ValueError(f"FrozenLake: a board has one player and one goal; this one has {player} and {goal}.")

    def over(self, board: Board) -> bool:
        """True if the player is in a hole or on the goal."""
        return rules.Tile.PLAYER not in board

    def ragen_v1_task(self) -> str:
        """As RAGEN's prompt: keep out of the holes, reach the goal, and that the ice slips, where it does."""
        slip = " The ice is slippery: a move may take you in a direction that you did not mean." * self.stochastic
        return f"You play FrozenLake. Keep out of the holes and get to the goal.{slip}"

    def rewards(self) -> tuple[tuple[str, float], ...]:
        """Rewards."""
        return (("reaching the goal", 1.0), ("anything else", 0.0))


class FrozenLakeSolution(Solution):
    """For every cell and every number of actions left: the best chance of reaching the goal, and how.

    Among the actions with the best chance it takes one with the least expected number of actions; where no chance is
    left it takes one whose intended direction is nearest to the goal.

    The table ends where a further action changes nothing, bit for bit: the last row answers for every larger number of
    actions. On most lakes that is after some hundred or thousand.

    Raises (every method):
        ValueError: more actions than the table may have rows for (``_MOST_ROWS``, fewer on large lakes), and its values
            still change there, as they do where the ice slips very seldom.
    """

    def __init__(self, game: FrozenLake, board: Board) -> None:
        tiles = np.frombuffer(bytes(board), np.uint8)
        goal = np.isin(tiles, list(game.goal_tiles))
        self._over = goal | np.isin(tiles, (rules.Tile.HOLE, rules.Tile.PLAYER_IN_HOLE))
        moves, intended, _ = game.params
        #: (cells, actions, 3): where an action leads when it goes straight, and when it slips to either side.
        self._targets = np.array(moves, np.intp).reshape(-1, len(game.Action), 3)
        self._targets[self._over] = np.flatnonzero(self._over)[:, None, None]
        cells = len(tiles)
        self._chances = np.array([intended, (1 - intended) / 2, (1 - intended) / 2])
        self._most = min(_MOST_ROWS, _MOST_CELLS // cells)
        #: By the actions left: the chance, float64 (cells,), and the action, int8 (cells,).
        self._success = [goal.astype(np.float64)]
        self._actions = [self._towards(goal).astype(np.int8)]
        #: The expected number of actions, float64 (cells,), of the last row, and whether all further rows are equal.
        self._steps, self._ended = np.zeros(cells), False

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The highest chance of reaching the goal."""
        return float(self._success[self._row(actions_left)][state[0]])

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The same number: the goal is the only reward, and it is 1. Zero once the episode is over."""
        return 0.0 if self._over[state[0]] else self.success(board, state, actions_left)

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The best action; see the class."""
        return int(self._actions[self._row(actions_left)][state[0]])

    def _row(self, actions_left: int) -> int:
        """The row of the table that answers for a number of actions; the table is extended that far, or to its end."""
        while len(self._success) <= actions_left and not self._ended:
            if len(self._success) > self._most:
                raise ValueError(
                    f"FrozenLake: actions_left={shown(actions_left)} is too many for this lake's oracle: its values "
                    f"still change with {self._most} actions left; ask with up to {self._most}."
                )
            chance = self._success[-1][self._targets] @ self._chances
            steps = self._steps[self._targets] @ self._chances + ~self._over[:, None]
            best = chance.max(1)
            action = np.where(chance >= best[:, None] - _TIE, steps, np.inf).argmin(1)
            action = np.where(best > 0, action, self._actions[0])
            least = np.take_along_axis(steps, action[:, None], 1)[:, 0]
            self._ended = self._is_last(best, least, action)
            self._success.append(best)
            self._actions.append(action.astype(np.int8))
            self._steps = least
        return min(actions_left, len(self._success) - 1)

    def _is_last(
        self, best: npt.NDArray[np.float64], steps: npt.NDArray[np.float64], action: npt.NDArray[np.intp]
    ) -> bool:
        """True if a row equals the one before and so all that follow do.

        Where no chance is left the number of actions grows on, but no action of the others leads there. Those that were
        not taken cost no less later, so they are not taken then.
        """
        if not np.array_equal(best, self._success[-1]):
            return False
        open_ = (best > 0) | self._over
        taken = self._targets[np.arange(len(action)), action][open_]
        return (
            np.array_equal(action, self._actions[-1])
            and np.array_equal(steps[open_], self._steps[open_])
            and not (~open_[taken] & (self._chances > 0)).any()
        )

    def _towards(self, goal: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """For each cell, the action whose intended direction lies on a shortest way over ice."""
        distance = np.where(goal, 0.0, np.inf)
        while True:
            nearer = distance[self._targets[:, :, 0]].min(1) + 1
            nearer = np.where(self._over, distance, np.minimum(distance, nearer))
            if np.array_equal(nearer, distance):
                nearest: npt.NDArray[np.intp] = distance[self._targets[:, :, 0]].argmin(1)
                return nearest
            distance = nearer
