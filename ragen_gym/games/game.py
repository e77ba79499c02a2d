"""The interface that every game implements.

A game is a frozen dataclass whose fields are its options. Its state is a flat board (one byte a cell, rows separated by
the byte ``ragen_gym.core.text.EDGE``) and a short list of integers. Its rule is a plain function on those two, written
once: the single environment runs it as Python over a ``bytearray``, the batch runs the same function compiled over
arrays of shape (num_envs, cells).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import fields
from enum import IntEnum
from functools import cached_property
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import Level, item_text, level_items, paragraphs, split_of_hash
from ragen_gym.core.seeding import Stream
from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.core.validation import shown

Board = bytes | bytearray
Boards = npt.NDArray[np.uint8]
State = MutableSequence[int]

_SPARE_MASKS = 64

#: What a rule says of the state that it leaves behind.
PLAYING, OVER, SUCCESS = 0, 1, 2

#: rule(board, state, action, u, params) -> (reward, PLAYING | OVER | SUCCESS): changes board and state in place.
#: ``u`` is the step's one random number, uniform in [0, 1); ``params`` are the game's numbers, ``Game.params``.
Rule = Callable[[Any, Any, int, float, Any], tuple[float, int]]


def listed(params: Sequence[Any]) -> Sequence[Any]:
    """``Game.params`` with a list for each array: Python finds an item of a list in half the time."""
    if isinstance(params, array):
        return params.tolist()
    return tuple(each.tolist() if isinstance(each, array) else each for each in params)


def _floats(params: Any) -> Iterator[float]:
    """The floats among ``Game.params``; arrays are tables, which hold none that a rule compares its draw with."""
    if isinstance(params, tuple | list):
        for part in params:
            yield from _floats(part)
    elif isinstance(params, float):
        yield params


class Masker:
    """``Game.action_mask`` as a method, for ``Game.masker``; it can be pickled.

    The arrays are made many at a time: to make one takes 250 ns, a quarter of a step.

    Args:
        game: a game with a rule ``legal``.
        keys: how many different cells ``of_cell`` is asked about; by default there is a key for each set of actions.
    """

    def __init__(self, game: Game, keys: int = 0) -> None:
        assert game.legal is not None
        self._legal, self._params, self._shifts = game.legal, listed(game.params), range(len(game.Action))
        self._spares: list[list[npt.NDArray[np.int8]]] = [[] for _ in range(keys or 1 << len(game.Action))]

    def of_board(self, board: Board, state: Sequence[int]) -> npt.NDArray[np.int8]:
        """The mask of any state."""
        bits = self._legal(board, state, self._params)
        spares = self._spares[bits]
        return spares.pop() if spares else self._more(bits, bits)

    def of_cell(self, board: Board, state: Sequence[int]) -> npt.NDArray[np.int8]:
        """The mask where it depends on nothing but the first integer of the state, such as the player's cell."""
        spares = self._spares[state[0]]
        return spares.pop() if spares else self._more(state[0], self._legal(board, state, self._params))

    def _more(self, key: int, bits: int) -> npt.NDArray[np.int8]:
        mask = np.array([[bits >> shift & 1 for shift in self._shifts]], np.int8)
        self._spares[key].extend(mask.repeat(_SPARE_MASKS, 0))
        return self._spares[key].pop()


class NotSolvedError(RuntimeError):
    """A search was left undecided within its limit.

    Attributes:
        nodes: the limit.
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(
            f"not solved within {nodes} nodes: the board may have a solution or none; allow more nodes with max_nodes."
        )
        self.nodes = nodes


class Solution(ABC):
    """Optimal play of one level, from every state that can be reached in it.

    A state is a board, its integers (``Game.starts`` gives those of a first board), and the number of
    actions left.
    """

    @abstractmethod
    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The highest probability of success within the actions left, in [0, 1]."""

    @abstractmethod
    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The highest expected sum of rewards within the actions left."""

    @abstractmethod
    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """An action of a policy with that ``success``; among those, one of a shortest expected episode."""

    def winnable(self, board: Board, state: Sequence[int]) -> bool | None:
        """True if a state can still be won with any number of actions; None where that is unknown."""
        return None


class Game(ABC):
    """One game with its options set. Subclasses are frozen dataclasses; their docstring is their documentation page.

    Equal games generate equal levels.
    """

    #: Name, as in the id ``ragen/<name>-v0`` and in ``Level.game``.
    name: ClassVar[str]
    #: Action ids and names.
    Action: ClassVar[type[IntEnum]]
    #: Codes of the board's cells.
    Tile: ClassVar[type[IntEnum]]
    #: What a text in the format "grid" holds: a symbol for each cell ("grid"), the names of the actions, one a line
    #: ("arms"), or anything else ("text").
    layout: ClassVar[Literal["grid", "arms", "text"]] = "text"
    #: Codes of the tiles that show the player, a goal that it is to reach, a box that it can push and a target of the
    #: boxes, alone or with something else in the cell; empty where a game has none.
    player_tiles: ClassVar[frozenset[int]] = frozenset()
    goal_tiles: ClassVar[frozenset[int]] = frozenset()
    box_tiles: ClassVar[frozenset[int]] = frozenset()
    target_tiles: ClassVar[frozenset[int]] = frozenset()
    #: Codes of the tiles that are ground or wall, not things: what a list of the things on a board leaves out.
    ground_tiles: ClassVar[frozenset[int]] = frozenset({0})
    #: The stream that a step's random number comes from.
    noise: ClassVar[Stream]
    #: The rule; see ``Rule``.
    rule: ClassVar[staticmethod[[Any, Any, int, float, Any], tuple[float, int]]]
    #: legal(board, state, params) -> bits, a plain function as the rule is: bit a is set where action a can change the
    #: state. Batches compile it; a game without it has an ``action_mask`` of its own, asked board by board.
    legal: ClassVar[staticmethod[[Any, Any, Any], int] | None] = None
    #: blind(board, state, params) -> action, of a state in which the game goes on: a script that goes straight for the
    #: goal and ignores what is in the way, a function of its arguments alone. A score that it reaches shows no
    #: planning. None: the game has no such script, and scores stand without it.
    blind: ClassVar[staticmethod[[Any, Any, Any], int] | None] = None
    #: Symbol tables by name; the first is the game's own, in which levels are written.
    vocabularies: ClassVar[dict[str, Vocabulary]]
    #: Difficulties by name, from easy to hard: the options that each sets. None changes the size of the board.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    #: Settings with which a small model learns the game, as tables of ``ragen-agent settings``; a run's own override
    #: them.
    training: ClassVar[dict[str, Any]] = {}
    #: One paragraph for the player.
    description: ClassVar[str]
    #: What a success is, where the return does not show it; "" where a success is what the description asks for.
    success_means: ClassVar[str] = ""
    #: Whether the rule compares its draw with nothing but numbers between 0 and 1 that stand in ``params``, which the
    #: chances of what an action does follow from. Without it a game has no exact values (``ragen_gym.games.values``).
    noise_in_params: ClassVar[bool] = True
    #: Tiles that a first board may hold, where ``likelihood`` is known: their symbols can be hidden from a player.
    level_tiles: ClassVar[tuple[int, ...]] = ()
    #: What a mistake is called, by its kind (``ragen_gym.bench.losses.KINDS``), where the game has better words.
    mistakes: ClassVar[dict[str, str]] = {}
    #: Moves of the example reply in the system message (``TurnConfig.example``), no better than moves drawn at random.
    #: Empty for the first two actions.
    example_moves: ClassVar[tuple[str, ...]] = ()
    #: The board that the example is about, as text, where its moves are not actions of every level; else "".
    example_board: ClassVar[str] = ""
    #: Module that draws the tiles (``draw_tile``, perhaps ``draw_move`` and ``CELL``), or ``module:name`` of a
    #: ``ragen_gym.render.frames.Painter``. Empty: coloured cells with the game's own symbols.
    painter: ClassVar[str] = ""
    #: Pictures of a tile in the viewer of reports, from the bottom up, by the tile's name (``tiles.svg`` there); ``*``
    #: marks a piece that glides when it moves. A tile without any is drawn with its symbol.
    sprites: ClassVar[dict[str, list[str]]] = {}
    #: Options of the same game in other packages, and what they are here: for the error about an unknown option.
    foreign_options: ClassVar[dict[str, str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The options: all else follows from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Names and defaults of the options."""
        return {name: parameter.default for name, parameter in signature(cls).parameters.items()}

    @property
    @abstractmethod
    def height(self) -> int:
        """Rows of the board."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns of the board."""

    @property
    @abstractmethod
    def params(self) -> Sequence[Any]:
        """The numbers that the rule needs, in the rule's order: a tuple, or an ``array.array`` if the rule indexes it.

        A table that the rule looks up by a number belongs into an array: compiled, a tuple is searched by branches.
        """

    @property
    def codes(self) -> int:
        """Number of codes that a cell of the board can have, from 0 on."""
        return len(self.Tile)

    @property
    def stochastic(self) -> bool:
        """True if the rule uses its random number."""
        return True

    @property
    def risky_returns(self) -> bool:
        """True if one way to play earns different returns by chance, and returns take more than two values.

        Dividing by the std of a group's returns may then teach the way that earns less on average. Where chance only
        decides between 0 and 1 it cannot.
        """
        return False

    @property
    def has_splits(self) -> bool:
        """True if levels can be drawn from one split."""
        return True

    @property
    def longest(self) -> int | None:
        """The most actions that an episode can have, or None where the rules set no limit."""
        return None

    def level_count(self, split: str | None) -> int | None:
        """Number of different levels of a split, or None where nobody has counted them."""
        return None

    @abstractmethod
    def generate(self, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
        """One board for each generator key, all from ``split``: uint8 (len(keys), cells).

        Raises:
            ValueError: the options cannot be met within a bounded number of tries.
        """

    def likelihood(self, board: Board, split: str | None) -> float:
        """The chance that the generator draws this board from a split, on a scale of these options alone.

        Raises:
            ValueError: the game does not say it.
        """
        raise ValueError(f"{self.name}: the chances of its levels are unknown, so its symbols cannot be hidden.")

    @abstractmethod
    def starts(self, boards: Boards) -> npt.NDArray[np.int32]:
        """The integers of the state that belong to each board, int32 (len(boards), integers)."""

    def action_mask(self, board: Board, state: Sequence[int]) -> npt.NDArray[np.int8]:
        """int8 (actions,), a fresh array: 1 where an action can change the state."""
        if self.legal is None:
            raise NotImplementedError(f"{type(self).__name__}: give the game a rule legal, or an action_mask.")
        bits = self.legal(board, state, self.params)
        return np.array([bits >> action & 1 for action in range(len(self.Action))], np.int8)

    def masker(self) -> Callable[[Board, Sequence[int]], npt.NDArray[np.int8]]:
        """``action_mask`` as a function, to be called at each step; games override it where another way is faster."""
        return self.action_mask if self.legal is None else Masker(self).of_board

    @abstractmethod
    def solve(self, board: Board) -> Solution:
        """The oracle of the level that this board belongs to."""

    def family(self, board: Board) -> int:
        """The hash, 0 to 2**64 - 1, of all levels that are one problem with the one that starts with this board.

        A split owns families whole, a benchmark takes the levels of one as one, and a training run notes which it has
        seen. Here each level is a family of its own; a game overrides this where levels differ in nothing that matters,
        such as the order of two names, and must keep the name of the game in the hash.

        Args:
            board: of a level.
        """
        return int(self.ids(np.frombuffer(bytes(board), np.uint8)[None])[0], 16)

    def split_of(self, board: Board) -> str | None:
        """The split that owns the family of this first board, or None where no split does."""
        return split_of_hash(self.family(board))

    def owns(self, split: str | None, board: Board) -> bool:
        """True if a first board belongs to a split; every board belongs to None."""
        return split is None or self.split_of(board) == split

    @abstractmethod
    def ids(self, boards: Boards) -> list[str]:
        """``Level.id`` of each board."""

    @abstractmethod
    def formatter(self, vocabulary: Vocabulary, text_format: TextFormat) -> Callable[[Board], str]:
        """A function from a board to its text."""

    @abstractmethod
    def parse(self, text: str, vocabulary: Vocabulary | None = None, text_format: TextFormat = "grid") -> bytes:
        """The board of a text; the inverse of the formatter.

        Raises:
            ValueError: the text is not a board of this game with these options.
        """

    @abstractmethod
    def charset(self, vocabulary: Vocabulary, text_format: TextFormat) -> tuple[frozenset[str], int, int]:
        """The characters of the texts, the least length and the greatest."""

    def action_names(self, board: Board) -> tuple[str, ...]:
        """Names of a player's actions in this state."""
        return self._action_names

    @cached_property
    def _action_names(self) -> tuple[str, ...]:
        return tuple(action.name.capitalize() for action in self.Action)

    @abstractmethod
    def rewards(self) -> tuple[tuple[str, float], ...]:
        """Rewards, in words, with their amounts."""

    def ragen_v1_task(self) -> str:
        """The task with no more in it than RAGEN's prompt states (``ragen_gym.envs.ragen_v1``)."""
        return self.description

    def legend(self, vocabulary: Vocabulary) -> tuple[tuple[str, str], ...]:
        """The symbols of a text and what they mean."""
        return tuple((vocabulary.symbols[tile], tile.name.lower().replace("_", " ")) for tile in self.Tile)

    @property
    def own_vocabulary(self) -> Vocabulary:
        """The symbols in which this game's levels are written."""
        return next(iter(self.vocabularies.values()))

    def vocabulary(self, choice: str | Vocabulary | None) -> Vocabulary:
        """The vocabulary of that name, the given one if it fits, the game's own for None."""
        if choice is None:
            return self.own_vocabulary
        if isinstance(choice, Vocabulary):
            return choice.check(self.name, [tile.name for tile in self.Tile])
        if not isinstance(choice, str) or choice not in self.vocabularies:
            raise ValueError(
                f"vocabulary={shown(choice)} is not known to {self.name}: choose one of "
                f"{', '.join(self.vocabularies)}, or give a ragen_gym.core.text.Vocabulary."
            )
        return self.vocabularies[choice]

    @cached_property
    def own_text(self) -> Callable[[Board], str]:
        """The formatter of the game's own symbols."""
        return self.formatter(self.own_vocabulary, "grid")

    def level(self, board: Board) -> Level:
        """The level that starts with this board."""
        return Level(self.name, self.own_text(board))

    def board(self, level: Any, vocabulary: Vocabulary | None = None) -> bytes:
        """The first board of a level or of its text, in whichever vocabulary and format it is written.

        Args:
            level: a ``Level``, or what ``ragen_gym.core.levels.item_text`` takes.
            vocabulary: decides what a text means that could be read in several.

        Raises:
            ValueError: the level is of another game, or its text is not a board that these options can play.
        """
        text = self.own_form(*self._text_of(level, vocabulary))
        board = self.parse(text, self.own_vocabulary)
        if self.over(board):
            raise ValueError(f"{self.name}: the game on this board is over already; a level starts before that.")
        return board

    def at_own_size(self, level: Any, vocabulary: Vocabulary | None = None) -> tuple[Game, bytes]:
        """This game at the size of a level, and the level's first board; arguments and errors as of ``board``."""
        game = self.for_board(self.read(*self._text_of(level, vocabulary)))
        return game, game.board(level, vocabulary)

    def _text_of(self, level: Any, vocabulary: Vocabulary | None) -> tuple[str, Vocabulary | None]:
        """The text of a level, and the vocabulary that decides what it means."""
        level = item_text(level)
        if not isinstance(level, Level):
            return level, vocabulary
        if level.game != self.name:
            raise ValueError(f"level {level.id} belongs to {level.game}, not to {self.name}.")
        return level.text, self.own_vocabulary

    def own_form(self, text: str, vocabulary: Vocabulary | None = None) -> str:
        """A board's text of any kind in the game's own symbols; ``vocabulary`` as in ``board``."""
        return text

    def read(self, text: str, vocabulary: Vocabulary | None = None) -> bytes:
        """The board of a text, of whatever size and not checked; ``vocabulary`` as in ``board``."""
        return self.parse(text)

    def for_board(self, board: Board) -> Game:
        """This game on boards of the size of ``board``."""
        return self

    @property
    def noise_thresholds(self) -> list[float]:
        """The numbers in ``params`` strictly between 0 and 1, in order: all that a rule may compare its draw with."""
        return sorted({number for number in _floats(self.params) if 0 < number < 1})

    @property
    def has_values(self) -> bool:
        """True if the states of the game have exact values (``ragen_gym.games.values``)."""
        return self.noise_in_params or not self.stochastic

    def noise_intervals(self) -> list[tuple[float, float]]:
        """(probability, a draw in it) of each interval of draws within which the rule does the same.

        Raises:
            ValueError: the rule compares its draw with other numbers than those of ``params``.
        """
        if not self.stochastic:
            return [(1.0, 0.5)]
        if not self.has_values:
            raise ValueError(
                f"{self.name} has no exact values: its rule compares its random number with numbers that do not "
                "stand in params. Ask for no regret, or put these numbers into params and set noise_in_params."
            )
        return list(self._noise_intervals)

    @cached_property
    def _noise_intervals(self) -> tuple[tuple[float, float], ...]:
        ends = [0.0, *self.noise_thresholds, 1.0]
        return tuple((high - low, (low + high) / 2) for low, high in pairwise(ends))

    def over(self, board: Board) -> bool:
        """True if the board shows the end of a game."""
        return False

    def conserved(self, board: Board) -> tuple[int, ...]:
        """Quantities that no action may change, such as the number of players; see ``ragen_gym.testing.check_game``."""
        return ()

    def level_items(self, source: str | Path, vocabulary: Vocabulary | None = None) -> list[tuple[str, Any]]:
        """The levels of a file or text, each with its place in it; see ``ragen_gym.core.levels.level_items``."""
        return level_items(source, lambda text: paragraphs(text, vocabulary.symbols if vocabulary else ()))

    @classmethod
    def foreign_levels(cls, options: dict[str, Any]) -> Any:
        """The levels that options of the same game in other packages give, which are taken out of ``options``."""
        return None
