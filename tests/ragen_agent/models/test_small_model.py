"""The small tokenizer and model: exact text, no unknown word, and no silent permutation of ids."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen_agent.config import Config, with_settings
from ragen_agent.inference.weights import move
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint, tokenizer_hash
from ragen_agent.models.small_model import GameTexts, build_tokenizer, check_known, game_texts, reading_only
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.chat import ChatFormat
from ragen_gym.core.text import TEXT_FORMATS
from ragen_gym.envs.policies import random_reply
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import make_turn
from ragen_gym.games.registry import find

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
    for board in ("OOGP\nO__X", ".oo*\nxo.+", "FHHG\nSDWW", "WW.G\nCBA@", "0110\n2345"):
        assert len(lake.tokenizer.encode(board, add_special_tokens=False)) == 9
    env = make_env(LAKE, "train")
    message, _ = env.reset(seed=0)
    assert len(lake.chat.prompt_ids(env.instructions, message)) < 110
    assert len(lake.chat.prompt_ids(env.instructions, message)) < len(message + env.instructions) / 5


def test_a_place_is_a_row_and_a_column(lake: Policy) -> None:
    tokens = lake.tokenizer.tokenize("player: (3,9)\nbox on target: (2,4) (1,10)")
    assert tokens == ["player", ":", " (3,", "9)", "\n", "box", " on", " target", ":", " (2,", "4)", " (1,", "1", "0)"]


FORMS = [
    *((game, {"text_format": way}) for game in ("Sokoban", "LargeSokoban", "FrozenLake") for way in TEXT_FORMATS),
    *((name, {"vocabulary": of}) for name in ("NewVocab", "FrozenLake") for of in find(name).game_class.vocabularies),
    ("Sokoban", {"size": 12, "boxes": 4, "generator": "reverse_walk"}),
    ("FrozenLake", {"success_rate": 1.0, "prompt": "ragen-v1"}),
    ("Bandit", {}),
    ("BanditRev", {"prompt": "ragen-v1"}),
    ("Bandit", {"pulls": 3, "max_actions_per_turn": 2}),
    ("LargeSokoban", {"grounding": True, "max_turns": 3}),
    ("NewVocab", {"think": False, "max_actions_per_turn": 1}),
]


@pytest.mark.parametrize(("game", "options"), FORMS, ids=str)
def test_an_agent_of_one_game_knows_every_message_of_all(lake: Policy, game: str, options: dict[str, Any]) -> None:
    own_words = set(range(len(lake.tokenizer))) - set(reading_only(lake.tokenizer))
    for split in ("train", "validation", "test"):
        env, rng = make_turn(game, split=split, **options), np.random.default_rng(0)
        for seed in range(12):
            message, _ = env.reset(seed=seed)
            check_known(lake.tokenizer, lake.chat.prompt_ids(env.instructions, message))
            while not env.over:
                reply = random_reply(env, rng)
                assert own_words.issuperset(lake.chat.reply_ids(write_reply(env.action_names, ""))), env.action_names
                message, *_ = env.step(reply)
                check_known(lake.tokenizer, lake.chat.glue_ids(message))
                assert lake.tokenizer.decode(lake.tokenizer.encode(message)) == message


def test_all_runs_on_games_of_the_suite_have_one_tokenizer(lake: Policy, bandit: Policy) -> None:
    coordinates = {
        "game": "Sokoban",
        "env_options": {"text_format": "coord"},
        "demonstrations": {"thought": "relative"},
    }
    sokoban = Policy.build(with_settings(Config(), coordinates))
    assert len({tokenizer_hash(agent.tokenizer) for agent in (lake, bandit, sokoban)}) == 1


def test_other_symbols_change_nothing_but_the_symbols(lake: Policy) -> None:
    """What an agent learns of a game's messages holds in other symbols: no phrase has the symbols in it."""
    one, other = make_turn("Sokoban"), make_turn("NewVocab")
    cut = [lake.tokenizer.tokenize(env.instructions) for env in (one, other)]
    assert len(cut[0]) == len(cut[1])
    differ = {pair for pair in zip(*cut, strict=True) if pair[0] != pair[1]}
    assert {(a.strip(), b.strip()) for a, b in differ} == set(zip("#_O√XPS", "W.GCBA@", strict=True))


def test_words_of_no_game_are_refused_and_those_of_a_run_are_added(lake: Policy) -> None:
    names = {"game": "Bandit", "env_options": {"names": [["Zebra", "Quagga"]]}}
    env = make_env(with_settings(Config(), names), None)
    message, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="does not know a word"):
        check_known(lake.tokenizer, lake.chat.prompt_ids(env.instructions, message))
    own = build_tokenizer([game_texts(env, "choose")])
    check_known(own, ChatFormat.from_tokenizer(own).prompt_ids(env.instructions, message))
    assert lake.tokenizer.get_vocab().keys() < own.get_vocab().keys()


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


def test_of_a_model_in_bfloat16_the_weights_alone_are_rounded(lake: Policy, tmp_path: Path) -> None:
    """Its rotary positions are those of every other program that reads the folder."""
    save_checkpoint(lake.model, lake.tokenizer, tmp_path / "model")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    expected = dict(plain.named_buffers())
    assert {buffer.dtype for buffer in expected.values()} == {torch.float32}
    loaded, _ = load_checkpoint(tmp_path / "model", dtype=torch.bfloat16)
    for model in (loaded, move(copy.deepcopy(lake.model), "cpu", torch.bfloat16)):
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        torch.testing.assert_close(dict(model.named_buffers()), expected, rtol=0, atol=0)


def test_a_tokenizer_of_another_model_is_noticed(lake: Policy, tmp_path: Path) -> None:
    other = build_tokenizer([GameTexts([], {"Zebra"})])
    save_checkpoint(lake.model, other, tmp_path / "mixed")
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
    long = {"game": "Bandit", "turns": {"max_tokens_per_episode": 600}}
    mixture = {"turns": {"max_tokens_per_episode": 512}, "games": [{"game": "FrozenLake"}, long]}
    with pytest.raises(ValueError, match="is 600, but the model reads at most 512 tokens"):
        Policy.build(with_settings(lake.config, mixture), folder)


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


def test_equal_seeds_give_equal_weights_and_leave_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*arguments: Any) -> None:
        raise AssertionError("a GPU's state takes memory on it")

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("get_rng_state", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, used)
    one, two = Policy.build(LAKE), Policy.build(LAKE)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    other = Policy.build(with_settings(LAKE, {"seed": 1}))
    assert not torch.equal(next(one.model.parameters()), next(other.model.parameters()))
    assert 100_000 <= sum(p.numel() for p in one.model.parameters()) <= 500_000
