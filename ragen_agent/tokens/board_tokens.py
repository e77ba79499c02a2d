"""Tokenization of a game's boards: are cells separate tokens, and is a symbol the same token on every board?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragen_gym.envs.turn import TurnEnv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SYMBOL = re.compile(r"\S")  # of a grid
_PLACE = re.compile(r"\([0-9]+,[0-9]+\)|[a-z ]+(?=:)")  # in coordinates: a place, or the name of a kind
_NAME = re.compile(r".+")  # of an arm


@dataclass(frozen=True)
class BoardTokens:
    """Results. A cell is a grid symbol, a kind's name or a place in coordinates, or an arm's name."""

    text_format: str
    tokens_per_board: float  # mean
    cells_per_token: float  # mean over tokens that hold part of a cell; 1 if each cell has its own tokens
    spellings: dict[str, int]  # by cell text, the number of different token sequences that spell it
    example: tuple[str, ...]  # the tokens of the first board

    @property
    def most_spellings(self) -> str:
        """The highest number of spellings of any cell."""
        most = max(self.spellings.values())
        return f"{most}" if most == 1 else f"up to {most}"

    def __str__(self) -> str:
        return f"cells per token {self.cells_per_token:.1f}, spellings per symbol {self.most_spellings}: {self.verdict}"

    @property
    def verdict(self) -> str:
        """The difficulty that a model must learn to read the board; ``good`` if none."""
        if self.cells_per_token > 1:
            return "several cells share a token"
        if max(self.spellings.values()) > 1:
            return "a cell is spelled in several ways"
        return "good"


def formats_of(env: TurnEnv) -> tuple[str, ...]:
    """The text formats to check in this environment's game."""
    return ("grid", "spaced", "coord") if env.game.layout == "grid" else ("grid",)


def board_tokens(tokenizer: PreTrainedTokenizerBase, env: TurnEnv, seeds: Sequence[int]) -> BoardTokens:
    """Encodes each seed's first message as a model gets it, and checks the tokens of its board.

    Args:
        tokenizer: a fast tokenizer, which returns token offsets.
        env: an environment of the game, in the text format to check.
        seeds: seeds of the episodes; at least one.

    Raises:
        ValueError: the tokenizer is slow, or the messages show the board as a picture.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"{tokenizer.name_or_path}: its tokenizer returns no token offsets; use a fast one.")
    if env.config.observation == "image":
        raise ValueError("the messages show the board as a picture, not as tokens; use turns.observation=text.")
    text_format = env.env.text_format
    spelled: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    tokens = holders = parts = 0
    example: tuple[str, ...] = ()
    for seed in seeds:
        env.reset(seed=seed)
        message = env.message_text
        start = message.index(env.board)
        coded = tokenizer(message, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = coded["input_ids"], coded["offset_mapping"]
        board = _covering(spans, start, start + len(env.board))
        tokens += len(board)
        example = example or tuple(str(tokenizer.decode([ids[place]])) for place in board)
        held = set[int]()
        for found in _cells(env):
            mine = _covering(spans, start + found.start(), start + found.end())
            spelled[found[0]].add(tuple(ids[place] for place in mine))
            parts += len(mine)
            held.update(mine)
        holders += len(held)
    return BoardTokens(
        text_format,
        tokens / len(seeds),
        parts / holders,
        {cell: len(ways) for cell, ways in sorted(spelled.items())},
        example,
    )


def _cells(env: TurnEnv) -> Iterator[re.Match[str]]:
    """The cells of the environment's board in its text."""
    board, text_format = env.board, env.env.text_format
    if env.game.layout != "grid":
        yield from _NAME.finditer(board)
        return
    grid = {"coord": "", "grid_coord": board.partition("\nboard ")[0]}.get(text_format, board)
    yield from _SYMBOL.finditer(board, 0, len(grid))
    yield from _PLACE.finditer(board, len(grid))


def _covering(spans: Sequence[tuple[int, int]], first: int, last: int) -> list[int]:
    """Indices of the tokens that cover part of the text from ``first`` to ``last``."""
    return [place for place, (begin, end) in enumerate(spans) if begin < last and end > first]
