"""The model card of a checkpoint: its figures are the run's, and Hugging Face's own reader takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from ragen_agent.config import Config
from ragen_agent.run.model_card import write_model_card
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import wilson


@pytest.mark.parametrize(
    ("model", "start", "licence"),
    [
        ("", "a small model from scratch", "No other model's weights are in it."),
        ("/cache/models/smollm2-135m", "the model `smollm2-135m`", "The base model's licence is Apache 2.0."),
        ("/cache/models--owner--name/snapshots/0a1b", "the model `owner/name`", "The licence of the base model"),
    ],
)
def test_a_card_holds_the_rates_of_every_game(model: str, start: str, licence: str, tmp_path: Path) -> None:
    config = replace(Config(), model=model)
    folder = RunFolder.create(tmp_path / "run", config)
    rates = {"after": wilson(10, 40, failed=3).to_dict(), "random": wilson(4, 40).to_dict()}
    summary = {**rates, "games": {"Sokoban": {"after": wilson(39, 40).to_dict()}}}
    write_model_card(config, summary, folder)
    assert not folder.checkpoint.exists(), "no checkpoint, no card"
    folder.checkpoint.mkdir()
    write_model_card(config, summary, folder)
    card = ModelCard.load(folder.checkpoint / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.license is None, "the owner's to choose"
    after = "| after | 25.0 | 14.2 to 40.2 | 40 | the policy after reinforcement (3 failed episodes left out) |"
    places = [card.text.index(cell) for cell in (after, "| random | 10.0 |", "| Sokoban | success", "| after | 97.5 |")]
    assert places == sorted(places)
    assert start in card.text
    assert licence in card.text
    assert str(tmp_path) not in card.text


def test_a_card_with_a_licence_of_its_owner_stays(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.checkpoint.mkdir()
    path = folder.checkpoint / "README.md"
    for after in (10, 20):
        write_model_card(Config(), {"after": wilson(after, 40).to_dict()}, folder)
        assert f"| after | {after / 40:.1%} ".replace("%", "") in path.read_text("utf-8")
    owned = path.read_text("utf-8").replace("---\n", "---\nlicense: mit\n", 1)
    path.write_text(owned, "utf-8")
    write_model_card(Config(), {"after": wilson(30, 40).to_dict()}, folder)
    assert path.read_text("utf-8") == owned
    assert ModelCard.load(path).data.license == "mit"
