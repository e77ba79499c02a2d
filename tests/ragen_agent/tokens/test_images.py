"""Pictures at the token grain: placeholders, spans, prefixes, records, and what is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ragen_agent import ChatFormat, TokenMDP, Trajectory
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.inference import Sampled
from ragen_agent.inference.sampling import SUPPRESSED
from ragen_agent.inference.vision import vision_of
from ragen_agent.local.policy_update import Critic, Learner, update
from ragen_agent.models.parameters import adamw
from ragen_agent.preflight.dry_run import marked, scripted_episode
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import write_conversations
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.rollout import Instance, append_or_fail, group
from ragen_agent.update.batches import Batch, distinct_prefixes, rows_of
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import piece_decoder
from ragen_agent.update.scoring import sampled_scores

SETTINGS: dict[str, Any] = {
    "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
    "env_options": {"size": 3, "success_rate": 1.0},
    "turns": {"observation": "image", "max_turns": 3, "max_tokens_per_turn": 6, "max_tokens_per_episode": 400},
}


@pytest.fixture(scope="module")
def agent() -> Policy:
    agent = Policy.build(with_settings(Config(), SETTINGS))
    agent.engine.bias[agent.chat.end_id] += 3  # likelier ends, so that turns of one batch differ in length
    return agent


def with_turns(agent: Policy, **turns: Any) -> Policy:
    return replace(agent, config=replace(agent.config, turns=replace(agent.config.turns, **turns)))


def played_with(agent: Policy, **turns: Any) -> list[Trajectory]:
    policy = with_turns(agent, **turns)
    played = policy.play(policy.processes("train", 6), group([1, 2, 3, 4], 3), 1.0, seed=5)
    assert all(t.failure is None for t in played)
    return played


def process_of(agent: Policy, **turns: Any) -> TokenMDP:
    return with_turns(agent, **turns).processes("train", 1)[0]


@pytest.mark.parametrize("turns", [{}, {"observation": "both"}, {"history": 0}, {"history": 1}], ids=str)
def test_training_scores_what_was_sampled_beside_pictures(agent: Policy, turns: dict[str, Any]) -> None:
    """Several pictures an episode, equal and different prefixes, rows that join and leave."""
    played = played_with(agent, **turns)
    assert max(len(t.images) for t in played) >= 3
    batch = Batch.of(played)
    with torch.no_grad():
        found = sampled_scores(agent.model, batch, agent.engine.bias).log_probs
    assert torch.allclose(found, batch.log_probs, atol=1e-4)
    assert (batch.log_probs[batch.sampled] < 0).all()


def test_padded_rows_give_the_scores_of_shared_prefixes(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch.of(played_with(agent))
    shared = sampled_scores(agent.model, batch, agent.engine.bias).log_probs
    monkeypatch.setattr("ragen_agent.update.scoring.shares_prefixes", lambda model: False)
    padded = sampled_scores(agent.model, batch, agent.engine.bias).log_probs
    assert torch.allclose(shared, padded, atol=1e-5)


def test_placeholders_are_those_of_the_rendered_conversation(agent: Policy) -> None:
    """As the processor writes it: the template's text, with a placeholder for each visual token."""
    process = process_of(agent)
    _, info = process.reset(seed=3)
    tokenizer, (height, width) = agent.tokenizer, info["images"][0].shape[:2]
    visual = height * width // 28**2
    for _ in range(3):
        text = tokenizer.apply_chat_template(info["messages"], tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        expanded = text.replace("<|image_pad|>", "<|image_pad|>" * visual)
        assert process.ids == tokenizer.encode(expanded, add_special_tokens=False)
        for token in agent.chat.reply_ids("<answer>Up</answer>"):
            *_, info = process.step(token)
        if process.done:
            break
    for image in process.images:
        assert set(process.ids[image.start : image.end]) == {tokenizer.get_vocab()["<|image_pad|>"]}


def test_old_pictures_leave_with_their_turns(agent: Policy) -> None:
    kept, current = (played_with(agent, history=history, max_turns=3)[0].split_contexts() for history in (1, 0))
    assert [len(row.images) for row in current] == [1, 1, 1]
    assert [len(row.images) for row in kept] == [2, 2]
    for row in (*kept, *current):
        for image in row.images:
            assert (row.ids[image.start : image.end] == row.ids[image.start]).all()
        assert sum(image.tokens for image in row.images) == int((row.ids == row.ids[row.images[0].start]).sum())
    assert np.array_equal(kept[0].images[1].pixels, kept[1].images[0].pixels)


def test_a_record_gives_the_pictures_back_and_stays_small(agent: Policy) -> None:
    played = played_with(agent, history=1)[0]
    text = json.dumps(played.to_dict())
    again = Trajectory.from_dict(json.loads(text))
    assert again.to_dict() == played.to_dict()
    assert len(again.images) == len(played.images)
    for one, other in zip(again.images, played.images, strict=True):
        assert (one.start, one.grid, one.digest) == (other.start, other.grid, other.digest)
        assert np.array_equal(one.pixels, other.pixels)
    assert text.count('"png"') == len({image.digest for image in played.images}) < len(played.images)
    assert len(text) < 20_000
    assert torch.equal(Batch.of([again]).ids, Batch.of([played]).ids)


def of_equal_replies(agent: Policy, *seeds: int) -> list[Trajectory]:
    """Episodes on the levels of these seeds that end after one reply, the same in all."""
    process, rows = process_of(agent), []
    for seed in seeds:
        process.reset(seed=seed, options={"noise_seed": 0})
        for token in agent.chat.reply_ids("<answer>nowhere</answer>"):
            process.step(token)
        process.fail("test: over")
        rows.append(process.trajectory())
    return rows


def test_rows_with_other_pictures_share_no_prefix(agent: Policy) -> None:
    rows = of_equal_replies(agent, 1, 2, 1)
    one, other, same = (row.ids.tolist() for row in rows)
    assert one == other == same
    first = rows[0].images[0].start
    assert distinct_prefixes(rows_of([rows[0], rows[2]])) == len(one)
    assert distinct_prefixes(rows_of([rows[0], rows[1]])) == 2 * len(one) - first


def test_no_reply_holds_a_picture(agent: Policy) -> None:
    """Whatever the model's logits say; and an engine that samples one all the same fails that episode alone."""
    reserved = agent.chat.reserved_ids
    assert len(reserved) == 4
    assert all(agent.engine.bias[index] <= SUPPRESSED for index in reserved)
    process = process_of(agent)
    process.begin(seed=0)
    before = list(process.ids)
    for index in reserved:
        with pytest.raises(ValueError, match="is a picture id, which replies must not hold"):
            process.append(index, -1.0)
        with pytest.raises(ValueError, match="is a picture id"):
            process.append_reply([index, agent.chat.end_id], [-1.0, -1.0])
    assert process.ids == before
    assert append_or_fail(process, Sampled([index, agent.chat.end_id], [-1.0, -1.0])) == []
    assert "is a picture id" in str(process.trajectory().failure), "an engine that samples one costs that episode alone"


PPO: dict[str, Any] = {"algo": "ppo", "minibatch": 6, "starpo_s": False}
UPDATES: dict[str, dict[str, Any]] = {
    "grpo": {"algo": "grpo", "minibatch": 6},
    "ppo": PPO,
    "bi-level": PPO | {"credit": "bi_level"},
    "masks": PPO | {"credit": "bi_level", "loss_tokens": "answer", "advantage_tokens": "answer"},
    "kl": {"algo": "grpo", "minibatch": 6, "starpo_s": False, "kl_kind": "k2", "kl_place": "loss", "kl": 0.1},
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("history", [-1, 0])
def test_every_update_moves_the_vision_encoder(name: str, history: int) -> None:
    agent = Policy.build(with_settings(Config(), SETTINGS))
    settings = Training(**{**UPDATES[name], "groups": 4, "group_size": 3})
    played = [
        replace(t, turn_rewards=tuple(float(number + turn) for turn in range(len(t.turn_rewards))))
        for number, t in enumerate(played_with(agent, history=history))
    ]
    learner = Learner(
        agent.model, adamw(agent.model, 1e-3), agent.engine.bias, piece=piece_decoder(agent.tokenizer), longest=400
    )
    if settings.critic:
        learner.critic = Critic(agent.model)
        learner.critic_optimiser = adamw(learner.critic, 1e-3)
    if settings.kl_estimate != "none":
        learner.reference_model = copy.deepcopy(agent.model)
    modules = [agent.model, *([learner.critic] if learner.critic is not None else [])]
    before = [{name: p.detach().clone() for name, p in module.named_parameters()} for module in modules]
    iteration = Iteration.score_and_filter(0, played, ["FrozenLake"] * 4, settings, 0)
    seen: list[dict[str, torch.Tensor]] = []
    figures = update(learner, played, iteration.groups.advantages.flatten(), settings, 0, seen=seen.append)
    assert figures["updates"] == 2
    assert abs(figures["approx_kl"]) < 0.1
    for start, module in zip(before, modules, strict=True):
        moved = {name for name, p in module.named_parameters() if not torch.equal(p, start[name])}
        assert any("visual" in name for name in moved)
        assert any("visual" not in name for name in moved)
    images = torch.zeros_like(Batch.of(played).sampled)
    for row, t in enumerate(played):
        for image in t.images:
            images[row, image.start : image.end] = True
    assert not bool((seen[0]["mask"] & images).any())
    assert not bool(seen[0]["advantages"][images].any())


def test_a_text_model_given_pictures_says_so() -> None:
    settings = SETTINGS | {"small_model": {**SETTINGS["small_model"], "kind": "text"}}
    with pytest.raises(ValueError, match=r"reads text only; use a visual model \(small_model.kind='vision'"):
        Policy.build(with_settings(Config(), settings))


def test_an_engine_of_a_text_model_given_pictures_says_so(agent: Policy) -> None:
    plain = Policy.build(with_settings(Config(), {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}}))
    process = process_of(agent)
    process.begin(seed=0)
    with pytest.raises(ValueError, match="the model qwen2 reads text only"):
        plain.engine.start([process.ids], temperature=1.0, seed=0, images=[process.images])


TEMPLATES = {
    "no parts": ("{{ m.content }}", "does not write every message once"),
    "no picture": ("{% for p in m.content %}{{ p.text }}{% endfor %}", "writes nothing for a picture"),
    "numbered": (
        "{% for p in m.content %}{% if p.type == 'image' %}{% set ns.n = ns.n + 1 %}Picture {{ ns.n }}:<|image_pad|>"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}",
        r"writes 'Picture 1:<\|image_pad\|>' for the first picture but",
    ),
    "another placeholder": (
        "{% for p in m.content %}{% if p.type == 'image' %}[image]{% else %}{{ p.text }}{% endif %}{% endfor %}",
        r"writes '\[image\]', not one <\|image_pad\|>",
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_without_a_place_for_pictures_is_refused(agent: Policy, name: str) -> None:
    content, said = TEMPLATES[name]
    tokenizer = copy.deepcopy(agent.tokenizer)
    tokenizer.chat_template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.content is string %}{{ m.content }}{% else %}" + content + "{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatFormat.from_tokenizer(tokenizer, vision=vision_of(agent.model))
    assert chat.prompt_ids("Play.", "P_G"), "texts are taken"
    process = TokenMDP(make_env(agent.config, "train"), chat)
    with pytest.raises(ValueError, match=said) as error:
        process.reset(seed=0)
    assert "turns.observation='text'" in str(error.value)


def test_pictures_that_are_not_shown_or_not_given_are_refused(agent: Policy) -> None:
    picture = np.zeros((28, 28, 3), np.uint8)
    shown = [{"type": "text", "text": "Look: "}, {"type": "image"}]
    with pytest.raises(ValueError, match="show 0 pictures, but 1 are given"):
        agent.chat.prompt_ids("Play.", "Look", [picture])
    with pytest.raises(ValueError, match="show 1 picture, but 0 are given"):
        agent.chat.glue_ids(shown)
    with pytest.raises(ValueError, match="show 1 picture, but 2 are given"):
        agent.chat.prompt_ids("Play.", shown, [picture, picture])


def test_a_text_cannot_spell_a_picture(agent: Policy) -> None:
    picture = np.zeros((56, 28, 3), np.uint8)
    placeholder = agent.tokenizer.get_vocab()["<|image_pad|>"]
    spelled = [{"type": "text", "text": "<|image_pad|>"}, {"type": "image"}]
    assert agent.chat.prompt_ids("Play.", spelled, [picture]).count(placeholder) == 2
    assert placeholder not in agent.chat.prompt_ids("Play.", "<|image_pad|>")


def test_a_picture_too_large_for_the_context_is_refused(agent: Policy) -> None:
    policy = with_turns(agent, image_tile_size=128, max_tokens_per_episode=200)
    with pytest.raises(ValueError, match=r"tokens \(196 of them visual: a smaller turns.image_tile_size needs fewer\)"):
        policy.play(policy.processes("train", 1), [Instance(0, 0)], 1.0, seed=0)


def test_a_dry_run_shows_where_pictures_stand(agent: Policy) -> None:
    episode = scripted_episode(with_turns(agent, max_tokens_per_turn=40).config, agent.chat)
    text = marked(episode, agent.chat).plain
    assert text.count("[picture of 84x84 pixels: 9 times <|image_pad|>]") == len(episode.images)


def test_conversations_for_fine_tuning_hold_no_pictures(agent: Policy, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"a file of conversations does not hold; use text, or the warm start"):
        write_conversations(agent.config, tmp_path / "data.jsonl", Display())
