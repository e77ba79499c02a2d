"""Continuous generation against the model run plainly: the whole text again for each token of each conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ragen_agent.inference import continuous
from ragen_agent.inference.continuous import ContinuousEngine, Request
from ragen_agent.inference.packed import PackedModel, Segment
from ragen_agent.inference.sampling import Sampler
from ragen_gym.core.seeding import uniforms

WIDTH = 600  # of the vocabulary: several blocks, the last of them not full
STOPS = (3, 4)
SYSTEM = list(range(20, 95))  # a system prompt, long enough to be shared

SIZES: dict[str, Any] = {
    "vocab_size": WIDTH, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 3,
}  # fmt: skip
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "sliding window": MistralConfig(**SIZES, sliding_window=9),
    "capped scores, two kinds of layers": Gemma2Config(
        **SIZES, sliding_window=9, query_pre_attn_scalar=8, attn_logit_softcapping=1.0
    ),
    "sinks and experts": GptOssConfig(**SIZES, sliding_window=9, num_local_experts=2, num_experts_per_tok=1),
    "learned positions": GPT2Config(
        vocab_size=WIDTH, n_embd=32, n_layer=2, n_head=4, eos_token_id=3, bos_token_id=1, pad_token_id=0
    ),
}


def made(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of random weights, whose logits differ enough that not every token is a matter of chance."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    assert isinstance(model, PreTrainedModel)
    return model


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return made(FAMILIES["llama"])


def engine_of(model: PreTrainedModel, slots: int, top_p: float = 1.0, top_k: int = 0, **more: Any) -> ContinuousEngine:
    return ContinuousEngine(PackedModel(model, slots), Sampler(model, top_p, top_k, STOPS), STOPS, **more)


def finish(engine: ContinuousEngine, *requests: Request) -> list[Request]:
    """Submit these and step until nothing is left; the requests that ended, in order."""
    for request in requests:
        engine.submit(request)
    ended: list[Request] = []
    while engine.running or engine.waiting:
        ended += engine.step()
    return ended


@torch.no_grad()
def plainly(model: PreTrainedModel, request: Request, top_p: float = 1.0, top_k: int = 0) -> list[int]:
    """The reply by a forward pass over the whole text for each token, without a cache."""
    sampled: list[int] = []
    numbers = uniforms(np.array([request.seed], np.uint64), 0, request.limit)[0]
    while len(sampled) < request.limit:
        ids = torch.tensor([request.ids + sampled])
        scores = model(ids, use_cache=False).logits[:, -1].float()
        token = int(scores.argmax())
        if request.temperature > 0:
            scores = scores / request.temperature
            if top_k:
                scores = TopKLogitsWarper(top_k)(ids, scores)
            if top_p < 1:
                scores = TopPLogitsWarper(top_p)(ids, scores)
            sums = scores[0].double().softmax(-1).cumsum(-1).numpy()
            token = int(np.searchsorted(sums, numbers[len(sampled)] * sums[-1], side="right"))
        sampled.append(token)
        if token in STOPS:
            break
    return sampled


@dataclass
class Conversation:
    """A conversation of some turns that is played through an engine."""

    number: int
    turns: int
    starts: int  # the step at which it begins
    temperature: float
    random: np.random.Generator
    ids: list[int] = field(default_factory=list)
    request: Request | None = None
    played: list[Request] = field(default_factory=list)

    def ask(self) -> Request:
        self.ids += self.random.integers(5, WIDTH, self.random.integers(1, 30)).tolist()
        limit, seed = int(self.random.integers(1, 12)), int(self.random.integers(2**63))
        self.request = Request(self.ids.copy(), limit, self.temperature, seed, self.number)
        return self.request

    def hear(self) -> None:
        assert self.request is not None
        self.played.append(self.request)
        reply = self.request.sampled
        if self.random.random() < 0.3:  # the text of a reply is not always split into the tokens that were sampled
            reply = [*reply[: len(reply) // 2], 7, *reply[len(reply) // 2 :]]
        self.ids += reply
        self.request = None


def play(engine: ContinuousEngine, conversations: Sequence[Conversation], cancels: float = 0.0) -> list[Request]:
    """Play all of them; returns the cancelled requests. Each may be cancelled at each step with that probability."""
    random, cancelled = np.random.default_rng(1), []
    step = 0
    while any(conversation.turns > len(conversation.played) for conversation in conversations):
        for conversation in conversations:
            if conversation.request is None and conversation.starts <= step:
                if conversation.turns > len(conversation.played):
                    engine.submit(conversation.ask())
            elif conversation.request is not None and random.random() < cancels:
                conversation.request.cancelled = True
                cancelled.append(conversation.request)
                conversation.request, conversation.turns = None, 0  # its episode is over
        ended = engine.step()
        for conversation in conversations:
            if conversation.request in ended:
                conversation.hear()
        assert len(engine.running) <= len(engine.slots)
        step += 1
    return cancelled


def conversations(count: int, temperatures: Sequence[float]) -> list[Conversation]:
    random = np.random.default_rng(count)
    return [
        Conversation(
            number,
            int(random.integers(1, 5)),
            int(random.integers(0, 20)) * (number % 3),
            temperatures[number % len(temperatures)],
            np.random.default_rng(number),
            SYSTEM.copy() if number % 2 else [],
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_those_of_the_model_run_plainly(family: str) -> None:
    """Conversations of several turns join and leave, more of them than slots, greedy and sampled, some cancelled."""
    model = made(FAMILIES[family])
    engine = engine_of(model, 4)
    talks = conversations(9, [0.0, 0.7, 1.5])
    cancelled = play(engine, talks, cancels=0.01)
    played = [request for talk in talks for request in talk.played]
    assert cancelled, "some leave in the middle"
    assert {len(request.sampled) == request.limit for request in played} == {True, False} or family != "llama"
    assert engine.stats.reused > sum(len(request.ids) for request in played) / 4, "most of a conversation is kept"
    for request in played:
        assert request.sampled == plainly(model, request)
    for request in cancelled:
        assert request.sampled == plainly(model, request)[: len(request.sampled)]


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 0), (1.0, 7), (0.6, 20)])
def test_a_part_of_the_distribution_is_that_of_transformers(llama: PreTrainedModel, top_p: float, top_k: int) -> None:
    talks = conversations(5, [1.0, 2.5])
    play(engine_of(llama, 3, top_p, top_k), talks)
    for request in (request for talk in talks for request in talk.played):
        assert request.sampled == plainly(llama, request, top_p, top_k)


def test_long_prompts_are_read_in_pieces(llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "TOKENS_PER_PASS", 11)
    talks = conversations(6, [0.0, 1.0])
    engine = engine_of(llama, 4)
    play(engine, talks)
    for request in (request for talk in talks for request in talk.played):
        assert request.sampled == plainly(llama, request)
    assert engine.stats.read / engine.stats.passes < 11


def test_what_conversations_share_is_read_once(llama: PreTrainedModel) -> None:
    engine = engine_of(llama, 8)
    requests = [Request([*SYSTEM, 200 + number, 7], 3, 1.0, number, number) for number in range(8)]
    finish(engine, *requests)
    assert engine.stats.read == len(SYSTEM) + 2 * 8
    assert engine.stats.reused == len(SYSTEM) * 7
    assert [request.sampled for request in requests] == [plainly(llama, request) for request in requests]


def test_the_next_turn_reads_what_is_new(llama: PreTrainedModel) -> None:
    engine = engine_of(llama, 2)
    first = Request([*range(10, 50)], 6, 0.0, 0, "talk")
    finish(engine, first)
    second = Request([*first.ids, *first.sampled, 8, 9], 4, 0.0, 0, "talk")
    finish(engine, second)
    assert engine.stats.read == 40 + 1 + 2, "the last token that was sampled has not been read before"
    assert second.sampled == plainly(llama, second)


def test_with_one_slot_the_bits_are_those_of_the_conversation_alone(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was played before it: a run that is resumed begins in the middle."""

    def logits(before: bool) -> list[torch.Tensor]:
        engine, seen = engine_of(llama, 1), []
        talks = conversations(3, [1.0])
        if before:
            play(engine, [*talks[:1], *conversations(2, [0.0])])
        read = engine.model.read

        def noted(segments: Sequence[Segment], wanted: Sequence[bool]) -> torch.Tensor:
            seen.append(read(segments, wanted))
            return seen[-1].clone()

        monkeypatch.setattr(engine.model, "read", noted)
        play(engine, [talks[2]])
        return seen

    alone, after = logits(False), logits(True)
    assert len(alone) == len(after) > 5
    assert all(torch.equal(one, other) for one, other in zip(alone, after, strict=True))


def test_an_error_of_the_model_ends_what_is_running_and_nothing_else(llama: PreTrainedModel) -> None:
    engine = engine_of(llama, 2)
    requests = [Request([*SYSTEM, number + 5], 4, 1.0, number, number) for number in range(4)]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.step()

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = llama.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    hook.remove()
    assert engine.drop() == requests[:2]
    finish(engine)
    assert [request.sampled for request in requests[2:]] == [plainly(llama, request) for request in requests[2:]]


def test_logits_that_are_no_numbers_fail_their_own_request(llama: PreTrainedModel) -> None:
    engine = engine_of(llama, 2)
    requests = [Request([50, 51], 5, 1.0, 0, 0), Request([599, 52], 5, 1.0, 0, 1)]
    embedding: Any = llama.get_input_embeddings()
    kept = embedding.weight[599].detach().clone()
    with torch.no_grad():
        embedding.weight[599] = torch.nan
    for request in requests:
        engine.submit(request)
    ended = engine.step()
    with torch.no_grad():
        embedding.weight[599] = kept
    assert ended == [requests[1]]
    assert "not numbers" in requests[1].failed
    finish(engine, again := Request([599, 52], 5, 1.0, 0, 1))
    assert again.sampled == plainly(llama, again), "the slot is clean"
    assert requests[0].sampled == plainly(llama, requests[0])


def test_a_conversation_that_does_not_fit_fails_alone(llama: PreTrainedModel) -> None:
    engine = engine_of(llama, 2, cached_tokens=100)
    long, short = Request([*range(10, 55)], 30, 0.0, 0, 0), Request([9], 30, 0.0, 0, 1)
    assert set(finish(engine, long, short)) == {long, short}
    assert "more than 50 tokens" in long.failed or len(long.sampled) < 6
    assert not short.failed
    assert short.sampled == plainly(llama, short)


def test_what_cannot_be_asked_or_run_is_refused(llama: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="limit of at least 1, not 0"):
        engine_of(llama, 1).submit(Request([1], 0, 1.0, 0))
    with pytest.raises(ValueError, match="needs a prompt"):
        engine_of(llama, 1).submit(Request([], 1, 1.0, 0))
    mamba = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ValueError, match="mamba"):
        PackedModel(mamba, 1)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(100, 400)), "begin_suppress_tokens": list(range(5, 100))},
        {"bad_words_ids": [[token] for token in range(200, 500)]},
    ],
)
def test_greedy_replies_are_those_of_generate(asked: dict[str, Any]) -> None:
    """With what a generation config may ask for."""
    model = made(FAMILIES["llama"])
    assert model.generation_config is not None
    for name, value in asked.items():
        setattr(model.generation_config, name, value)
    engine = engine_of(model, 3)
    random = np.random.default_rng(0)
    requests = [Request(random.integers(5, WIDTH, 3 + 9 * n).tolist(), 12, 0.0, n, n) for n in range(5)]
    finish(engine, *requests)
    for request in requests:
        ids = torch.tensor([request.ids])
        generate: Any = model.generate
        whole = generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=list(STOPS)
        )
        assert request.sampled == whole[0, len(request.ids) :].tolist()
