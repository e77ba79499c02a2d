"""Levels that are given to an environment: from a file, a text or a list, at their own sizes or at one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ragen_gym.core.levels import Level, check_split
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.validation import check_number, items_of, plain_number, shown
from ragen_gym.games.game import Game

#: The options of games that choose the size of the board.
SIZE_OPTIONS = frozenset({"height", "width", "size"})

#: Unusable levels that an error names.
_NAMED = 3


class GivenLevels(NamedTuple):
    """Levels that can be played."""

    boards: list[bytes]  # the first boards of those that belong to the split
    games: list[Game]  # the game at each size of these boards
    skipped: list[str]  # what is wrong with each level that was left out


def given_levels(
    game: Game,
    levels: Any,
    split: str | None,
    *,
    vocabulary: Vocabulary | None = None,
    own_size: bool = False,
    skip_invalid: bool = False,
) -> GivenLevels:
    """The levels of a file, of a text with more than one line, or of a list, that belong to ``split``.

    Args:
        game: the game with its options.
        levels: a path, a text, or a list of what ``ragen_gym.core.levels.item_text`` takes.
        split: the split, or None for all levels.
        vocabulary: see ``Game.board``.
        own_size: whether each level is played at its own size and not at the game's.
        skip_invalid: whether levels that cannot be played are left out, as long as one can.

    Raises:
        ValueError: no level, levels that cannot be played, or none of the split.
    """
    items = _items(game, levels, vocabulary)
    source = "levels" if (isinstance(levels, str) and "\n" in levels) or not _is_source(levels) else str(levels)
    playable: list[tuple[Game, bytes]] = []
    unusable: list[str] = []
    for place, item in items:
        try:
            playable.append(game.at_own_size(item, vocabulary) if own_size else (game, game.board(item, vocabulary)))
        except ValueError as error:
            unusable.append(f"{source}{place if place.startswith('[') else f', {place}'}: {error}")
    if unusable and not (skip_invalid and playable):
        raise ValueError(_refusal(unusable, len(items), "" if own_size else _size_for_all(game, items, vocabulary)))
    check_split(split)
    kept = [(at, board) for at, board in playable if at.owns(split, board)]
    if not kept:
        raise ValueError(
            f"none of the {len(playable)} levels given belongs to split={split!r}: give split=None to play them all."
        )
    games = list({id(at): at for at, _ in kept}.values())
    return GivenLevels([board for _, board in kept], games, unusable)


def joined_levels(levels: Any, foreign: Any) -> Any:
    """The levels that were given as ``levels``, or by an option of another package.

    Raises:
        ValueError: both were given.
    """
    if levels is not None and foreign is not None:
        raise ValueError(f"levels={shown(levels)} is given next to {shown(foreign)}: give one of them.")
    return levels if foreign is None else foreign


def chosen_board(
    games: list[Game], level: Any, levels: Sequence[bytes] | None, vocabulary: Vocabulary, *, size_given: bool
) -> bytes:
    """The first board of a level, of its text, or of its place among the ``levels`` that an environment was given.

    Args:
        games: the game at each size that is played.
        level: the level or place.
        levels: the boards that the environment was given.
        vocabulary: see ``Game.board``.
        size_given: whether the size was chosen, so that a smaller board may be filled up to it.

    Raises:
        ValueError: see ``Game.board``; or there is no such place, or the board has another size.
    """
    place = plain_number(level)
    if levels is not None and type(place) is int:
        check_number(games[0].name, "level", place, 0, len(levels) - 1, whole=True)
        return levels[place]
    if size_given:
        return games[0].board(level, vocabulary)
    game, board = games[0].at_own_size(level, vocabulary)
    if game not in games:
        sizes = ", ".join(f"{each.height}x{each.width}" for each in games)
        raise ValueError(
            f"{game.name}: the board is {game.height}x{game.width}, this environment plays {sizes}; make it with "
            f"height={game.height}, width={game.width}, or with levels=[...]."
        )
    return board


def _is_source(levels: Any) -> bool:
    return isinstance(levels, str) or hasattr(levels, "__fspath__")


def _items(game: Game, levels: Any, vocabulary: Vocabulary | None) -> list[tuple[str, Any]]:
    if _is_source(levels):
        placed = game.level_items(levels, vocabulary)
        if not placed[0][0].startswith("["):
            return placed
        items = [item for _, item in placed]  # of a JSON array
    else:
        items = [levels] if isinstance(levels, Level) else items_of(levels)
    if not items:
        raise ValueError(f"levels={shown(levels)} holds no level: give a path to a level file, or a list of boards.")
    if game.layout == "grid" and len(items) > 1 and all(map(_is_row, items)):
        items = [items]  # the rows of one board, as Gymnasium's desc: no board has a single row
    return [(f"[{number}]", item) for number, item in enumerate(items)]


def _is_row(item: Any) -> bool:
    """True if an item is a row of a board: a text of one line, or its single symbols."""
    if isinstance(item, str | bytes):
        return not set(item) & {"\n", "|"} if isinstance(item, str) else True
    cells = items_of(item)
    return bool(cells) and all(isinstance(cell, str | bytes) and len(cell) == 1 for cell in cells)


def _refusal(unusable: list[str], count: int, fits: str) -> str:
    """The error about levels that cannot be played; ``fits`` says which size could play them."""
    lines = unusable[:_NAMED]
    if len(unusable) > _NAMED:
        lines.append(f"and {len(unusable) - _NAMED} more.")
    if fits:
        lines.append(fits)
    if count > 1:
        lines.insert(0, f"{len(unusable)} of {count} levels cannot be played:")
        if len(unusable) < count:
            lines.append("Correct them, or leave them out with skip_invalid=True.")
    return "\n".join(lines)


def _size_for_all(game: Game, items: list[tuple[str, Any]], vocabulary: Vocabulary | None) -> str:
    """The size at which all boards can be played, where some are larger than the game's."""
    games = []
    for _, item in items:
        with suppress(ValueError):
            games.append(game.at_own_size(item, vocabulary)[0])
    fills = getattr(game, "fills", None) is not None
    sizes = {(at.height, at.width) for at in games}
    if sizes <= {(game.height, game.width)} or (fills and all(h <= game.height and w <= game.width for h, w in sizes)):
        return ""
    return f"{_fitting(games)}Without height, width and size, each level is played at its own size as text."


def _fitting(games: list[Game]) -> str:
    height, width = max(at.height for at in games), max(at.width for at in games)
    if getattr(games[0], "fills", None) is None:
        return ""
    return f"height={height}, width={width} fits all of them (walls fill the rest). "


def check_one_size(games: list[Game], who: str) -> None:
    """Raise a ValueError, which says that ``who`` needs boards of one size, if there are games of several."""
    if len(games) < 2:
        return
    sizes = sorted((at.height, at.width) for at in games)
    low, high = ("x".join(map(str, sizes[end])) for end in (0, -1))
    raise ValueError(
        f"levels: boards of {len(sizes)} sizes, from {low} to {high}, and {who} needs one size. {_fitting(games)}"
        "Else give levels of one size, or observation='text', which plays each at its own size (in a batch with "
        "vectorization_mode='sync')."
    )
