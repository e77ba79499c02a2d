"""The small tokenizer and model: exact text, no unknown word, and no silent permutation of ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from ragen_agent.chat import ChatFormat
from ragen_agent.config import Config, with_settings
from ragen_agent.training.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.training.policy import Policy
from ragen_agent.training.small_model import check_known, reading_only
from ragen_agent.training.tasks import make_env

LAKE = with_settings(Config(), {"demonstrations": {"thought": "direction"}})
BANDIT = with_settings(Config(), {"game": "Bandit", "demonstrations": {"thought": "choose"}})


@pytest.fixture(scope="module")
def lake() -> Policy:
    return Policy.build(LAKE)


@pytest.fixture(scope="module")
def bandit() -> Policy:
    return Policy.build(BANDIT)


@given(st.text(max_size=40))
def test_any_text_survives_the_tokenizer(lake: Policy, text: str) -> None:
    import unicodedata

    text = unicodedata.normalize("NFC", text)  # Qwen's tokenizers compose characters
    assert lake.tokenizer.decode(lake.tokenizer.encode(text, add_special_tokens=False)) == text


def test_board_symbols_stay_apart_and_sentences_are_short(lake: Policy) -> None:
    assert len(lake.tokenizer.encode("OOGP\nO__X", add_special_tokens=False)) == 9
    env = make_env(LAKE, "train")
    message, _ = env.reset(seed=0)
    assert len(lake.tokenizer.encode(env.instructions, add_special_tokens=False)) == 1
    assert len(lake.chat.prompt_ids(env.instructions, message)) < 50


@pytest.mark.parametrize("name", ["lake", "bandit"])
def test_every_message_of_the_game_is_known(name: str, request: pytest.FixtureRequest) -> None:
    agent: Policy = request.getfixturevalue(name)
    for split in ("train", "validation", "test"):
        env = make_env(agent.config, split)
        for seed in range(30):
            message, _ = env.reset(seed=seed)
            check_known(agent.tokenizer, agent.chat.prompt_ids(env.instructions, message))
            assert agent.tokenizer.decode(agent.tokenizer.encode(message)) == message


def test_another_games_words_are_refused(lake: Policy) -> None:
    env = make_env(BANDIT, "train")
    message, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="lacks a word"):
        check_known(lake.tokenizer, lake.chat.prompt_ids(env.instructions, message))


def test_ids_for_reading_are_not_words(lake: Policy) -> None:
    reading = {lake.tokenizer.convert_ids_to_tokens(i) for i in reading_only(lake.tokenizer)}
    assert {"<|im_start|>", "<|pad|>", "user\n"} <= reading
    assert not {"Up", " Up", " ||", "<think>", "</answer>", "<|im_end|>", " down"} & reading


def test_a_checkpoint_comes_back_whole(lake: Policy, tmp_path: Path) -> None:
    for _ in range(2):  # the second replaces the first
        save_checkpoint(lake.model, lake.tokenizer, tmp_path / "model")
    model, tokenizer = load_checkpoint(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), lake.model.parameters(), strict=True))
    text = "Turn 1 of 5.\n_P_O\nReply <think>down left</think><answer>Up || Left</answer>"
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "model")):
        assert loaded.encode(text) == lake.tokenizer.encode(text)
    assert reading_only(tokenizer) == reading_only(lake.tokenizer) == model.generation_config.suppress_tokens
    assert ChatFormat.from_tokenizer(tokenizer).end_id == lake.chat.end_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_tokenizer_of_another_model_is_noticed(lake: Policy, bandit: Policy, tmp_path: Path) -> None:
    save_checkpoint(lake.model, bandit.tokenizer, tmp_path / "mixed")
    with pytest.raises(ValueError, match="not the one that it was trained with"):
        load_checkpoint(tmp_path / "mixed")


def test_a_context_too_small_for_the_episode_is_refused(lake: Policy, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    lake.model.save_pretrained(folder)
    lake.tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 512}))
    with pytest.raises(ValueError, match=r"is 1024, but the model reads at most 512 tokens; give --set turns\.max_tok"):
        Policy.build(lake.config, folder)
    for turns in ({"max_tokens_per_episode": 512}, {"history": 0}):
        Policy.build(with_settings(lake.config, {"turns": turns}), folder)


def test_a_folder_that_cannot_be_used_says_what_is_missing(lake: Policy, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(ValueError, match="no such folder"):
        load_checkpoint(folder)
    folder.mkdir()
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_checkpoint(folder)
    lake.model.save_pretrained(folder)
    with pytest.raises(ValueError, match="no tokenizer"):
        load_checkpoint(folder)
    lake.tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        load_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ValueError, match="cannot load it"):
        load_checkpoint(folder)


def test_equal_seeds_give_equal_weights_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = Policy.build(LAKE), Policy.build(LAKE)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    other = Policy.build(with_settings(LAKE, {"seed": 1}))
    assert not torch.equal(next(one.model.parameters()), next(other.model.parameters()))
    assert 100_000 <= sum(p.numel() for p in one.model.parameters()) <= 500_000


def test_leftovers_of_a_cut_save_do_not_hinder(bandit: Policy, tmp_path: Path) -> None:
    for name in ("checkpoint", "checkpoint.old", "checkpoint.new"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "stale.txt").write_text("of another save")
    save_checkpoint(bandit.model, bandit.tokenizer, tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert not (tmp_path / "checkpoint" / "stale.txt").exists()
    load_checkpoint(tmp_path / "checkpoint")
