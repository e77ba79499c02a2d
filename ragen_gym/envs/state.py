"""The boards in the thinking of a reply: written, read back and scored against the true board.

A score needs no judge: what a text says of a board is read as a set of facts, a kind of tile at a place, and compared
with the facts of the true board. Reading is lenient line by line; what cannot be read counts as a fact that is wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from ragen_gym.core.text import EDGE, TextFormat, Vocabulary
from ragen_gym.games.game import Board, Game

_PLACE = re.compile(r"\((\d{1,3}),\s*(\d{1,3})\)")
# The first blanks are never given back (``*+``): to share a line of nothing else out would take quadratic time.
_LINE = re.compile(r"\s*+([a-z ]{1,40}?)\s*:((?:\s*\(\d{1,3},\s*\d{1,3}\),?)+)\s*")
_SENTENCE = re.compile(
    r"\s*(?:the|an?) (?P<kind>[a-z ]{1,40}?) is"
    r"(?: in row (?P<row>\d{1,3}), column (?P<column>\d{1,3})"
    r"|(?: (?P<down>\d{1,3}) (?P<vertical>above|below))?(?: and)?"
    r"(?: (?P<across>\d{1,3}) (?P<horizontal>left|right) of)? the player)\s*",
    re.IGNORECASE,
)


class Fact(NamedTuple):
    """A kind of thing and where it is.

    Places are (row, column), or ("player", rows down, columns right) as seen from the player, or () for none.
    """

    kind: str
    place: tuple[Any, ...]


class StateScore(NamedTuple):
    """Score of a text about a board."""

    right: bool  # whether it says the whole truth and nothing else
    score: float  # from 0 to 1, by ``TurnConfig.state_score``


class StateText:
    """Boards of a game as a reply writes them.

    Args:
        game: the game.
        vocabulary: its symbols.
        text_format: in which the messages write a board.
        state_format: one of ``ragen_gym.core.turn_config.STATE_FORMATS``.
        state_score: one of ``ragen_gym.core.turn_config.STATE_SCORES``.

    Raises:
        ValueError: coordinates or sentences of a game that has no places.
    """

    def __init__(
        self, game: Game, vocabulary: Vocabulary, text_format: TextFormat, state_format: str, state_score: str
    ) -> None:
        if state_format != "text" and game.layout != "grid":
            raise ValueError(
                f"state_format={state_format!r} needs a board with rows and columns, which {game.name} lacks; leave it "
                "at 'text'."
            )
        self.game, self._vocabulary, self._score = game, vocabulary, state_score
        self._format: TextFormat = text_format if state_format == "text" else "grid"
        self._written = state_format if state_format in ("coordinates", "sentences") else "text"
        self._names = [tile.name.lower().replace("_", " ") for tile in game.Tile]
        self._ground = {self._names[tile] for tile in game.ground_tiles} if game.layout == "grid" else set()
        self._players = {self._names[tile] for tile in game.player_tiles}

    def write(self, board: Board) -> str:
        """The true text of a board."""
        if self._written == "text":
            return self.game.formatter(self._vocabulary, self._format)(board)
        cells = [cell for cell in self._cells(board) if cell.kind not in self._ground]
        if self._written == "coordinates":
            places = defaultdict(list)
            for kind, (row, column) in cells:
                places[kind].append(f"({row},{column})")
            return "\n".join(f"{kind}: {' '.join(found)}" for kind, found in places.items())
        return " ".join(map(_sentence, self._seen_from_the_player(cells)))

    def compare(self, text: str | None, board: Board) -> StateScore:
        """Score of a text about a board; None says nothing."""
        if text is None:
            return StateScore(False, 0.0)
        right = self._is(text, board)
        if right or self._score == "exact":
            return StateScore(right, float(right))
        said, truth = self._read(text), self._facts(board)
        if self._score == "f1":
            return StateScore(False, f1_of_kinds(said, truth))
        return StateScore(False, share_of_objects(self._things(said), self._things(truth)))

    def _is(self, text: str, board: Board) -> bool:
        if self._written != "text":
            return self._read(text) == self._facts(board)
        text = "\n".join(line.strip() for line in text.strip().splitlines())
        try:
            return self.game.parse(text, self._vocabulary, self._format) == board
        except ValueError:
            return False

    def _facts(self, board: Board) -> set[Fact]:
        if self.game.layout != "grid":
            return _lines(self.game.own_text(board))
        cells = self._cells(board)
        if self._written == "text":
            places = {cell for cell in cells if cell.kind != self._names[0]}
            if self._format == "coord":
                return places
            return set(cells) | (_listed(places) if self._format == "grid_coord" else set())
        cells = [cell for cell in cells if cell.kind not in self._ground]
        return set(self._seen_from_the_player(cells)) if self._written == "sentences" else set(cells)

    def _read(self, text: str) -> set[Fact]:
        """What a text says, in the terms of ``_facts``."""
        if self.game.layout != "grid":
            return _lines(text)
        if self._written == "sentences":
            return self._things(_fact_of(said) for said in re.split(r"[.;\n]", text) if said.strip())
        if self._written == "coordinates":
            return self._things(_places(text.splitlines()))
        if self._format == "coord":
            return _places(line for line in text.strip().splitlines() if not line.strip().startswith("board "))
        grid, _, places = text.partition("\nboard ")
        grid = "\n".join(line.replace(" ", "") for line in grid.strip().splitlines())
        listed = _listed(_places(places.splitlines()[1:])) if self._format == "grid_coord" else set()
        names = dict(zip(self._vocabulary.symbols, self._names, strict=True))
        return {
            Fact(names.get(symbol, symbol), (row, column))
            for row, line in enumerate(grid.splitlines())
            for column, symbol in enumerate(line)
        } | listed

    def _cells(self, board: Board) -> list[Fact]:
        stride = self.game.width + 1
        return [Fact(self._names[tile], divmod(cell, stride)) for cell, tile in enumerate(board) if tile != EDGE]

    def _seen_from_the_player(self, cells: Iterable[Fact]) -> list[Fact]:
        """The player where it is, other things by (rows down, columns right) of it; without one, all where they are."""
        cells = list(cells)
        player = next((place for kind, place in cells if kind in self._players), None)
        found = [Fact(kind, place) for kind, place in cells if kind in self._players or player is None]
        for kind, place in cells:
            if kind not in self._players and player is not None:
                found.append(Fact(kind, ("player", place[0] - player[0], place[1] - player[1])))
        return found

    def _things(self, facts: Iterable[Fact]) -> set[Fact]:
        return {fact for fact in facts if fact.kind not in self._ground}


def share_of_objects(said: set[Fact], truth: set[Fact]) -> float:
    """The facts that are right as a share of those that are true or of those that are said, whichever are more."""
    return len(said & truth) / max(len(said), len(truth), 1)


def f1_of_kinds(said: set[Fact], truth: set[Fact]) -> float:
    """The F1 of each kind that is there or is said to be there, averaged over the kinds."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for fact in (*said, *truth):
        counts[fact.kind][0] += 1
    for fact in said & truth:
        counts[fact.kind][1] += 1
    return sum(2 * hits / both for both, hits in counts.values()) / max(len(counts), 1)


def _lines(text: str) -> set[Fact]:
    """The lines of a text, each a kind of its own at its place."""
    return {Fact(line.strip(), (number,)) for number, line in enumerate(text.strip().splitlines())}


def _places(lines: Iterable[str]) -> set[Fact]:
    """The facts of lines such as ``box: (2,3) (4,1)``; a line of another form is a fact that is wrong."""
    facts = set()
    for line in lines:
        match = _LINE.fullmatch(line)
        if match:
            facts |= {Fact(match[1], (int(row), int(column))) for row, column in _PLACE.findall(match[2])}
        elif line.strip():
            facts.add(Fact(line, ()))
    return facts


def _listed(facts: Iterable[Fact]) -> set[Fact]:
    return {Fact(kind, ("listed", *place)) for kind, place in facts}


def _fact_of(sentence: str) -> Fact:
    match = _SENTENCE.fullmatch(sentence)
    if match is None or (match["row"] is None and match["down"] is None and match["across"] is None):
        return Fact(sentence, ())
    if match["row"] is not None:
        return Fact(match["kind"].lower(), (int(match["row"]), int(match["column"])))
    down = int(match["down"] or 0) * (-1 if (match["vertical"] or "").lower() == "above" else 1)
    right = int(match["across"] or 0) * (-1 if (match["horizontal"] or "").lower() == "left" else 1)
    return Fact(match["kind"].lower(), ("player", down, right))


def _sentence(fact: Fact) -> str:
    place = fact.place
    if len(place) == 2:
        return f"The {fact.kind} is in row {place[0]}, column {place[1]}."
    _, down, right = place
    steps = [f"{abs(down)} {'below' if down > 0 else 'above'}"] * (down != 0)
    steps += [f"{abs(right)} {'right' if right > 0 else 'left'} of"] * (right != 0)
    return f"A {fact.kind} is {' and '.join(steps)} the player."
