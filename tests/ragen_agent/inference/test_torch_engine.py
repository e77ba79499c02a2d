"""The batched engine against the model run plainly, and against the token process stepped one id at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ragen_agent.config import Config, with_settings
from ragen_agent.inference import Sampled, sampling, torch_engine
from ragen_agent.inference.kv_cache import SlotCache
from ragen_agent.inference.torch_engine import TorchEngine, TorchSession
from ragen_agent.models.small_model import reading_only
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group, play
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch, by_length
from ragen_agent.update.scoring import sampled_scores

CONFIG = with_settings(
    Config(),
    {
        "env_options": {"size": 4},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 7, "max_tokens_per_episode": 240},
        "demonstrations": {"thought": "direction"},
    },
)


@pytest.fixture(scope="module")
def agent() -> Policy:
    agent = Policy.build(CONFIG)
    agent.engine.bias[agent.chat.end_id] += 5.5  # likelier ends, so that turns of one batch differ in length
    return agent


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rollout_log_probs_are_those_of_training(agent: Policy, temperature: float) -> None:
    played = agent.play(agent.processes("train", 6), group([1, 2, 3, 4, 5], 4), temperature, seed=3)
    assert len({len(t.ids) for t in played}) > 2, "rows of different length, or padding is not tried"
    assert {len(t.turn_ends) for t in played} == {3}
    batch = Batch.of(played)
    with torch.no_grad():
        log_probs = sampled_scores(agent.model, batch, agent.engine.bias, temperature).log_probs
    assert torch.allclose(log_probs, batch.log_probs, atol=1e-4)
    assert (batch.log_probs[batch.sampled] < 0).all()


def test_prompts_of_many_lengths_are_read_in_parts_of_bounded_logits(
    agent: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, limits = [list(range(1, 2 + n)) for n in range(1, 9)], [3] * 8
    whole = agent.engine.start(prompts, temperature=1.0, seed=0).reply(limits)
    made: list[int] = []
    head = agent.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, given, logits: made.append(logits.numel()))
    most = 16 * len(agent.engine.bias)  # 8 rows have logits at 8 ends
    monkeypatch.setattr(torch_engine, "LOGITS_PER_PASS", most)
    replies = agent.engine.start(prompts, temperature=1.0, seed=0).reply(limits)
    hook.remove()
    assert made
    assert max(made) <= most
    assert [reply and reply.ids for reply in replies] == [reply and reply.ids for reply in whole]


def test_what_a_session_cached_is_freed_with_it(agent: Policy) -> None:
    """On a GPU no session keeps its cache for the next; garbage that has to be collected would fill it."""
    assert isinstance(agent.engine, TorchEngine)
    session = agent.engine.start([[1, 2, 3], [1, 2, 4]], temperature=1.0, seed=0)
    session.reply([3, 3])
    cache = weakref.ref(session.cache)
    gc.disable()
    try:
        del session
        assert cache() is None
    finally:
        gc.enable()


def test_equal_seeds_give_equal_episodes_and_others_do_not(agent: Policy) -> None:
    def ids(seed: int) -> list[list[int]]:
        return [t.ids.tolist() for t in agent.play(agent.processes("train", 4), group([1], 4), 1.0, seed)]

    assert ids(0) == ids(0) != ids(1)


def test_a_group_shares_its_level_and_not_its_noise() -> None:
    instances = group([5, 6], 3)
    assert [i.seed for i in instances] == [5, 5, 5, 6, 6, 6]
    assert len({i.noise_seed for i in instances}) == 6


def test_suppressed_ids_are_never_written(agent: Policy) -> None:
    played = agent.play(agent.processes("train", 16), group(range(4), 4), 5.0, seed=2)
    written = {int(token) for t in played for token in t.ids[t.sampled]}
    assert len(written) > 20
    assert not written & set(reading_only(agent.tokenizer))


def test_sampling_follows_the_distribution(agent: Policy) -> None:
    session = agent.engine.start([[1, 2, 3]] * 4000, temperature=2.0, seed=1)
    tokens = torch.tensor([reply.ids[0] for reply in session.reply([1] * 4000) if reply is not None])
    with torch.no_grad():
        logits = agent.model(torch.tensor([[1, 2, 3]])).logits[0, -1] + agent.engine.bias
    expected = (logits / 2.0).softmax(-1)
    counts = torch.bincount(tokens, minlength=len(expected)) / 4000
    assert (counts - expected).abs().max() < 0.03
    assert (counts[expected == 0] == 0).all()


def test_a_large_vocabulary_is_drawn_from_as_a_small_one(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = group([1, 2], 4)
    sampled = []
    for threshold in (sampling.LARGE_VOCABULARY, 1):
        monkeypatch.setattr(sampling, "LARGE_VOCABULARY", threshold)
        monkeypatch.setattr(sampling, "LOGITS_AT_ONCE", 2 * len(agent.engine.bias))  # two slots at a time
        sampled.append(play(agent.engine, agent.processes("train", 8), instances, temperature=0.7, seed=5))
    small, large = sampled
    assert ids_of(small) == ids_of(large)
    for one, other in zip(small, large, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_session_refuses_what_makes_no_sense(agent: Policy) -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        agent.engine.start([[1]], temperature=0, seed=0)
    with pytest.raises(ValueError, match="no prompt may be empty"):
        agent.engine.start([[1], []], temperature=1.0, seed=0)
    with pytest.raises(ValueError, match="limits of at least 1"):
        agent.engine.start([[1], [2]], temperature=1.0, seed=0).reply([3, 0])


def test_minibatches_by_length_hold_every_row_once() -> None:
    lengths = [3, 9, 1, 7, 7, 2, 5, 8, 4, 6, 11]
    batches = list(by_length(lengths, 2, torch.Generator().manual_seed(0)))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert max(map(len, batches)) == 2


def assert_same(replies: Sequence[Sampled | None], others: Sequence[Sampled | None]) -> None:
    for one, other in zip(replies, others, strict=True):
        assert one is not None
        assert other is not None
        assert one.ids == other.ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def ids_of(played: list[Trajectory]) -> list[list[int]]:
    return [t.ids.tolist() for t in played]


@pytest.mark.parametrize(("seats", "share", "grace"), [(1, 0.0, 8), (3, 0.6, 0), (8, 0.3, 1), (12, 0.3, 2)])
def test_tokens_do_not_depend_on_who_plays_beside_or_when_an_episode_begins(
    agent: Policy, seats: int, share: float, grace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = group([3, 4, 5, 6], 3)
    together = agent.play(agent.processes("train", 12), instances, 1.0, seed=9)
    monkeypatch.setattr(agent.engine, "straggler_share", share)
    monkeypatch.setattr("ragen_agent.inference.torch_engine.STRAGGLER_TOKENS", grace)
    unfinished = 0
    reply = TorchSession.reply

    def counted(session: TorchSession, limits: Sequence[int]) -> list[Sampled | None]:
        nonlocal unfinished
        replies = reply(session, limits)
        unfinished += replies.count(None)
        return replies

    monkeypatch.setattr(TorchSession, "reply", counted)
    assert ids_of(agent.play(agent.processes("train", seats), instances, 1.0, seed=9)) == ids_of(together)
    assert (unfinished > 0) == (share > 0), "rows that write on while others are answered, or nothing is tried"


def test_a_stop_that_the_model_cannot_write_stops_nothing(agent: Policy) -> None:
    width = len(agent.engine.bias)
    engine = TorchEngine(agent.model, [agent.chat.end_id, width + 3], len(agent.tokenizer))
    assert np.flatnonzero(engine.stops).tolist() == [agent.chat.end_id]


def test_places_are_taken_over_as_soon_as_an_episode_ends(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    join = TorchSession.join

    def noted(session: TorchSession, prompts: Sequence[Sequence[int]], episodes: Sequence[int], **others: Any) -> None:
        joined.append(len(prompts))
        join(session, prompts, episodes, **others)

    monkeypatch.setattr(TorchSession, "join", noted)
    short = replace(agent, config=with_settings(agent.config, {"turns": {"max_turns": 1}}))
    processes = [*agent.processes("train", 2), *short.processes("train", 2)]
    played = play(agent.engine, processes, group(range(5), 2), temperature=1.0, seed=1)
    assert joined == [4, 2, 2, 2], "the two whose episodes take one turn are followed at once"
    assert sorted(len(t.turn_ends) for t in played) == [1] * 6 + [3] * 4


def test_the_cache_never_holds_more_tokens_than_it_may(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    most = agent.config.turns.max_tokens_per_episode
    engine = TorchEngine(agent.model, agent.chat.stop_ids, len(agent.tokenizer), cached_tokens=3 * (most + 32))
    engine.bias = agent.engine.bias
    held: list[int] = []
    reserve = SlotCache.reserve

    def noted(cache: SlotCache, slots: int, columns: int, live: int) -> None:
        reserve(cache, slots, columns, live)
        held.append(cache.slots * cache.columns)
        for layer in cast(list[Any], cache.layers):
            assert layer.memory[0].numel() == layer.memory[1].numel()
            held.append(layer.memory[0].numel() // agent.config.small_model.hidden)

    monkeypatch.setattr(SlotCache, "reserve", noted)
    instances = group([3, 4, 5, 6], 2)
    played = play(engine, agent.processes("train", 8), instances, temperature=1.0, seed=9)
    assert engine.max_rows(most) == 3
    assert 0 < max(held) <= 3 * (most + 32)
    assert ids_of(played) == ids_of(agent.play(agent.processes("train", 8), instances, 1.0, seed=9))
    engine.cached_tokens = most // 2
    with pytest.raises(ValueError, match="does not fit into the engine's cache"):
        play(engine, agent.processes("train", 8), instances, temperature=1.0, seed=9)


def test_equal_histories_are_computed_once(agent: Policy) -> None:
    assert isinstance(agent.engine, TorchEngine)
    session = agent.engine.start([[1, 2, 3]] * 8 + [[4, 5]] * 8, temperature=1e-4, seed=0)  # all say what is likeliest
    session.reply([5] * 16)
    assert session.prefixes.count == 2
    warm = agent.engine.start([[1, 2, 3]] * 8, temperature=3.0, seed=0)
    warm.reply([5] * 8)
    assert warm.prefixes.count == 8


def test_what_all_prompts_begin_with_is_read_once(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[*range(1, 101), 7, *[row] * (1 + row % 3)] for row in range(1, 9)]
    read, forward = [], TorchSession._forward

    def counted(self: TorchSession, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(tuple(ids.shape))
        return forward(self, ids, *rest)

    monkeypatch.setattr(TorchSession, "_forward", counted)
    session = agent.engine.start(prompts, temperature=1.0, seed=0)
    replies = session.reply([4] * 8)
    assert read[:2] == [(1, 101), (8, 3)]
    monkeypatch.setattr(torch_engine, "SHARED_AT_LEAST", 10**9)
    alone = agent.engine.start(prompts, temperature=1.0, seed=0).reply([4] * 8)
    assert (8, 104) in read
    assert_same(replies, alone)


def test_learned_positions_are_read_up_to_the_last() -> None:
    """A short message that is read next to a long one is padded, of a row that has few positions left too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2, n_positions=32)).eval()
    engine = TorchEngine(model, ())
    prompts, messages = [list(range(1, 27)), [1, 2]], [[3], list(range(4, 18))]

    def second_replies(rows: list[int]) -> list[Sampled | None]:
        session = engine.start([prompts[row] for row in rows], temperature=1.0, seed=0, episodes=rows)
        session.reply([2] * len(rows))
        session.feed(range(len(rows)), [messages[row] for row in rows])
        return session.reply([4] * len(rows))

    assert_same(second_replies([0, 1]), second_replies([0]) + second_replies([1]))


def test_a_row_whose_logits_are_no_numbers_spoils_no_later_row(agent: Policy) -> None:
    """Neither one that gets its slot, nor one of the next session, which gets its cache."""
    good, broken = [5, 6], [5, 7, 8, 9, 10, 11, 12]

    def alone(engine: TorchEngine) -> Sampled | None:
        session = engine.start([good], temperature=1.0, seed=3)
        [reply] = session.reply([6])
        session.close()
        return reply

    expected, engine = alone(TorchEngine(agent.model, ())), TorchEngine(agent.model, ())
    spoil = agent.model.get_input_embeddings().register_forward_hook(
        lambda module, ids, found: found.masked_fill((ids[0] == broken[-1])[..., None], torch.nan)
    )
    session = engine.start([good, broken], temperature=1.0, seed=3, episodes=[1, 2])
    replies = session.reply([6, 6])
    spoil.remove()
    assert [bool(np.isfinite(cast(Sampled, reply).log_probs).all()) for reply in replies] == [True, False]
    session.feed([0], [[7]])
    session.join([good], [0])
    assert_same([session.reply([6, 6])[1], alone(engine)], [expected, expected])
