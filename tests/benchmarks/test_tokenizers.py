"""The page of tokenizers: byte-pair encoding by ranks, where its tokens lie, and what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]

from benchmarks import tokenizers as page_of
from benchmarks.tokenizers import GAMES, LLAMA_3, O200K, QWEN, SOURCES, RankTokenizer
from ragen_agent.tokens.board_tokens import board_tokens
from ragen_gym.core.text import TEXT_FORMATS
from ragen_gym.envs.turn import make_turn

SEEDS = range(6)
ROOT = Path(__file__).parents[2]


def test_parts_with_the_lowest_rank_are_joined_first() -> None:
    joined = ("bc", "ab", "cd", "bcd")
    ranks = {bytes([byte]): byte for byte in range(256)} | {word.encode(): 256 + n for n, word in enumerate(joined)}
    tokenizer = RankTokenizer("letters", ranks, r"(?s).+")
    for text, tokens in (("abcd", "a|bcd"), ("abd", "ab|d"), ("bccd", "bc|cd"), ("abab", "ab|ab"), ("", "")):
        coded = tokenizer(text)
        assert "|".join(tokenizer.decode([each]) for each in coded["input_ids"]) == tokens
        assert "|".join(text[start:end] for start, end in coded["offset_mapping"]) == tokens


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (QWEN, " Up|,| step|'s| |1|0|2|4| ___\n\n|  | GOAL"),
        (LLAMA_3, " Up|,| step|'s| |102|4| ___\n\n|  | GOAL"),
        (O200K, " Up|,| step's| |102|4| ___\n\n|  | GOAL"),
    ],
    ids=["qwen", "llama 3", "o200k"],
)
def test_texts_are_cut_into_words_by_the_models_own_patterns(pattern: str, words: str) -> None:
    assert regex.findall(pattern, words.replace("|", "")) == words.split("|")


def test_a_sign_of_several_bytes_is_in_each_token_that_holds_a_part_of_it() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {"X√".encode()[:2]: 256}
    tokenizer = RankTokenizer("bytes", ranks, r"(?s).+")
    assert tokenizer("X√") == {"input_ids": [256, 0x88, 0x9A], "offset_mapping": [(0, 2), (1, 2), (1, 2)]}
    found = board_tokens(tokenizer, make_turn("Sokoban"), SEEDS)
    assert found.cells_per_token == 1
    assert set(found.spellings.values()) == {1}


def test_the_page_has_a_row_for_each_tokenizer_in_each_game() -> None:
    tokenizer = RankTokenizer("bytes", {bytes([byte]): byte for byte in range(256)}, r"(?s).+")
    row = [page_of.measure(tokenizer, "FrozenLake", way, 3) for way in TEXT_FORMATS]
    text = page_of.page({game: {"bytes": row} for game in GAMES}, 3)
    assert text.count("| bytes | **1.00 / 1 / 19**") == len(GAMES)
    written = (ROOT / "benchmarks" / "tokenizers.md").read_text(encoding="utf-8")
    head = re.sub(r"on \d+ levels", "on 3 levels", written.partition("\n## ")[0])
    assert text.startswith(head), "the page is what the command writes"
    for source in SOURCES:
        assert written.count(f"| {source.models} |") == len(GAMES)
        assert f"`{source.package}`" in written
