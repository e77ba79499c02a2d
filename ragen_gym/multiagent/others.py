"""Symbols for the other players on a board."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from string import ascii_lowercase, ascii_uppercase

from ragen_gym.text import Vocabulary

__all__ = ["with_others"]

_LETTERS = ascii_uppercase[16:] + ascii_lowercase[16:]


def with_others(vocabularies: Mapping[str, Vocabulary], tiles: type[IntEnum]) -> dict[str, Vocabulary]:
    """The vocabularies, lengthened to the tiles by the first letters of Q to Z and q to z that each leaves free."""
    longer = {}
    for name, vocabulary in vocabularies.items():
        free = [letter for letter in _LETTERS if letter not in vocabulary.symbols]
        missing = len(tiles) - len(vocabulary.symbols)
        longer[name] = Vocabulary(name, (*vocabulary.symbols, *free[:missing]))
    return longer
