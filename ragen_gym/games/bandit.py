"""Bandit and BanditRev: two arms with telling names, one safe and one risky."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import check_split, text_hash
from ragen_gym.core.seeding import Stream, uniforms
from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.core.validation import check_number, items_of, shown
from ragen_gym.games.game import Board, Boards, Game, Solution

_LISTS = {
    "train": """
        Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker Engineer/RealEstateAgent
        Pharmacist/Musician Clerk/Freelancer Technician/Youtuber Planner/Artist Postman/Pilot""",
    "validation": "Banker/VentureCapitalist Gardener/Cryptominer",
    "test": """
        Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant SocialWorker/Photographer Mechanic/GameDesigner
        Secretary/Entrepreneur Cashier/DataScientist CivilServant/StartupAccelerator""",
}

#: Split of each pair (low, high).
SPLIT_OF_PAIR: dict[tuple[str, str], str] = {
    (low, high): split
    for split, names in _LISTS.items()
    for low, _, high in (pair.partition("/") for pair in names.split())
}

#: Other pairs by name, each with its split: those that the paper itself names (arXiv 2504.20073, section 3.1).
_NAMES: dict[str, dict[tuple[str, str], str]] = {
    "ragen-v1": {("Teacher", "Engineer"): "train", ("Librarian", "Trader"): "test"},
}

#: Pulls are counted in 32 bits.
_MOST_PULLS = 2**31 - 1


class Action(IntEnum):
    """The two arms, in the order in which the board names them."""

    FIRST = 0
    SECOND = 1


class Arm(IntEnum):
    """Meaning of the parity of an arm's code; ``code // 2`` is the number of its pair."""

    LOW = 0
    HIGH = 1


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Pull an arm; see ``ragen_gym.games.game.Rule``. ``state`` is [pulls so far]."""
    low, high, high_prob, pulls, swapped = params
    risky = (board[action] & 1) != swapped
    reward = low if not risky else (high if u < high_prob else 0.0)
    state[0] += 1
    if state[0] < pulls:
        return reward, 0
    mean, other = (high * high_prob, low) if risky else (low, high * high_prob)
    return reward, 2 if mean >= other else 1


def legal(board: Any, state: Any, params: Any) -> int:
    """Bit a is set when arm a can be pulled: both always."""
    return 3


def blind(board: Any, state: Any, params: Any) -> int:
    """The arm whose name stands for the larger pay; see "Blind Script" in the class."""
    return 0 if board[0] & 1 else 1


class BanditSolution(Solution):
    """Pull the arm with the higher mean, as often as there are pulls; the first-named arm where both are equal."""

    def __init__(self, game: Bandit, board: Board) -> None:
        low, high, high_prob, self._pulls, swapped = game.params
        self._means = [high * high_prob if (arm & 1) != swapped else low for arm in board]

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """1 if there are actions left for all pulls, since the last one decides."""
        return float(0 < self._pulls - state[0] <= actions_left)

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The higher mean, for each pull left."""
        return max(self._means) * min(actions_left, self._pulls - state[0])

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The arm with the higher mean."""
        return self._means.index(max(self._means))


def _is_plain(name: str) -> bool:
    return name.isprintable() and not set(name) & set("<>|;")


class _ArmNames:
    def __init__(self, arms: Sequence[str]) -> None:
        self._texts = {(a, a ^ 1): f"{arms[a]}\n{arms[a ^ 1]}" for a in range(len(arms))}

    def text(self, board: Board) -> str:
        return self._texts[board[0], board[1]]


@dataclass(frozen=True)
class Bandit(Game):
    """Two arms with telling names: a safe one that always pays a little, a risky one that seldom pays much.

    ## Description
    The bandit of the RAGEN paper (arXiv 2504.20073, section 3.1). The low arm pays ``low`` each time, the high arm pays
    ``high`` with probability ``high_prob`` and else nothing; by default the high arm has the higher mean. What an
    arm is must be guessed from its name, a Teacher being steadier than a Trader.

    ## Starting State
    A pair of names, drawn uniformly from the split's pairs; a fair coin decides which is named first. The paper's lists
    are the splits: train its 12 pairs less the last two, validation those two, test the 8 held-out pairs.

    ## Rewards
    What the arm pays.

    ## Episode End
    Terminated after ``pulls`` pulls; a success if the last one was of an arm with the highest mean, whatever it paid.

    ## Blind Script
    Pulls the arm whose name stands for the large pay. It ignores what the arms pay.

    ## Arguments
    low: what the low arm pays.
    high, high_prob: what the high arm pays when it pays, and the probability that it does.
    pulls: pulls in an episode, from 1 to 2,147,483,647.
    names: pairs (low arm's name, high arm's name) to use instead of the released code's; ``split`` must then be None.
    Or "ragen-v1", the paper's own two pairs: Teacher and Engineer to train on, Librarian and Trader to test.
    """

    low: float = 0.15
    high: float = 1.0
    high_prob: float = 0.25
    pulls: int = 1
    names: tuple[tuple[str, str], ...] | str | None = None

    name = "Bandit"
    Action = Action
    Tile = Arm
    layout = "arms"
    noise = Stream.REWARD
    rule = staticmethod(step)
    legal = staticmethod(legal)
    blind = staticmethod(blind)
    reversed: ClassVar[bool] = False
    vocabularies: ClassVar[dict[str, Vocabulary]] = {"names": Vocabulary("names", ())}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"high_prob": 0.5},
        "medium": {"high_prob": 0.25},
        "hard": {"high_prob": 0.18},
    }
    #: The demonstrator chooses at random: what is discovered is which name pays more. A model from scratch has never
    #: read the names of the test split, so it is measured on the training split.
    training: ClassVar[dict[str, Any]] = {
        "turns": {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1, "max_tokens_per_turn": 24},
        "demonstrations": {"episodes": 8000, "moves": [1.0], "mistakes": 1.0, "thought": "choose"},
        "training": {"iterations": 20, "groups": 16, "group_size": 16, "keep": 0.5},
        "evaluation": {"split": "train"},
    }
    foreign_options: ClassVar[dict[str, str]] = {
        "beyond_blind": "without meaning: the blind script believes the names, so it wins every level or none"
    }
    mistakes: ClassVar[dict[str, str]] = {"fatal": "pulls the arm that pays less"}
    example_board = "Sam\nBen"  # names of no level, so that the example favours neither arm
    example_moves = ("Ben",)
    painter = "ragen_gym.render.bandit"
    success_means = "the last pull was of an arm with the highest mean, whatever it paid"
    description = (
        "You play a bandit with two arms. One pays a small sum every time, the other pays a large sum now and then. "
        "Their names hint at which is which. Choose the arm that pays more on average."
    )

    def __post_init__(self) -> None:
        check_number(self.name, "low", self.low)
        check_number(self.name, "high", self.high)
        check_number(self.name, "high_prob", self.high_prob, 0, 1)
        check_number(self.name, "pulls", self.pulls, 1, _MOST_PULLS, whole=True)
        if isinstance(self.names, str):
            if self.names not in _NAMES:
                known = ", ".join(map(repr, _NAMES))
                raise ValueError(
                    f"{self.name}: names={shown(self.names)} is no list of names: choose {known}, or give pairs (low, "
                    'high), such as [["Low", "High"]].'
                )
        elif self.names is not None:
            pairs = items_of(self.names)
            whole = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs)
            every = [arm for pair in pairs if whole for arm in pair]
            for arm in every:
                if not isinstance(arm, str) or not arm or arm.strip() != arm or not _is_plain(arm):
                    raise ValueError(
                        f"{self.name}: names: {shown(arm)} cannot name an arm: use printable characters but <, >, | "
                        "and ;."
                    )
            if not 1 <= len(pairs) <= 100 or len({arm.casefold() for arm in every}) < 2 * len(pairs):
                raise ValueError(
                    f"{self.name}: names must be 1 to 100 pairs (low, high) of distinct names; got {shown(self.names)}."
                )
            object.__setattr__(self, "names", tuple(map(tuple, pairs)))

    @property
    def height(self) -> int:
        """One row."""
        return 1

    @property
    def width(self) -> int:
        """Two arms."""
        return 2

    @property
    def risky_returns(self) -> bool:
        """True if the high arm pays by chance, unless all an episode can earn is 0 or one other sum."""
        return 0 < self.high_prob < 1 and (self.pulls > 1 or self.low not in (0, self.high))

    @property
    def has_splits(self) -> bool:
        """Unless the names are one's own: the splits are lists of names."""
        return self.names is None or isinstance(self.names, str)

    @property
    def longest(self) -> int:
        """The pulls."""
        return self.pulls

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs (low, high) in play."""
        return tuple(self._splits) if self.has_splits else self.names  # type: ignore[return-value]

    @property
    def _splits(self) -> dict[tuple[str, str], str]:
        return _NAMES[self.names] if isinstance(self.names, str) else SPLIT_OF_PAIR

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Names by arm code: ``2 * pair`` is a pair's first name, ``2 * pair + 1`` its second."""
        return tuple(arm for pair in self.pairs for arm in pair)

    @property
    def codes(self) -> int:
        """The arms in play."""
        return len(self.arms)

    @cached_property
    def params(self) -> tuple[float, float, float, int, int]:
        """(low, high, P(high pays), pulls, whether names are reversed)."""
        return float(self.low), float(self.high), float(self.high_prob), self.pulls, int(self.reversed)

    def _pairs_of(self, split: str | None) -> list[int]:
        if split is not None and not self.has_splits:
            raise ValueError(f"{self.name}: names= chooses the arms itself; give split=None, or leave names out.")
        check_split(split)
        found = [i for i in range(len(self.pairs)) if self.owns(split, bytes((2 * i, 2 * i + 1)))]
        if not found:
            raise ValueError(f"{self.name}: names={self.names!r} has no pair in split={split!r}; choose another split.")
        return found

    def level_count(self, split: str | None) -> int:
        """Two orders of each pair."""
        return 2 * len(self._pairs_of(split))

    def generate(self, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
        """A pair and an order for each key: uint8 (len(keys), 2) of arm codes."""
        chosen = self._pairs_of(split)
        draws = uniforms(keys, 0, 2)
        low = 2 * np.array(chosen)[(draws[:, 0] * len(chosen)).astype(np.intp)]
        swap = draws[:, 1] < 0.5
        return np.stack([low + swap, low + ~swap], axis=1).astype(np.uint8)

    def starts(self, boards: Boards) -> npt.NDArray[np.int32]:
        """The number of pulls so far, int32 (n, 1)."""
        return np.zeros((len(boards), 1), np.int32)

    def vocabulary(self, choice: str | Vocabulary | None) -> Vocabulary:
        """The arms' names: a bandit has no symbols to choose."""
        if isinstance(choice, Vocabulary) and choice != self.own_vocabulary:
            raise ValueError(f"{self.name}: arms are written by name; leave out vocabulary {choice.name!r}.")
        return super().vocabulary(None if isinstance(choice, Vocabulary) else choice)

    def conserved(self, board: Board) -> tuple[int, ...]:
        """The arms."""
        return tuple(board)

    def solve(self, board: Board) -> Solution:
        """The arm with the higher mean."""
        return BanditSolution(self, board)

    def family(self, board: Board) -> int:
        """The hash of the pair of names, in whichever order they stand."""
        return text_hash(self.name, "\n".join(sorted(self.action_names(board))))

    def split_of(self, board: Board) -> str | None:
        """The split of the paper's list that names this pair; None for any other."""
        return self._splits.get(self.pairs[board[0] // 2])

    def ids(self, boards: Boards) -> list[str]:
        """``Level.id`` of each board."""
        known: dict[bytes, str] = {}
        for row in map(bytes, boards):
            known.setdefault(row, f"{text_hash(self.name, self.own_text(row)):016x}")
        return [known[row] for row in map(bytes, boards)]

    def formatter(self, vocabulary: Vocabulary, text_format: TextFormat) -> Callable[[Board], str]:
        """The two names, one a line."""
        if text_format != "grid":
            raise ValueError(f"{self.name}: text_format={text_format!r} does not fit arms; leave it at 'grid'.")
        return _ArmNames(self.arms).text

    def parse(self, text: str, vocabulary: Vocabulary | None = None, text_format: TextFormat = "grid") -> bytes:
        """The board of two names, one a line."""
        names = text.strip("\n").split("\n")
        codes = {arm: code for code, arm in enumerate(self.arms)}
        board = bytes(codes[arm] for arm in names if arm in codes)
        if len(board) != len(names) or len(board) != 2 or board[0] ^ 1 != board[1]:
            raise ValueError(
                f"{self.name}: {text!r} is not a pair of arms; write for example {self.arms[0]}\\n{self.arms[1]}."
            )
        return board

    def charset(self, vocabulary: Vocabulary, text_format: TextFormat) -> tuple[frozenset[str], int, int]:
        """The characters of the names, the least length and the greatest."""
        lengths = [len(low) + 1 + len(high) for low, high in self.pairs]
        return frozenset("\n" + "".join(self.arms)), min(lengths), max(lengths)

    def action_names(self, board: Board) -> tuple[str, ...]:
        """The arms, in the order in which the board names them."""
        return self.arms[board[0]], self.arms[board[1]]

    def rewards(self) -> tuple[tuple[str, float], ...]:
        """Rewards."""
        return (
            ("the arm with a small sure pay", float(self.low)),
            ("the arm with a large rare pay, when it pays", float(self.high)),
        )

    def ragen_v1_task(self) -> str:
        """As RAGEN's prompt, which is the same for a bandit whose names mislead: what the names suggest decides."""
        return (
            "You play a bandit game: choose the arm to pull that earns you the most.\n"
            "1. There are two arms, whose names are the state.\n"
            "2. Each arm pays by a law of its own, which has to do with its name.\n"
            "3. Think of what each name stands for, and from that of how its arm may pay.\n"
            "4. Decide which arm is likely to pay more on average, and answer with its name."
        )

    def legend(self, vocabulary: Vocabulary) -> tuple[tuple[str, str], ...]:
        """Names need no legend."""
        return ()


@dataclass(frozen=True)
class BanditRev(Bandit):
    """The bandit whose names mislead: a Teacher is the risky arm, a Trader the safe one.

    ## Description
    As `Bandit`, with the roles of the two names of each pair exchanged (arXiv 2504.20073, section 3.1). It asks
    whether an agent believes what it is paid or what the names suggest. All else, splits and arguments too, is as in
    `Bandit`.
    """

    name = "BanditRev"
    reversed: ClassVar[bool] = True
    description = Bandit.description.replace("hint at", "may mislead about")
