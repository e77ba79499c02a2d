"""How tokenizers cut boards, with a byte-pair tokenizer that is trained on the spot."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ragen_agent.cli import main
from ragen_agent.models.small_model import build_tokenizer
from ragen_agent.tokens.board_tokens import BoardTokens, board_tokens, formats_of
from ragen_gym import make_turn

SEEDS = range(40)


@pytest.fixture(scope="module")
def bpe() -> PreTrainedTokenizerFast:
    """A tokenizer that joins what often stands together, as those of language models do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    boards = [make_turn("FrozenLake", text_format=way).reset(seed=n)[0] for way in ("grid", "spaced") for n in SEEDS]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(boards, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def of(tokenizer: PreTrainedTokenizerFast, game: str, text_format: str) -> BoardTokens:
    return board_tokens(tokenizer, make_turn(game, text_format=text_format), SEEDS)


def test_a_grid_is_cut_across_its_cells(bpe: PreTrainedTokenizerFast) -> None:
    found = of(bpe, "FrozenLake", "grid")
    assert found.cells_per_token > 1.2
    assert max(found.spellings.values()) > 1
    assert found.verdict == "several cells share a token"
    assert "".join(found.example) in make_turn("FrozenLake").reset(seed=0)[0]


def test_a_spaced_grid_is_read_cell_by_cell(bpe: PreTrainedTokenizerFast) -> None:
    found = of(bpe, "FrozenLake", "spaced")
    assert (found.cells_per_token, found.verdict) == (1.0, "good")
    assert set(found.spellings) >= set("_OGP")
    assert set(found.spellings.values()) == {1}
    assert str(found) == "cells per token 1.0, spellings per symbol 1: good"


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban", "NewVocab", "Bandit"])
def test_the_small_tokenizer_reads_every_format(game: str) -> None:
    env = make_turn(game)
    tokenizer = build_tokenizer()
    for text_format in formats_of(env):
        assert of(tokenizer, game, text_format).verdict == "good"


def test_both_at_once_are_looked_at_together(bpe: PreTrainedTokenizerFast) -> None:
    found, grid, places = (of(bpe, "FrozenLake", way) for way in ("grid_coord", "grid", "coord"))
    assert set(found.spellings) == {*grid.spellings, *places.spellings}
    assert found.verdict == "several cells share a token"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "--game", "FrozenLake", "--levels", "8"]) == 0
    assert "spaced, each token between two bars:" in capsys.readouterr().out
    assert main(["tokens", "--game", "Sokoban", "--levels", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["text_format"] for row in rows] == ["grid", "spaced", "coord"]
    assert main(["tokens", "--levels", "0"]) == 2
    assert "--levels 0 must be 1 or more" in capsys.readouterr().err
